"""The program under test: its command is filled in, started, watched, and ended with all its descendants.

Its output is kept up to a limit, the size of its files is limited, and each of its descendants has a variable in its
environment, by which those that left its process group are found. `namespace` decides which directories the program
sees in place of the host's.
"""

import asyncio
import os
import re
import resource
import secrets
import shlex
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from plugwright.conformance import namespace
from plugwright.conformance.namespace import Mount
from plugwright.errors import ConfigError
from plugwright.protocol.paths import KubeletPaths
from plugwright.system.latest import Latest

__all__ = ["Ending", "Program", "Surroundings", "Target", "fill_in", "processor_demand", "start"]

_KEPT = 64 * 1024  # last bytes of output
_DRAIN = 0.2  # seconds for the last output of an ended program
_GONE, _GONE_LOOK = 5.0, 0.01  # seconds for killed processes to end, and between two checks of them
_LOOK, _SETTLED = 0.5, 0.1  # seconds between two checks of a program, of which a waiting program can run this part
_LARGEST_FILE = 1 << 30
_VARIABLE = "PLUGWRIGHT_VERIFY"
_PLACEHOLDERS = ("{dir}", "{root}", "{socket}")
_DIRECTORIES = (*_PLACEHOLDERS, "{registry}")  # a command with one of them determines where the kubelet is
_SHOWN = 400  # characters of a command or of output in a message
_COVERED = ".covered"  # in the kubelet's root: former entries of directories that the namespace replaces
_LAST_LINES = 20  # of the output of an ended program
# Crash messages of Go, Rust, C++ and the C library.
_PANIC = re.compile(r"^(panic:|fatal error:|thread '.*' panicked at|terminate called|.*Segmentation fault)")
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b")  # the end of a Python traceback
_VARYING = re.compile(r"0x[0-9a-f]+|\d+")  # in a message that is otherwise always the same


@dataclass(frozen=True, slots=True)
class Target:
    """The program to verify: a command with placeholders, or with an empty command a running program.

    `{dir}` is the device-plugins directory, `{root}` the kubelet's, `{socket}` its registration socket. Without any of
    them the program needs a mount namespace; alternatively `directory_flag` appends a flag with the directory. `binds`
    are additional mounts in the namespace.
    """

    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    directory_flag: str = ""
    attached: bool = False
    binds: tuple[Mount, ...] = ()

    @property
    def arguments(self) -> tuple[str, ...]:
        flag = self.directory_flag
        if not flag:
            return self.command
        return (*self.command, f"{flag}{{dir}}") if flag.endswith("=") else (*self.command, flag, "{dir}")

    @property
    def needs_namespace(self) -> bool:
        texts = (*self.arguments, *self.environment.values())
        return bool(self.binds) or not any(name in text for text in texts for name in _DIRECTORIES)

    @property
    def is_private(self) -> bool:
        """Whether the program runs in a namespace: if it needs one, and also if that has no other effect."""
        return not self.attached and (self.needs_namespace or namespace.is_free())

    def check(self) -> None:
        """Raises ConfigError if the command cannot be run at all."""
        if shutil.which(self.command[0]) is None:
            raise ConfigError(f"cannot start {self.command[0]!r}: no such program")
        if self.binds and namespace.enter() is None:
            raise ConfigError("--bind needs a mount namespace, which is not allowed here: run as root")
        if self.needs_namespace and namespace.enter() is None:
            raise ConfigError(
                "the command does not name the kubelet's directory, and mount namespaces are not allowed: use {dir}, "
                "{root} or {socket} in it, --env or --device-plugins-dir-flag"
            )

    def __str__(self) -> str:
        return shlex.join(self.command) if self.command else "(attached)"


def fill_in(text: str, paths: KubeletPaths, more: Mapping[str, str] | None = None) -> str:
    """The text with placeholders filled in; `more` are additional ones, which override those of a device plugin."""
    for name, value in (more or {}).items():
        text = text.replace(name, value)
    for name, path in zip(_PLACEHOLDERS, (paths.device_plugins, paths.root, paths.kubelet_socket), strict=True):
        text = text.replace(name, str(path))
    return text


@dataclass(frozen=True, slots=True)
class Ending:
    """How a program ended, with its last lines; two endings with one signature have the same cause."""

    text: str
    lines: tuple[str, ...]
    signature: str


