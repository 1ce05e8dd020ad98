"""The process runtime: the containers of a pod as local processes, with the options from their devices.

`run` takes a pod from its init containers to the end of its last container, each run once; `ContainerProcess` is one
run of one container, for a restarting caller. Neither leaves a process behind: each container is its own process group.
`sandbox` makes mounts and device nodes, in a mount namespace if the system permits one. There is no image: a process
sees this machine's files and a minimal environment.
"""

import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol, TypedDict, cast

from plugwright.errors import ContainerConfigError, PlugwrightError
from plugwright.kubelet import sandbox
from plugwright.kubelet.container_input import ContainerInput
from plugwright.kubelet.events import StateChange
from plugwright.kubelet.expansion import expand_references
from plugwright.kubelet.pod_table import Container, Pod, RunContainerOptions
from plugwright.kubelet.pods import ContainerKind
from plugwright.system import processes
from plugwright.system.concurrency import first
from plugwright.system.latest import Latest
from plugwright.system.terminal import TerminalOptions

__all__ = [
    "STOP_GRACE",
    "ApplyCdi",
    "ContainerProcess",
    "Output",
    "ReportEvent",
    "container_environment",
    "granted_paths",
    "run",
    "without_cdi",
]

STOP_GRACE = 2.0  # seconds from SIGTERM to SIGKILL
_INHERITED = ("HOME", "LANG", "PATH", "TZ", "USER")  # of our own environment; more could be taken for the plugin's
_MAX_LINE = 2**16
_READ_SIZE = 2**14  # bytes: a container that writes all the time leaves the event loop time for others


@dataclass(frozen=True, slots=True)
class Output:
    """A line of a container's output; `about` is namespace/pod/container. Of a partial one the end is yet to come."""

    about: str
    text: str
    is_partial: bool = False


class _Readable(Protocol):
    async def read(self, size: int, /) -> bytes: ...


class _PipeOptions(TypedDict):
    stdin: int | BinaryIO
    stdout: BinaryIO
    stderr: BinaryIO


ReportEvent = Callable[[StateChange | Output], None]
# The options with those of their CDI devices, and the failed edits.
ApplyCdi = Callable[[RunContainerOptions], tuple[RunContainerOptions, list[str]]]


def without_cdi(granted: RunContainerOptions) -> tuple[RunContainerOptions, list[str]]:
    return granted, [f"CDI devices are not applied: {', '.join(granted.cdi)}"] if granted.cdi else []


async def run(
    pod: Pod, report: ReportEvent, grace: float = STOP_GRACE, apply_cdi: ApplyCdi = without_cdi
) -> Mapping[str, int]:
    """Runs the pod; returns the exit codes of the started containers. Cancelling it ends them all."""
    codes: dict[str, int] = {}
    async with asyncio.TaskGroup() as tasks:
        sidecars: list[asyncio.Task[None]] = []
        mains: list[asyncio.Task[None]] = []
        for name, container in pod.containers.items():
            process = ContainerProcess(f"{pod.spec.key}/{name}", pod.name, report, grace, apply_cdi)
            work = _run_container(process, container, codes)
            if container.spec.kind is not ContainerKind.INIT:
                (mains if container.spec.kind is ContainerKind.MAIN else sidecars).append(tasks.create_task(work))
                continue
            await work
            if codes.get(name):
                break  # the containers after a failed init container do not start
        if mains:
            await asyncio.wait(mains)
        for sidecar in sidecars:
            sidecar.cancel()
    return codes


async def _run_container(process: "ContainerProcess", container: Container, codes: dict[str, int]) -> None:
    if container.granted is None:
        return  # the kubelet could not start it
    if not container.spec.command:
        text = "the container has no command, and without an image there is no default"
        process.report(StateChange("not started", process.about, text))
        return
    codes[container.spec.name] = await process.run(container.spec.command, container.granted)


