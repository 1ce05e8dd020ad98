"""Tables: aligned columns, plain text in a pipe, colour on a terminal, never wrapped or cut off."""

import os
import pty
import subprocess
import sys

import pytest

from plugwright.cli.output import echo_wrapped, print_table, table_lines, wrapped

HEALTHY_GPU = (
    "from plugwright.cli.output import print_table; print_table(['ID', 'HEALTH'], [['gpu', ('Healthy', 'green')]])"
)


def printed_to_a_terminal(program: str, environment: dict[str, str]) -> str:
    """The output of a Python program whose standard output is a terminal."""
    ours, theirs = pty.openpty()
    try:
        subprocess.run([sys.executable, "-c", program], stdout=theirs, env=environment, check=True, timeout=60)
        return os.read(ours, 4096).decode().replace("\r\n", "\n")
    finally:
        os.close(ours)
        os.close(theirs)


def test_columns_are_aligned_without_trailing_blanks() -> None:
    assert table_lines(["ID", "HEALTH", "REASON"], [["gpu-10", "Healthy", ""], ["gpu-2", "Unhealthy", "Xid 79"]]) == [
        "ID      HEALTH     REASON",
        "gpu-10  Healthy",
        "gpu-2   Unhealthy  Xid 79",
    ]


def test_wide_rows_are_neither_wrapped_nor_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    reason = "the bus is down " * 40
    assert table_lines(["ID", "REASON"], [["x" * 300, reason]])[1] == f"{'x' * 300}  {reason.rstrip()}"


def test_pipe_gets_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["ID", "HEALTH"], [["gpu", ("Healthy", "green")]])
    assert capsys.readouterr().out == "ID   HEALTH\ngpu  Healthy\n"


@pytest.mark.parametrize(
    ("variables", "has_color"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "0"}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": ""}, True),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, False),
    ],
)
def test_commands_follow_force_color_and_no_color_in_a_pipe(variables: dict[str, str], has_color: bool) -> None:
    program = (
        "import sys, click; from plugwright.cli import main; from plugwright.cli.output import print_table\n"
        "@main.cli.command()\n"
        "def show(): click.secho('bold', bold=True); print_table(['HEALTH'], [[('Healthy', 'green')]])\n"
        "main._MODULES['show'] = 'show'; main._LazyGroup.get_command = main.click.Group.get_command\n"
        "sys.argv = ['plugwright', 'show']; main.main()"
    )
    environment = {"PATH": os.environ["PATH"], "TERM": "xterm", **variables}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60, check=True
    )
    expected = "\033[1mbold\033[0m\nHEALTH\n\033[32mHealthy\033[0m\n" if has_color else "bold\nHEALTH\nHealthy\n"
    assert done.stdout == expected


def test_terminal_gets_the_colour_of_a_cell() -> None:
    assert printed_to_a_terminal(HEALTHY_GPU, {"TERM": "xterm"}) == "ID   HEALTH\ngpu  \033[32mHealthy\033[0m\n"


@pytest.mark.parametrize("variables", [{"TERM": "xterm", "NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_terminal_gets_no_colour_with_no_color_or_without_the_ability(variables: dict[str, str]) -> None:
    shown = printed_to_a_terminal(HEALTHY_GPU, variables)
    assert shown == "ID   HEALTH\ngpu  Healthy\n"


def test_texts_are_not_markup() -> None:
    assert table_lines(["ID"], [["[bold]gpu[/bold]"], [":smile:"]])[1:] == ["[bold]gpu[/bold]", ":smile:"]


def test_details_stand_below_their_rows(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["NODE", "BACKED BY"], [["n1", "plugin"], ["node-2", "stale"]], ["served", "left behind"])
    assert capsys.readouterr().out.splitlines() == [
        "NODE    BACKED BY",
        "n1      plugin",
        "          served",
        "node-2  stale",
        "          left behind",
    ]


def test_rich_is_loaded_by_the_first_table_and_never_by_the_daemon() -> None:
    program = (
        "import sys, plugwright.cli.output, plugwright.cli.run; assert 'rich' not in sys.modules\n"
        "plugwright.cli.output.table_lines(['ID'], []); assert 'rich' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_long_line_is_wrapped_on_a_terminal_alone() -> None:
    text = "12:00 refused   default/p: the plugin says that no device is free just now"
    assert wrapped(text, 4) == text
    line = f"from plugwright.cli.output import wrapped; print(wrapped({text!r}, 4))"
    lines = printed_to_a_terminal(line, {**os.environ, "COLUMNS": "40"}).splitlines()
    assert len(lines) > 1
    assert " ".join(part.strip() for part in lines) == text
    assert all(len(part) <= 40 for part in lines)
    assert all(part.startswith("    ") for part in lines[1:])


ERRORS = {
    "an error": "from plugwright.cli.failures import fail; fail('no daemon listens here; ' * 9)",
    "a wrong call": "import sys; sys.argv[1:] = ['status', '--' + 'watched' * 3 + ' '.join(['every'] * 30)]\n"
    "from plugwright.cli.main import main; main()",
}


@pytest.mark.parametrize("program", ERRORS.values(), ids=ERRORS)
def test_messages_on_a_terminal_are_wrapped_between_words(program: str) -> None:
    ours, theirs = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "TERM": "xterm", "COLUMNS": "50"}
    try:
        subprocess.run([sys.executable, "-c", program], stderr=theirs, env=environment, check=False, timeout=60)
        lines = os.read(ours, 4096).decode().split("\r\n")
    finally:
        os.close(ours)
        os.close(theirs)
    assert max(map(len, lines)) <= 50


def test_commands_among_wrapped_lines_stay_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    echo_wrapped(["  a text that is wider", "    kubectl get pods --namespace default"])
    assert capsys.readouterr().out == "  a text that is\n    wider\n    kubectl get pods --namespace default\n"