class Program(asyncio.SubprocessProtocol):
    """A running program; `output` is the end of its output on both streams."""

    def __init__(self, command: Sequence[str], token: str) -> None:
        self.command = tuple(command)
        self.pid = 0
        self.stopping = False
        self.crashed = False  # it ended without a request
        self._token = token
        self._transport: asyncio.SubprocessTransport | None = None
        self._written = bytearray()
        self._drained = False
        self._ended = Latest(False)

    @property
    def output(self) -> str:
        return self._written.decode(errors="replace")

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative after a signal."""
        return self._transport.get_returncode() if self._transport else None

    @property
    def running(self) -> bool:
        return self.returncode is None

    async def ends(self) -> None:
        await self._ended.until(bool)

    async def stop(self, limit: float, number: signal.Signals = signal.SIGTERM) -> bool:
        """Sends the signal to the first process; returns whether the program ended within `limit` seconds."""
        self.stopping = True
        if self.running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self.ends()
        return not self.running

    def forgive(self) -> None:
        """Treats an unrequested end as deliberate."""
        self.crashed = False

    async def settles(self, limit: float) -> None:
        """Returns when the program has ended, apparently waits for something, or after `limit`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                before, now = -1.0, processor_demand(self.processes())
                while now - before > _SETTLED * _LOOK and self.running:
                    before = now
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK):
                            await self.ends()
                    now = processor_demand(self.processes())

    async def end(self) -> None:
        """Kills the program and all its descendants, and waits until they are gone."""
        self.stopping = True
        self.kill_all()
        await self.ends()
        with suppress(TimeoutError):  # processes of another user stay
            async with asyncio.timeout(_GONE):
                while self.processes():
                    self.kill_all()  # forked in the meantime
                    await asyncio.sleep(_GONE_LOOK)

    def kill_all(self) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def processes(self) -> list[int]:
        """Every process of the program, including its first process and those that left its process group."""
        found = {pid for pid in _processes() if _has_variable(pid, self._token)}
        return sorted(found | ({self.pid} if self.running else set()))

    @property
    def ending(self) -> str:
        """How it ended, with the line of the cause: that of a panic, or the last one."""
        code = self.returncode
        if code is None:
            how = "it runs"
        else:
            how = f"it ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with status {code}"
        lines = self._lines()
        if panic := next((line for line in lines if _PANIC.match(line)), ""):
            return f"{how}: {panic[:_SHOWN]}"
        if not lines:
            return f"{how}; it wrote nothing"
        return f"{how}; its last line was {lines[-1][:_SHOWN]!r}"

    @property
    def how_ended(self) -> Ending:
        lines = self._lines()
        panic = next((line for line in lines if _PANIC.match(line) or _EXCEPTION.match(line)), "")
        reason = _VARYING.sub("", panic or (lines[-1] if lines else ""))
        return Ending(self.ending, tuple(line[:_SHOWN] for line in lines[-_LAST_LINES:]), f"{self.returncode} {reason}")

    def _lines(self) -> list[str]:
        return [line.rstrip() for line in self.output.splitlines() if line.strip()]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self.pid, self._transport = transport.get_pid(), transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._written += data
        del self._written[:-_KEPT]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._drained = True
        if not self.running:  # the loop calls `process_exited` after this, or has done so
            self.crashed |= not self.stopping
            self._finish()

    def process_exited(self) -> None:
        self.crashed |= not self.stopping
        if self._drained:
            self._finish()
        else:  # not until the pipe's end, because a child can hold it open indefinitely
            asyncio.get_running_loop().call_later(_DRAIN, self._finish)

    def _finish(self) -> None:
        assert self._transport is not None
        self._transport.close()
        self._ended.publish_if_changed(True)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """A session's settings for its programs: further placeholders, default variables, and mounts in their namespace."""

    placeholders: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()


async def start(target: Target, paths: KubeletPaths, surroundings: Surroundings | None = None) -> Program:
    """Starts the program; the target's own variables override those of the surroundings."""
    around = surroundings or Surroundings()
    token = secrets.token_hex(8)
    command = [fill_in(argument, paths, around.placeholders) for argument in target.arguments]
    own = {name: fill_in(value, paths, around.placeholders) for name, value in target.environment.items()}
    if target.is_private:
        mounts = around.mounts or (Mount(paths.root, namespace.KUBELET), *target.binds)
        command = namespace.command_in(paths.root / _COVERED, mounts, command)
    loop = asyncio.get_running_loop()
    try:
        _, program = await loop.subprocess_exec(
            lambda: Program(command, token),
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **around.variables, **own, _VARIABLE: token},
            start_new_session=True,
        )
    except OSError as error:
        raise ConfigError(f"cannot start `{target!s:.{_SHOWN}}`: {error.strerror}") from None
    with suppress(ProcessLookupError, PermissionError):
        resource.prlimit(program.pid, resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
    return program


def processor_demand(pids: Sequence[int]) -> float:
    """Seconds for which these processes ran or waited for a processor: on a busy machine they run for less."""
    total = 0
    for path in (path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat")):
        with suppress(OSError, ValueError):
            total += sum(map(int, path.read_text().split()[:2]))
    return total / 1e9


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _has_variable(pid: int, token: str) -> bool:
    try:
        return f"{_VARIABLE}={token}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # ended, or another user's
