"""plugwright as an operator meets it: a node's directories, processes, what they write and how they end."""

import asyncio
import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock

import msgspec
from tests.cli import command_server

__all__ = ["Ended", "Lines", "Node", "Running", "configuration", "ended", "python", "running"]

_LIMIT = 60.0  # seconds; only a test that fails waits for so long
_LONGEST_LINE = 2**22
_AT_START = ("PYTHON", "LANG", "LC_")  # variables that Python reads when it starts
_STARTING = Lock()
_NOTHING, _PIPE = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that has ended: how, and what it wrote."""

    code: int
    out: str
    err: str


class Lines:
    """What a process has written so far, line by line."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._ended = False
        self._news = asyncio.Event()

    async def until(self, text: str, count: int = 1) -> str:
        """The `count`th line that has `text`, once it is written; fails when there can be none any more."""
        async with asyncio.timeout(_LIMIT):
            while len(found := [line for line in self.all if text in line]) < count:
                assert not self._ended, f"ended without writing {text!r} {count} times"
                self._news.clear()
                await self._news.wait()
        return found[count - 1]

    async def follow(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            self.all.append(line.decode().rstrip("\n"))
            self._news.set()
        self._ended = True
        self._news.set()


class Running:
    """A process that goes on until it is told to end."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.out, self.err = Lines(), Lines()

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ends(self) -> int:
        async with asyncio.timeout(_LIMIT):
            return await self.process.wait()


def python(*arguments: object) -> list[str]:
    return [sys.executable, *map(str, arguments)]


async def ended(command: list[str], environment: Mapping[str, str] | None = None) -> Ended:
    """Runs `command` to its end; a command of plugwright in a fork of a process that has loaded its code."""
    if command[:3] == python("-m", "plugwright") and not any(name.startswith(_AT_START) for name in environment or ()):
        return await asyncio.to_thread(_ended_fork, command[3:], _environment(environment))
    process = await _start(command, environment)
    async with asyncio.timeout(_LIMIT):
        out, err = await process.communicate()
    return Ended(await process.wait(), out.decode(), err.decode())


@asynccontextmanager
async def running(
    command: list[str], environment: Mapping[str, str] | None = None, *, stdin: bool = False, stderr: int | None = None
) -> AsyncIterator[Running]:
    """Runs `command` while inside; it is ended by SIGTERM, if it has not ended yet.

    `stdin`: a pipe instead of nothing; `stderr`: a descriptor that is the test's own business.
    """
    process = await _start(command, environment, _PIPE if stdin else _NOTHING, stderr or _PIPE)
    started = Running(process)
    streams = ((started.out, process.stdout), (started.err, process.stderr))
    readers = [asyncio.create_task(lines.follow(stream)) for lines, stream in streams if stream is not None]
    try:
        yield started
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            await started.ends()
        except TimeoutError:
            process.kill()
        await asyncio.gather(*readers)
        print(*started.err.all, sep="\n")  # shown with a test that fails


@dataclass(frozen=True, slots=True)
class Node:
    """One node's directories; `root` is the kubelet's."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "etc" / "plugwright.yaml"

    @property
    def control(self) -> Path:
        return self.root / "run" / "control.sock"

    @property
    def state(self) -> Path:
        return self.root / "state"

    def configure(self, **mocks: Mapping[str, object]) -> None:
        """`gpu={"count": 2}` is two devices of `mock/gpu`. At once: nobody reads half of it."""
        self.config.parent.mkdir(exist_ok=True)
        new = self.config.with_name("new")
        new.write_text(configuration(**mocks))
        new.replace(self.config)

    @asynccontextmanager
    async def daemon(self, *flags: object) -> AsyncIterator[Running]:
        """`plugwright run` while inside, from its first word on; nothing may make it write a traceback."""
        async with running(self.command(*flags)) as daemon:
            if "--log-level" not in flags:
                await daemon.err.until("")
            yield daemon
        assert "Traceback" not in "\n".join(daemon.err.all)

    def command(self, *flags: object) -> list[str]:
        places = ["--kubelet-dir", self.root, "--state-dir", self.state, "--control-socket", self.control]
        return python("-m", "plugwright", "run", "-c", self.config, *places, *flags)

    async def ask(self, *arguments: object) -> Ended:
        """One of the commands that speak with the daemon."""
        return await ended(python("-m", "plugwright", *arguments, "--control-socket", self.control))

    def watch(self, *arguments: object) -> AbstractAsyncContextManager[Running]:
        command = ["-m", "plugwright", "status", "--watch", *arguments, "--control-socket", self.control]
        return running(python(*command))


def configuration(**mocks: Mapping[str, object]) -> str:
    """JSON, which is YAML too."""
    return json.dumps({"resources": [{"name": f"mock/{name}", "mock": mock} for name, mock in mocks.items()]})


def _environment(environment: Mapping[str, str] | None) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PLUGWRIGHT_")}
    added = dict(environment or {})
    if "PYTHONPATH" in added and "PYTHONPATH" in clean:  # the code under test may be found by it
        added["PYTHONPATH"] += os.pathsep + clean["PYTHONPATH"]
    return {**clean, **added}


async def _start(
    command: list[str], environment: Mapping[str, str] | None, stdin: int = _NOTHING, stderr: int = _PIPE
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=stdin,
        stdout=_PIPE,
        stderr=stderr,
        limit=_LONGEST_LINE,
        env=_environment(environment),
    )


def _ended_fork(arguments: list[str], environment: dict[str, str]) -> Ended:
    variables = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
    request = command_server.CommandRequest([*map(os.fsencode, arguments)], variables, os.fsencode(Path.cwd()))
    with (
        TemporaryFile() as out,
        TemporaryFile() as err,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection,
    ):
        with _STARTING:
            server = _command_server()
        connection.settimeout(_LIMIT)
        connection.connect(f"\0{server}")
        socket.send_fds(connection, [msgspec.msgpack.encode(request)], [out.fileno(), err.fileno()])
        code = int(connection.recv(command_server.REQUEST_SIZE))
        out.seek(0)
        err.seek(0)
        return Ended(code, out.read().decode(), err.read().decode())


@cache
def _command_server() -> str:
    """The name of the socket of the server of this process, started with the first request."""
    name = f"plugwright-commands-{os.getpid()}"
    program = [sys.executable, command_server.__file__, name]
    server = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdout
    assert server.stdout.readline() == b"ready\n"
    atexit.register(server.communicate)
    return name