@dataclass(frozen=True, slots=True)
class ContainerProcess:
    """One run of a container. `stop` ends it, after as many seconds of grace as are published.

    `paths` are mounted beside those of its devices; cancelled, it has a grace of `grace` seconds. Without `input` it
    reads nothing.
    """

    about: str
    host: str
    report: ReportEvent
    grace: float = STOP_GRACE
    apply_cdi: ApplyCdi = without_cdi
    paths: Sequence[sandbox.PathSpec] = ()
    directory: str = ""  # working directory of the command; ours if empty
    stop: Latest[float | None] = field(default_factory=lambda: Latest[float | None](None))
    input: ContainerInput | None = None

    async def run(self, command: Sequence[str], granted: RunContainerOptions) -> int:
        """The exit code, negative for a signal; raises `ContainerConfigError` if a required path is not mounted."""
        try:
            granted, limits = self.apply_cdi(granted)
        except PlugwrightError as error:
            self.report(StateChange("ended", self.about, f"cannot be started: {error}"))
            return sandbox.CANNOT_START
        for limit in limits:
            self.report(StateChange("limited", self.about, limit))
        environment = container_environment(self.host, granted)
        arguments = [expand_references(argument, environment) for argument in command]
        refusals: list[str] = []
        try:
            async with self._started(arguments, environment, granted_paths(granted), refusals) as process:
                await first(process.wait(), self._stopped())
                await processes.end(process, self.stop.value or 0.0)
        except (OSError, ValueError) as error:  # such as a NUL in a plugin's env
            self.report(StateChange("ended", self.about, f"cannot be started: {error}"))
            return sandbox.CANNOT_START
        if refusals:
            raise ContainerConfigError("; ".join(refusals))
        code = process.returncode or 0
        text = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self.report(StateChange("ended", self.about, text))
        return code

    @asynccontextmanager
    async def _started(
        self,
        arguments: list[str],
        environment: Mapping[str, str],
        paths: Sequence[sandbox.PathSpec],
        refusals: list[str],
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        all_paths = json.dumps([*paths, *self.paths])
        async with _connected(self.input) as (stream, ends, close_theirs):
            # -I: a PYTHONPATH set by the plugin is for the command, not for the sandbox.
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", sandbox.__file__, all_paths, self.directory, *arguments),
                **ends,
                env=environment,
                start_new_session=True,
            )
            close_theirs()
            async with asyncio.TaskGroup() as tasks:
                text = f"pid {process.pid}: {shlex.join(arguments)}"
                reader = tasks.create_task(self._read_output(stream, text, refusals))
                try:
                    yield process
                finally:
                    await processes.end(process, self.grace)
                    await _finish(reader)

    async def _stopped(self) -> int:
        await self.stop.until(lambda grace: grace is not None)
        return 0

    async def _read_output(self, stream: _Readable, command: str, refusals: list[str]) -> None:
        splitter = _LineSplitter(stream)
        lines = splitter.lines()
        problems = await self._problems(lines)
        refusals += [problem for problem, need in problems if need == sandbox.REQUIRED]
        if refusals:
            return
        self.report(StateChange("running", self.about, command))
        for problem, _ in problems:
            self.report(StateChange("limited", self.about, problem))
        splitter.is_of_terminal = self.input is not None and self.input.is_terminal
        async for line, is_partial in lines:
            self.report(Output(self.about, line, is_partial))

    async def _problems(self, lines: AsyncIterator[tuple[str, bool]]) -> list[tuple[str, str]]:
        """The sandbox's report; output of the dynamic linker, such as about LD_PRELOAD, can precede it."""
        async for line, is_partial in lines:
            try:
                return cast("list[tuple[str, str]]", json.loads(line))
            except ValueError:
                self.report(Output(self.about, line, is_partial))
        return []  # it was killed before it could write them


def container_environment(host: str, granted: RunContainerOptions) -> dict[str, str]:
    """The whole environment of a container's process."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**inherited, "HOSTNAME": host, **granted.env}


def granted_paths(granted: RunContainerOptions) -> list[sandbox.PathSpec]:
    need = sandbox.WANTED
    mounts = [(mount.host_path, mount.container_path, mount.read_only, need) for mount in granted.mounts]
    return [*mounts, *((node.host_path, node.container_path, False, need) for node in granted.nodes)]


@asynccontextmanager
async def _connected(
    given: ContainerInput | None,
) -> AsyncIterator[tuple[_Readable, TerminalOptions | _PipeOptions, Callable[[], None]]]:
    """The output of the process, its ends of the streams, and a call to close our copies of those ends."""
    if given is not None and given.is_terminal:
        with given.terminal() as terminal:
            yield terminal, terminal.options, terminal.close_theirs
        return
    async with _pipe() as (stream, writing):
        ends: _PipeOptions = {"stdin": asyncio.subprocess.DEVNULL, "stdout": writing, "stderr": writing}
        if given is None:
            yield stream, ends, writing.close
            return
        with given.pipe() as reading, os.fdopen(reading, "rb", 0) as source, ExitStack() as theirs:
            theirs.callback(source.close)
            theirs.callback(writing.close)
            yield stream, {**ends, "stdin": source}, theirs.close


@asynccontextmanager
async def _pipe() -> AsyncIterator[tuple[asyncio.StreamReader, BinaryIO]]:
    """A pipe of our own: asyncio waits for its pipes to close, and a grandchild may hold one open."""
    reading, writing = os.pipe()
    stream = asyncio.StreamReader(_READ_SIZE)
    with os.fdopen(reading, "rb", 0) as source, os.fdopen(writing, "wb", 0) as sink:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), source
        )
        try:
            yield stream, sink
        finally:
            transport.close()


class _LineSplitter:
    """Of a terminal, parts of lines are passed on immediately, such as a prompt, and carriage returns are kept."""

    def __init__(self, stream: _Readable) -> None:
        self._stream = stream
        self.is_of_terminal = False

    async def lines(self) -> AsyncIterator[tuple[str, bool]]:
        """Each line, and whether it is only a part: without its end, or too long."""
        rest = b""
        while chunk := await self._stream.read(_READ_SIZE):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                text = line.decode(errors="replace")
                yield text if self.is_of_terminal else text.rstrip("\r"), False
            if len(rest) > _MAX_LINE or (rest and self.is_of_terminal and _is_whole_text(rest)):
                yield rest.decode(errors="replace"), True
                rest = b""
        if rest:
            yield rest.decode(errors="replace"), True


def _is_whole_text(data: bytes) -> bool:
    """False for text ending within a character; anything but text counts as complete."""
    try:
        data[-4:].decode()
    except UnicodeDecodeError as error:
        return error.reason != "unexpected end of data"
    return True


async def _finish(reader: asyncio.Task[None]) -> None:
    """Reads the last lines; a process outside the group may keep the pipe open indefinitely."""
    await asyncio.wait([reader], timeout=STOP_GRACE)
    reader.cancel()
