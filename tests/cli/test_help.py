"""The command line explains itself: help with an example everywhere, and completion for three shells."""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tests.cli.processes import ended, python

from plugwright import __version__
from plugwright.cli.main import cli
from plugwright.cli.run import run

# What these print is not a table: reports in formats of CI systems, and a configuration file.
OWN_FORMATS = {("verify",), ("import",)}
ONLY_ONCE = ("check", "print_config", "once", "output", "timeout", "api")  # flags of one call, not settings of a daemon
CHECK = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


COMMANDS = sorted(commands(cli))


def help_of(*path: str) -> str:
    result = CliRunner().invoke(cli, [*path, "--help"], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.output == CliRunner().invoke(cli, [*path, "-h"]).output
    return result.output


def example(*path: str) -> str:
    return " ".join(help_of(*path).partition("Example")[2].split())


def test_help_names_every_command_and_begins_with_an_example() -> None:
    text = help_of()
    assert "plugwright run -c plugwright.yaml" in text
    assert all(f"\n  {path[0]} " in text for path in COMMANDS)


def test_help_groups_the_commands_by_task() -> None:
    text = help_of().partition("Show this message and exit.")[2]
    assert re.findall(r"^(\S.*):$", text, re.MULTILINE) == [
        "Serve devices",
        "Write a plugin",
        "Test without hardware",
        "See and explain a cluster",
        "Look and repair",
        "Shell",
    ]
    listed = re.findall(r"^  (\S+) +\S", text, re.MULTILINE)
    assert sorted(listed) == sorted({path[0] for path in COMMANDS})
    assert len(listed) <= 35
    assert listed[0] == "run"
    assert listed[-1] == "completion"
    assert not re.search(r"^   ", text, re.MULTILINE)  # each command is one line


async def test_help_loads_no_command() -> None:
    code = (
        "import sys; from plugwright.cli.main import cli; cli(['--help'], standalone_mode=False); print(*sys.modules)"
    )
    done = await ended(python("-c", code))
    loaded = [name for name in done.out.splitlines()[-1].split() if name.startswith("plugwright.")]
    commands = {name.removeprefix("plugwright.cli.") for name in loaded if name.startswith("plugwright.cli.")}
    assert commands == {"main", "failures", "color"}
    assert "yaml" not in done.out.splitlines()[-1].split()


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_help_of_each_command_has_an_example(path: tuple[str, ...]) -> None:
    assert f"plugwright {' '.join(path)} " in example(*path)


@pytest.mark.parametrize("path", [(), *COMMANDS], ids=" ".join)
def test_help_fits_a_narrow_terminal(path: tuple[str, ...]) -> None:
    text = CliRunner().invoke(cli, [*path, "--help"], env={"COLUMNS": "80"}, terminal_width=80).output
    assert [line for line in text.splitlines() if len(line) > 80] == []
    listed = text.partition("\nCommands:\n")[2]
    assert not re.search(r"\.\.\.$", listed, re.MULTILINE)  # no summary is cut off


def test_every_command_that_prints_a_table_has_the_same_formats() -> None:
    formats: dict[tuple[str, ...], object] = {}
    for path in COMMANDS:
        command: click.Command | None = cli
        for name in path:
            assert isinstance(command, click.Group)
            command = command.get_command(click.Context(command), name)
        assert command is not None
        for option in command.params:
            if option.name == "output":
                formats[path] = option.type
    assert formats.keys() >= OWN_FORMATS
    others = {path: kind for path, kind in formats.items() if path not in OWN_FORMATS}
    assert len(others) >= 20
    for path, kind in others.items():
        assert isinstance(kind, click.Choice), path
        assert list(kind.choices) == ["text", "wide", "json", "yaml"], path


def test_the_help_of_run_names_the_variable_of_each_setting() -> None:
    text = "".join(help_of("run").split())
    settings = [option for option in run.params if isinstance(option, click.Option) and option.name not in ONLY_ONCE]
    assert len(settings) >= 9
    variables = [[option.envvar] if isinstance(option.envvar, str) else option.envvar for option in settings]
    assert [names for names in variables if f"envvar:{','.join(names or ['none'])}" not in text] == []


@pytest.mark.parametrize("arguments", [["no-such-command"], ["mock", "no-such-command"], ["cordon"], ["mock", "fail"]])
def test_a_wrong_call_is_exit_code_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith("Error: ")


async def test_the_version_is_printed() -> None:
    done = await ended([str(Path(sys.executable).with_name("plugwright")), "--version"])
    assert (done.code, done.out, done.err) == (0, f"plugwright {__version__}\n", "")


@pytest.mark.parametrize("shell", CHECK)
async def test_completion_is_a_script_that_the_shell_takes(shell: str, tmp_path: Path) -> None:
    done = await ended(python("-m", "plugwright", "completion", shell))
    assert (done.code, done.err) == (0, "")
    assert f"_PLUGWRIGHT_COMPLETE={shell}_complete" in done.out
    if shutil.which(shell):
        script = tmp_path / "completion"
        script.write_text(done.out)
        assert (await ended([*CHECK[shell], str(script)])).code == 0


async def test_completion_of_no_shell_is_a_wrong_call() -> None:
    done = await ended(python("-m", "plugwright", "completion", "tcsh"))
    assert (done.code, done.out) == (2, "")


async def test_completion_knows_commands_and_flags() -> None:
    program = str(Path(sys.executable).with_name("plugwright"))
    words = {"_PLUGWRIGHT_COMPLETE": "bash_complete", "COMP_WORDS": "plugwright mo", "COMP_CWORD": "1"}
    assert (await ended([program], words)).out == "plain,mock\n"
    words |= {"COMP_WORDS": "plugwright run --kubel", "COMP_CWORD": "2"}
    assert (await ended([program], words)).out == "plain,--kubelet-dir\n"
