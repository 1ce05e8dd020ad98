"""The daemon under fault: a real `plugwright run`, watched from outside through /proc, its sockets and its log.

Its log is a pipe, as under a container runtime; `Log` reads it, or does not, which is a fault of its own.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from chaos.node import Node

from plugwright.errors import PlugwrightError
from plugwright.sdk.status import DaemonStatus
from plugwright.system import json_lines

__all__ = ["Daemon", "Footprint", "Launch"]

_ANSWER_LIMIT = 2.0
_KEPT_LINES = 20_000


@dataclass(frozen=True, slots=True)
class Launch:
    """How a daemon is started: within another program, with other variables, with further flags.

    `{root}` in a word or a variable is the rig's directory.
    """

    within: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    flags: Sequence[str] = ()
    probes: bool = True


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process has of what can leak; `descriptors` by what they are open on."""

    descriptors: Counter[str]
    threads: int
    children: int
    rss_mib: float

    def least(self, other: "Footprint") -> "Footprint":
        return Footprint(
            self.descriptors & other.descriptors,
            min(self.threads, other.threads),
            min(self.children, other.children),
            min(self.rss_mib, other.rss_mib),
        )

    def growth(self, before: "Footprint") -> list[str]:
        """What is more than before; memory is judged apart, as an allocator gives nothing back at once."""
        grown = [f"{count} x {kind}" for kind, count in (self.descriptors - before.descriptors).items()]
        texts = [f"descriptors: {', '.join(sorted(grown))}"] if grown else []
        for name in ("threads", "children"):
            more = getattr(self, name) - getattr(before, name)
            texts += [f"{more} {name}"] if more > 0 else []
        return texts


class Log:
    """The reader of the daemon's pipe; while `blocked`, nobody reads."""

    def __init__(self, pipe: int) -> None:
        self.lines: list[str] = []
        self._reads = threading.Event()
        self._reads.set()
        self._thread = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._thread.start()

    def block(self) -> None:
        self._reads.clear()

    def unblock(self) -> None:
        self._reads.set()

    def end(self) -> None:
        self.unblock()
        self._thread.join(5)

    def _read(self, pipe: int) -> None:
        with open(pipe, "rb", buffering=0) as stream:
            rest = b""
            while self._reads.wait() and (data := stream.read(4096)):
                *lines, rest = (rest + data).split(b"\n")
                self.lines += [line.decode(errors="replace") for line in lines]
                del self.lines[:-_KEPT_LINES]


class Daemon:
    """One process at a time; `start` begins the next."""

    def __init__(self, node: Node, launch: Launch | None = None) -> None:
        self.node, self.launch = node, launch or Launch()
        self.port = 0
        self.log: Log | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.earlier_lines: list[str] = []

    def start(self) -> None:
        reading, writing = os.pipe()
        self.port = _unused_port() if self.launch.probes else 0
        clean = {name: text for name, text in os.environ.items() if not name.startswith("PLUGWRIGHT_")}
        self._process = subprocess.Popen(
            [*map(self._filled, self.launch.within), sys.executable, "-m", "plugwright", "run", *self._flags()],
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            env={**clean, **{name: self._filled(text) for name, text in self.launch.environment.items()}},
            start_new_session=True,
        )
        os.close(writing)
        self.log = Log(reading)

    @property
    def pid(self) -> int:
        """Of the daemon itself, whatever program it was started within."""
        assert self._process is not None
        leader = self._process.pid
        members = [leader, *_descendants(leader)]
        return next((pid for pid in members if _is_daemon(pid)), leader)

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def stop(self, number: signal.Signals = signal.SIGTERM, limit: float = 10) -> float:
        """The seconds until it ended; it is killed if the signal does not end it."""
        began = time.monotonic()
        self.send(number)
        await self.ended(limit)
        taken = time.monotonic() - began
        if self.alive:
            self.send(signal.SIGKILL)
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await asyncio.to_thread(self._process.wait)
        self._end_log()
        return taken

    async def ended(self, limit: float) -> bool:
        """Whether it ends by itself within `limit` seconds."""
        deadline = time.monotonic() + limit
        while self.alive and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        return not self.alive

    def lines(self) -> list[str]:
        return [*self.earlier_lines, *(self.log.lines if self.log else [])]

    def footprint(self) -> Footprint:
        proc = Path(f"/proc/{self.pid}")
        fields = _fields(proc / "status")
        kinds: Counter[str] = Counter()
        for descriptor in (proc / "fd").iterdir():
            with suppress(OSError):
                kinds[_kind(os.readlink(descriptor))] += 1
        return Footprint(kinds, fields["Threads"], len(_descendants(self.pid)), fields["VmRSS"] / 1024)

    def peak_mib(self) -> float:
        return _fields(Path(f"/proc/{self.pid}/status"))["VmHWM"] / 1024

    def forget_peak(self) -> None:
        """The peak is counted from here on."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    async def ask(self, request: Mapping[str, object], limit: float = _ANSWER_LIMIT) -> object:
        """What the control socket answers; OSError or PlugwrightError where it does not."""
        return await asyncio.to_thread(json_lines.ask, self.node.control, request, limit)

    async def status(self, limit: float = _ANSWER_LIMIT) -> DaemonStatus | None:
        try:
            answer = await self.ask({"do": "status"}, limit)
        except (OSError, PlugwrightError, ValueError, StopIteration, RuntimeError):
            return None
        return answer  # type: ignore[return-value]

    async def get(self, path: str, limit: float = _ANSWER_LIMIT) -> int:
        """The status code of the probe port's answer, 0 where there is none in time."""
        try:
            async with asyncio.timeout(limit):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                try:
                    writer.write(f"GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n".encode())
                    line = await reader.readline()
                finally:
                    writer.transport.abort()
        except (OSError, TimeoutError):
            return 0
        words = line.split()
        return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0

    def _filled(self, word: str) -> str:
        return word.replace("{root}", str(self.node.root))

    def _flags(self) -> list[str]:
        node = self.node
        places = {
            "--config": node.config,
            "--kubelet-dir": node.kubelet_dir_inside,
            "--state-dir": node.state,
            "--control-socket": node.control,
        }
        listen = [f"--listen=127.0.0.1:{self.port}"] if self.port else []
        return [*(f"{flag}={path}" for flag, path in places.items()), *listen, *self.launch.flags]

    def _end_log(self) -> None:
        if self.log is not None:
            self.log.end()
            self.earlier_lines = self.lines()[-_KEPT_LINES:]
            self.log = None


def _unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_daemon(pid: int) -> bool:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return words[1:4] == [b"-m", b"plugwright", b"run"]
    return False


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *_descendants(child)]
    return found


def _kind(target: str) -> str:
    """What a descriptor is open on: sockets, pipes and inodes by their kind, files by their name."""
    return target.partition(":")[0] if ":[" in target else target


def _fields(path: Path) -> dict[str, int]:
    """The lines `Name: number [kB]` of a file in /proc; all 0 for a process that has ended."""
    found: dict[str, int] = {"Threads": 0, "VmRSS": 0, "VmHWM": 0}
    with suppress(OSError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(":")
            first = value.split(maxsplit=1)[:1]
            if first and first[0].isdecimal():
                found[name] = int(first[0])
    return found
