"""Namespaces of their own: processes, mounts and network that the machine does not see, and that end together.

`first_process` furnishes them. What runs inside is started from here with `nsenter`; files of the state directory are
the same inside and outside. Cgroups know no such walls: a cluster has one of its own name, and `machine` removes it.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.kubernetes.waiting import until

__all__ = ["PATH", "UNSHARE", "Enclosure", "Process"]

PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
UNSHARE = ("unshare", "--mount", "--propagation=slave", "--pid", "--net", "--uts", "--ipc", "--fork", "--mount-proc")
_FIRST = Path(__file__).with_name("first_process.py")
_MINE = re.compile(r"PLUGWRIGHT_|KUBE|.*_proxy$", re.IGNORECASE)  # what must not reach a program inside
_CLEAN = {name: text for name, text in os.environ.items() if not _MINE.match(name)} | {"PATH": PATH}


@dataclass(slots=True)
class Process:
    """A program that runs inside; its output goes to `log`."""

    name: str
    log: Path
    _entered: "subprocess.Popen[bytes]" = field(repr=False)
    _known: int = 0

    @property
    def pid(self) -> int:
        """As the machine counts, not as the namespace does."""
        if not self._known:
            until(f"{self.name} starts", lambda: _child(self._entered.pid) or not self.alive, limit=5)
            self._known = _child(self._entered.pid)
            if not self._known:
                raise ProcessLookupError(f"{self.name} has ended by itself, see {self.log}")
        return self._known

    @property
    def alive(self) -> bool:
        return self._entered.poll() is None

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def freeze(self) -> None:
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """By way of nsenter, which stops itself with what it has started."""
        self._entered.send_signal(signal.SIGCONT)
        self.send(signal.SIGCONT)

    def stop(self, number: signal.Signals = signal.SIGTERM, limit: float = 15) -> int:
        """How it ended, once it has; it is killed if the signal does not end it."""
        try:
            self._send_if_alive(number)
            return self._entered.wait(limit)
        except subprocess.TimeoutExpired:
            self._send_if_alive(signal.SIGKILL)
            self._entered.send_signal(signal.SIGCONT)  # nsenter has stopped with what it has started
            return self._entered.wait()

    def _send_if_alive(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it may end by itself meanwhile
            if self.alive:
                self.send(number)

    def lines(self, text: str = "") -> list[str]:
        """What it has written so far, whole lines only."""
        written, _, _ = self.log.read_text(errors="replace").rpartition("\n")
        return [line for line in written.splitlines() if text in line]


class Enclosure:
    def __init__(self, state: Path, kept_open: Sequence[int] = ()) -> None:
        """`kept_open`: file descriptors that the first process holds for as long as it lives."""
        self.state = state
        self.logs = state / "logs"
        self.logs.mkdir()
        self._kept_open = kept_open
        self._first: subprocess.Popen[str] | None = None
        self._inside = 0

    def open(self, *addresses: str) -> None:
        command = [*UNSHARE, "--kill-child", sys.executable, "-I", str(_FIRST), str(self.state), *addresses]
        self._first = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=_CLEAN,
            start_new_session=True,
            pass_fds=self._kept_open,
        )
        assert self._first.stdout is not None
        said = self._first.stdout.readline()
        if said != "ready\n":
            raise RuntimeError(f"no namespaces: {said}{self._first.communicate()[0]}")
        self._inside = _child(self._first.pid)

    def close(self) -> None:
        """Ends everything inside at once."""
        if self._first is not None:
            self._first.communicate()
            self._first = None

    def connect(self, other: "Enclosure", name: str, peer: str) -> None:
        """Makes a pair of virtual network cards: `name` in here, `peer` in the other."""
        pair = (name, "type", "veth", "peer", "name", peer, "netns", str(other._inside))
        # In the namespace of processes of this enclosure, the other's process has no number.
        command = ["nsenter", f"--target={self._inside}", "--net", "--", "ip", "link", "add", *pair]
        subprocess.run(command, env=_CLEAN, check=True)

    def command(self, *arguments: str | Path) -> list[str]:
        """What runs `arguments` inside."""
        target = f"--target={self._inside}"
        return ["nsenter", target, "--mount", "--pid", "--net", "--uts", "--ipc", "--", *map(str, arguments)]

    def run(
        self, *arguments: str | Path, given: str = "", env: Mapping[str, str] | None = None, limit: float = 120
    ) -> "subprocess.CompletedProcess[str]":
        """Runs `arguments` inside to their end."""
        return subprocess.run(
            self.command(*arguments),
            input=given,
            env={**_CLEAN, **(env or {})},
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )

    def start(self, name: str, *arguments: str | Path, env: Mapping[str, str] | None = None) -> Process:
        """Starts `arguments` inside; what they write is added to the log of that name."""
        log = self.logs / f"{name}.log"
        with log.open("ab") as written:
            entered = subprocess.Popen(
                self.command(*arguments),
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                env={**_CLEAN, **(env or {})},
                start_new_session=True,  # an interrupt from the keyboard is for the tests, which then end this
            )
        return Process(name, log, entered)


def _child(pid: int) -> int:
    """The one child of a process, 0 if it has none (yet)."""
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    except (OSError, IndexError):
        return 0
