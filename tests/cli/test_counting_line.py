"""How far long work is: a bar on a terminal, plain lines elsewhere."""

import io
import re
import sys
from pathlib import Path

import pytest
from tests.kubernetes.first_hour import Terminal

from plugwright.cli.counting_line import CountingLine

COUNT = """\
from plugwright.cli import counting_line
counting_line._SILENT = counting_line._REDRAWN = 0
with counting_line.CountingLine("nodes started", 4) as line:
    for number in range(1, 5):
        line.show(number)
print("ready")
"""


def test_on_a_terminal_a_bar_grows_and_is_erased(tmp_path: Path) -> None:
    script = tmp_path / "count.py"
    script.write_text(COUNT)
    shown = Terminal(tmp_path, {"PYTHONPATH": ":".join(sys.path)}).run(f"{sys.executable} {script}")
    drawn = [re.sub(r", \d+ s", "", part) for part in shown.split("\r") if part]
    assert [part.partition(",")[0] for part in drawn[:2]] == [
        "[#####...............] 1 of 4 nodes started",
        "[##########..........] 2 of 4 nodes started",
    ]
    assert drawn[-1] == "ready\n"


class DumbTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    output = DumbTerminal()
    with CountingLine("packages", 10, output) as line:
        line._next = 0.0
        line.show(7)
    assert output.getvalue() == "7 of 10 packages, 0 s\n"


def test_short_work_prints_nothing_in_a_pipe_and_long_work_plain_lines() -> None:
    output = io.StringIO()
    with CountingLine("packages", stream=output) as line:
        line.show(1)
    assert output.getvalue() == ""
    line._next = 0.0
    line.show(7)
    assert output.getvalue() == "7 packages, 0 s\n"
