"""The process runtime: the containers of a pod as local processes, with the options from their devices.

`run` takes a pod from its init containers to the end of its last container and leaves no process behind: each container
is a process group of its own. Mounts and device nodes are `sandbox`, in a mount namespace where the system permits one.
There is no image: a process sees this machine's files and a minimal environment.
"""

import asyncio
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import BinaryIO

from plugwright.errors import PlugwrightError
from plugwright.kubelet import sandbox
from plugwright.kubelet.events import StateChange
from plugwright.kubelet.pod_table import Container, Pod, RunContainerOptions
from plugwright.kubelet.pods import ContainerKind
from plugwright.system import processes

__all__ = ["STOP_GRACE", "ApplyCdi", "Output", "Report", "expand_references", "run", "without_cdi"]

STOP_GRACE = 2.0  # seconds from SIGTERM to SIGKILL
_INHERITED = ("HOME", "LANG", "PATH", "TZ", "USER")  # of our own environment; more could be taken for the plugin's
_MAX_LINE = 2**16
_REFERENCE = re.compile(r"\$(?:\$|\(([^()]*)\))")


@dataclass(frozen=True, slots=True)
class Output:
    """A line that a container wrote; `about` is namespace/pod/container."""

    about: str
    text: str


Report = Callable[[StateChange | Output], None]
# The options with those of their CDI devices, and what could not be applied.
ApplyCdi = Callable[[RunContainerOptions], tuple[RunContainerOptions, list[str]]]


def without_cdi(granted: RunContainerOptions) -> tuple[RunContainerOptions, list[str]]:
    return granted, [f"CDI devices are not applied: {', '.join(granted.cdi)}"] if granted.cdi else []


async def run(
    pod: Pod, report: Report, grace: float = STOP_GRACE, apply_cdi: ApplyCdi = without_cdi
) -> Mapping[str, int]:
    """Runs the pod; returns the exit codes of the containers that started. Cancelling it ends them all."""
    codes: dict[str, int] = {}
    async with asyncio.TaskGroup() as tasks:
        sidecars: list[asyncio.Task[None]] = []
        mains: list[asyncio.Task[None]] = []
        for name, container in pod.containers.items():
            process = _Process(f"{pod.spec.key}/{name}", pod.name, report, grace, apply_cdi)
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


async def _run_container(process: "_Process", container: Container, codes: dict[str, int]) -> None:
    if container.granted is None:
        return  # the kubelet could not start it
    if not container.spec.command:
        text = "the container has no command, and without an image there is no default"
        process.report(StateChange("not started", process.about, text))
        return
    codes[container.spec.name] = await process.run(container.spec.command, container.granted)


@dataclass(frozen=True, slots=True)
class _Process:
    about: str
    host: str
    report: Report
    grace: float
    apply_cdi: ApplyCdi

    async def run(self, command: tuple[str, ...], granted: RunContainerOptions) -> int:
        try:
            granted, limits = self.apply_cdi(granted)
        except PlugwrightError as error:
            self.report(StateChange("ended", self.about, f"cannot be started: {error}"))
            return sandbox.CANNOT_START
        for limit in limits:
            self.report(StateChange("limited", self.about, limit))
        environment = self._environment(granted)
        arguments = [expand_references(argument, environment) for argument in command]
        try:
            async with self._started(arguments, environment, granted) as process:
                self.report(StateChange("running", self.about, f"pid {process.pid}: {shlex.join(arguments)}"))
                code = await process.wait()
        except (OSError, ValueError) as error:  # such as a NUL in a plugin's env
            self.report(StateChange("ended", self.about, f"cannot be started: {error}"))
            return sandbox.CANNOT_START
        text = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self.report(StateChange("ended", self.about, text))
        return code

    def _environment(self, granted: RunContainerOptions) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        return {**inherited, "HOSTNAME": self.host, **granted.env}

    @asynccontextmanager
    async def _started(
        self, arguments: list[str], environment: Mapping[str, str], granted: RunContainerOptions
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        paths = json.dumps(_paths(granted))
        async with _pipe() as (stream, writing):
            # -I: a PYTHONPATH set by the plugin is for the command, not for the sandbox.
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", sandbox.__file__, paths, *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                env=environment,
                start_new_session=True,
            )
            writing.close()
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(self._read_output(stream))
                try:
                    yield process
                finally:
                    await processes.end(process, self.grace)
                    await _finish(reader)

    async def _read_output(self, stream: asyncio.StreamReader) -> None:
        lines = _lines(stream)
        for problem in json.loads(await anext(lines, "[]")):
            self.report(StateChange("limited", self.about, problem))
        async for line in lines:
            self.report(Output(self.about, line))


def expand_references(text: str, environment: Mapping[str, str]) -> str:
    """Expands `$(NAME)` as in a container's command: an unknown name stays as it is, `$$` is one `$`."""
    return _REFERENCE.sub(lambda match: "$" if match[1] is None else environment.get(match[1], match[0]), text)


def _paths(granted: RunContainerOptions) -> list[sandbox.PathSpec]:
    mounts = [(mount.host_path, mount.container_path, mount.read_only) for mount in granted.mounts]
    return [*mounts, *((node.host_path, node.container_path, False) for node in granted.nodes)]


@asynccontextmanager
async def _pipe() -> AsyncIterator[tuple[asyncio.StreamReader, BinaryIO]]:
    """A pipe of our own: asyncio waits for its pipes to close, and a grandchild may hold one open."""
    reading, writing = os.pipe()
    stream = asyncio.StreamReader()
    with os.fdopen(reading, "rb", 0) as source, os.fdopen(writing, "wb", 0) as sink:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), source
        )
        try:
            yield stream, sink
        finally:
            transport.close()


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    rest = b""
    while chunk := await stream.read(_MAX_LINE):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _MAX_LINE:
            lines, rest = [*lines, rest], b""
        for line in lines:
            yield line.decode(errors="replace").rstrip("\r")
    if rest:
        yield rest.decode(errors="replace")


async def _finish(reader: asyncio.Task[None]) -> None:
    """Reads the last lines; a process that left the group may keep the pipe open for ever."""
    await asyncio.wait([reader], timeout=STOP_GRACE)
    reader.cancel()
