"""The process runtime: a pod's containers as local processes, with what their devices gave them.

`run` takes a pod from its init containers to the end of its last container, and leaves nothing running behind it:
each container is a process group of its own. Mounts and device nodes are `enclosure`'s work, in a mount namespace
where the system permits one. There is no image: a process sees this machine's files, and a minimal environment.
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

from plugwright.kubelet import sandbox
from plugwright.kubelet.events import StateChange
from plugwright.kubelet.pod_table import Container, Pod, RunContainerOptions
from plugwright.kubelet.pods import ContainerKind
from plugwright.system import processes

__all__ = ["GRACE", "Output", "Tell", "expanded", "run"]

GRACE = 2.0  # seconds from SIGTERM to SIGKILL
_PASSED_ON = ("HOME", "LANG", "PATH", "TZ", "USER")  # of our own environment; the rest would look like the plugin's
_LONGEST_LINE = 2**16
_REFERENCE = re.compile(r"\$(?:\$|\(([^()]*)\))")


@dataclass(frozen=True, slots=True)
class Output:
    """One line that a container wrote; `about` is namespace/pod/container."""

    about: str
    text: str


Tell = Callable[[StateChange | Output], None]


async def run(pod: Pod, tell: Tell, grace: float = GRACE) -> Mapping[str, int]:
    """The exit codes of the containers that were started; cancelled, it ends them all."""
    codes: dict[str, int] = {}
    async with asyncio.TaskGroup() as tasks:
        beside: list[asyncio.Task[None]] = []
        mains: list[asyncio.Task[None]] = []
        for name, container in pod.containers.items():
            process = _Process(f"{pod.spec.key}/{name}", pod.name, tell, grace)
            life = _live(process, container, codes)
            if container.spec.kind is not ContainerKind.INIT:
                (mains if container.spec.kind is ContainerKind.MAIN else beside).append(tasks.create_task(life))
                continue
            await life
            if codes.get(name):
                break  # those after it wait for it to end well
        if mains:
            await asyncio.wait(mains)
        for each in beside:
            each.cancel()
    return codes


async def _live(process: "_Process", container: Container, codes: dict[str, int]) -> None:
    if container.granted is None:
        return  # it waits: the kubelet could not start it
    if not container.spec.command:
        process.tell(StateChange("not started", process.about, "it has no command, and there is no image to have one"))
        return
    codes[container.spec.name] = await process.run(container.spec.command, container.granted)


@dataclass(frozen=True, slots=True)
class _Process:
    about: str
    host: str
    tell: Tell
    grace: float

    async def run(self, command: tuple[str, ...], granted: RunContainerOptions) -> int:
        environment = self._environment(granted)
        words = [expanded(word, environment) for word in command]
        try:
            async with self._started(words, environment, granted) as process:
                self.tell(StateChange("running", self.about, f"pid {process.pid}: {shlex.join(words)}"))
                code = await process.wait()
        except (OSError, ValueError) as error:  # such as a NUL in a plugin's env
            self.tell(StateChange("ended", self.about, f"cannot be started: {error}"))
            return sandbox.CANNOT_START
        self.tell(StateChange("ended", self.about, _how(code)))
        return code

    def _environment(self, granted: RunContainerOptions) -> dict[str, str]:
        own = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        return {**own, "HOSTNAME": self.host, **granted.env}

    @asynccontextmanager
    async def _started(
        self, words: list[str], environment: Mapping[str, str], granted: RunContainerOptions
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        places = json.dumps(_places(granted))
        async with _pipe() as (stream, writing):
            # Isolated: what a plugin puts into PYTHONPATH is for the command, not for what starts it.
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", sandbox.__file__, places, *words),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                env=environment,
                start_new_session=True,
            )
            writing.close()
            async with asyncio.TaskGroup() as tasks:
                listener = tasks.create_task(self._listen(stream, granted))
                try:
                    yield process
                finally:
                    await processes.end(process, self.grace)
                    await _finish(listener)

    async def _listen(self, stream: asyncio.StreamReader, granted: RunContainerOptions) -> None:
        lines = _lines(stream)
        for note in json.loads(await anext(lines, "[]")):
            self.tell(StateChange("limited", self.about, note))
        if granted.cdi:
            self.tell(StateChange("limited", self.about, f"CDI devices are only named here: {', '.join(granted.cdi)}"))
        async for line in lines:
            self.tell(Output(self.about, line))


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """`$(NAME)` as in a container's command: what is not known stays, `$$` is one `$`."""
    return _REFERENCE.sub(lambda found: "$" if found[1] is None else environment.get(found[1], found[0]), text)


def _places(granted: RunContainerOptions) -> list[sandbox.Place]:
    mounts = [(each.host_path, each.container_path, each.read_only) for each in granted.mounts]
    return [*mounts, *((each.host_path, each.container_path, False) for each in granted.nodes)]


@asynccontextmanager
async def _pipe() -> AsyncIterator[tuple[asyncio.StreamReader, BinaryIO]]:
    """Not the subprocess's own pipe: a grandchild that holds it would keep us waiting for the process."""
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
    while chunk := await stream.read(_LONGEST_LINE):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        for line in lines:
            yield line.decode(errors="replace").rstrip("\r")
    if rest:
        yield rest.decode(errors="replace")


async def _finish(listener: asyncio.Task[None]) -> None:
    """What was written last is heard; something that left the group may keep the pipe open for ever."""
    await asyncio.wait([listener], timeout=GRACE)
    listener.cancel()


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
