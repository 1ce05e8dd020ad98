"""The kubelet's part in the benchmark: which client plays it, and its events.

The Go client in `client/` is built once and preferred: it is what a kubelet is made of. Where there is no Go,
`python_client.py` takes the same flags and prints the same JSON lines. Starting it is `scenarios`' work.
"""

import json
import os
import selectors
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.processes import ProcessFailed, tail

__all__ = ["Client", "Event", "Events", "build", "choose", "find_go", "number"]

ROOT = Path(__file__).resolve().parent.parent
GO_SOURCE = ROOT / "bench" / "client"
GO_PROGRAM = ROOT / "build" / "bench-client"
PYTHON_SOURCE = ROOT / "bench" / "python_client.py"
GO_INSTALLER_DEFAULT = "/usr/local/go/bin/go"

Event = dict[str, object]


@dataclass(frozen=True, slots=True)
class Client:
    label: str
    argv: tuple[str, ...]


def choose(wanted: str) -> Client:
    """`go`, `python`, or `auto`: Go where there is a Go tool chain."""
    go = find_go()
    if wanted == "python" or (wanted == "auto" and go is None):
        return _python_client()
    if go is None and GO_PROGRAM.exists():  # built elsewhere and brought along
        return Client("Go", (str(GO_PROGRAM),))
    if go is None:
        raise ProcessFailed("no Go tool chain: put `go` on the PATH or name it in $GO")
    return _go_client(go)


def find_go() -> str | None:
    return os.environ.get("GO") or shutil.which("go") or shutil.which(GO_INSTALLER_DEFAULT)


def build(go: str, source: Path, program: Path) -> None:
    program.parent.mkdir(exist_ok=True)
    command = [go, "build", "-trimpath", "-o", str(program), "."]
    built = subprocess.run(
        command, cwd=source, env={**os.environ, "CGO_ENABLED": "0"}, capture_output=True, text=True, check=False
    )
    if built.returncode:
        raise ProcessFailed(f"building {source.name} failed:\n{built.stderr.rstrip()}")


def _go_client(go: str) -> Client:
    build(go, GO_SOURCE, GO_PROGRAM)
    return Client("Go", (str(GO_PROGRAM),))


def _python_client() -> Client:
    if not PYTHON_SOURCE.exists():
        raise ProcessFailed(f"no Go tool chain chosen or found, and {PYTHON_SOURCE.relative_to(ROOT)} does not exist")
    return Client("Python", (sys.executable, "-m", "bench.python_client"))


class Events:
    """The client's JSON lines, read while an eye is kept on the program it measures."""

    def __init__(self, client: subprocess.Popen[bytes], log: Path) -> None:
        if client.stdout is None:
            raise ValueError("the client must be started with pipes")
        self._fd = client.stdout.fileno()
        self._client_log = log
        self._buffer = b""
        self._watched: tuple[str, subprocess.Popen[bytes], Path] | None = None

    def watch(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        """From now on the end of this process is a failure too."""
        self._watched = (name, process, log)

    def expect(self, name: str) -> Event:
        event = self._next(name)
        if event["event"] == "error":
            raise ProcessFailed(f"the client failed: {event['message']}", self._program_tail())
        if event["event"] != name:
            raise ProcessFailed(f"the client said {event['event']!r} where {name!r} was due")
        return event

    def still_running(self) -> None:
        """Raise if the watched process has ended."""
        if self._watched is not None and self._watched[1].poll() is not None:
            name, process, log = self._watched
            raise ProcessFailed(_ended(name, process, "the measurement was over"), tail(log))

    def _next(self, due: str) -> Event:
        while b"\n" not in self._buffer:
            self._wait(due)
            chunk = os.read(self._fd, 65536)
            if not chunk:
                raise ProcessFailed(f"the client ended before {due!r}", tail(self._client_log))
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        event: Event = json.loads(line)
        return event

    def _wait(self, due: str) -> None:
        """Block until the client says something; raise if the program ends first."""
        if self._watched is None:
            return
        name, process, log = self._watched
        try:
            ended = os.pidfd_open(process.pid)
        except ProcessLookupError:
            raise ProcessFailed(_ended(name, process, repr(due)), tail(log)) from None
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._fd, selectors.EVENT_READ)
                selector.register(ended, selectors.EVENT_READ)
                ready = {key.fd for key, _ in selector.select()}
        finally:
            os.close(ended)
        if self._fd not in ready:
            raise ProcessFailed(_ended(name, process, repr(due)), tail(log))

    def _program_tail(self) -> str:
        if self._watched is None:
            return tail(self._client_log)
        name, _, log = self._watched
        text = tail(log)
        return f"last lines of {name}:\n{text}" if text else f"{name} wrote nothing"


def _ended(name: str, process: subprocess.Popen[bytes], due: str) -> str:
    return f"{name} ended with status {process.wait()} before {due}; its last lines:"


def number(event: Event, key: str) -> float:
    value = event[key]
    if not isinstance(value, int | float):
        raise ProcessFailed(f"the client's {event['event']!r} has no number {key!r}")
    return value
