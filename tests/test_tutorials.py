"""What a tutorial shows is what happens: its session is played in one shell with kubectl, and compared.

PLUGWRIGHT_REWRITE_TRANSCRIPT=1 writes what happened into the page instead.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.requirements import unavailable
from tests.transcripts import BLOCK, Exchange, comparable, exchanges, files, impersonal

PAGES = sorted((Path(__file__).parent.parent / "docs").glob("tutorial-*.md"))
END = "--- end of a command ---"


class Shell:
    """bash in a directory of its own, with plugwright and kubectl on its PATH."""

    def __init__(self, home: Path) -> None:
        self.home = home
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PLUGWRIGHT_", "KUBE"))}
        self._environment = {**clean, "PATH": path, "HOME": str(home), "COLUMNS": "150", "PYTHONDONTWRITEBYTECODE": "1"}

    def play(self, commands: Sequence[str]) -> list[Exchange]:
        """The commands one after the other, as typed: background jobs and exported variables stay."""
        script = "".join(f"{command}\necho '{END}'\n" for command in commands)
        done = subprocess.run(
            ["bash"], input=script, cwd=self.home, env=self._environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=100, check=False,
        )  # fmt: skip
        outputs = done.stdout.split(f"{END}\n")
        assert len(outputs) == len(commands) + 1, done.stdout
        return [Exchange(command, impersonal(out, self.home)) for command, out in zip(commands, outputs, strict=False)]

    def end(self) -> None:
        """Ends what a session that failed has left running."""
        if not (self.home / "lab" / "control.sock").exists():
            return
        command = [sys.executable, "-m", "plugwright", "down", "--state", "lab"]
        subprocess.run(command, cwd=self.home, env=self._environment, capture_output=True, check=False, timeout=60)


@pytest.fixture
def shell() -> Iterator[Shell]:
    if shutil.which("kubectl") is None:
        unavailable("kubectl", "needs kubectl")
    with TemporaryDirectory(prefix="tutorial-") as home:  # a socket's path has at most 107 bytes
        shell = Shell(Path(home))
        yield shell
        shell.end()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_session_of_a_tutorial_happens_as_it_is_shown(page: Path, shell: Shell) -> None:
    text = page.read_text()
    for name, content in files(text).items():
        (shell.home / name).write_text(content)
    shown = [exchange for block in BLOCK.findall(text) for exchange in exchanges(block)]
    assert len(shown) > 5
    seen = shell.play([exchange.command for exchange in shown])
    if os.environ.get("PLUGWRIGHT_REWRITE_TRANSCRIPT") == "1":
        played = iter(seen)
        page.write_text(BLOCK.sub(lambda block: "".join(str(next(played)) for _ in exchanges(block[0])), text))
        return
    for before, now in zip(shown, seen, strict=True):
        assert comparable(now.output) == comparable(before.output), f"$ {now.command}"


def test_there_are_five_tutorials() -> None:
    assert len(PAGES) == 5
