"""A pod's containers as processes: started in order, restarted by the restart policy, and stopped.

`kubelet.processes` runs one run of a container; `restarts` decides on restarts. The `ProcessHost`, the pod's worker,
provides the settings of a container and receives its events.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from plugwright.apiserver.store import Object
from plugwright.cluster.container_logs import ContainerLogs, ContainerLogWriter, LogName
from plugwright.cluster.events import EventRecord
from plugwright.cluster.nodes import restarts
from plugwright.cluster.nodes.container_runs import ContainerRun
from plugwright.cluster.nodes.restarts import CrashLoopBackoff
from plugwright.errors import ContainerConfigError, ContainerWaiting, KubeletError
from plugwright.kubelet.container_input import ContainerInput
from plugwright.kubelet.events import StateChange
from plugwright.kubelet.pod_table import RunContainerOptions
from plugwright.kubelet.processes import STOP_GRACE, ContainerProcess, Output
from plugwright.kubelet.sandbox import PathSpec
from plugwright.system.latest import Latest, Signal

__all__ = ["Launch", "PodProcesses", "ProcessHost", "ProcessTiming", "go_duration"]

_SIGNALLED = 128  # added to the number of the signal that ended a process
_LONGEST_MESSAGE = 4096  # bytes of a termination message
_LAST_LINES, _LAST_BYTES = 80, 2048  # of the log, for a container that failed without a message


@dataclass(frozen=True, slots=True)
class Launch:
    """The settings with which a container is started; it can write its last message to `termination_log`."""

    command: Sequence[str]
    options: RunContainerOptions
    paths: Sequence[PathSpec] = ()
    directory: str = ""
    termination_log: Path | None = None


@dataclass(frozen=True, slots=True)
class ProcessTiming:
    """Seconds until a failed start is retried, and of the first and the longest back-off of an ended container."""

    retry: float = 10.0
    back_off: float = 10.0
    longest_back_off: float = 300.0


class ProcessHost(Protocol):
    @property
    def stored(self) -> Object: ...

    def now(self) -> str: ...

    async def launch(self, container: Object, attempt: int) -> Launch:
        """The container's settings; raises `ContainerWaiting`."""
        ...

    def record(self, event: EventRecord, container: str) -> None: ...

    def record_pulled(self, container: str) -> None: ...

    def record_started(self, container: str) -> None: ...

    def ended(self, container: str) -> None: ...

    def refresh(self) -> None: ...


class PodProcesses:
    """`runs` and `inputs` are the containers' by name.

    `stop` ends all of them, after the published number of seconds of grace.
    """

    def __init__(self, host: ProcessHost, logs: ContainerLogs, timing: ProcessTiming) -> None:
        self.runs = {
            str(container.get("name")): ContainerRun() for container in restarts.containers_of(host.stored["spec"])
        }
        self.inputs = _inputs(host.stored["spec"])
        self.stop: Latest[float | None] = Latest(None)
        self._host, self._logs, self._timing = host, logs, timing
        self._changed = Signal()

    async def run(self) -> None:
        """Returns when no container runs and none will be restarted."""
        spec = self._host.stored["spec"]
        sidecars: list[tuple[str, Latest[float | None], asyncio.Task[None]]] = []
        async with asyncio.TaskGroup() as tasks:
            for container in spec.get("initContainers") or ():
                if restarts.is_sidecar(spec, container):
                    stop: Latest[float | None] = Latest(None)
                    sidecars.append((container["name"], stop, tasks.create_task(self._keep(container, stop))))
                    await self._until_started(container["name"])
                    continue
                await self._keep(container, self.stop)
                if not self.runs[container["name"]].has_succeeded:
                    break
            else:
                mains = [tasks.create_task(self._keep(container, self.stop)) for container in spec["containers"]]
                await asyncio.wait(mains)
            for name, stop, task in reversed(sidecars):
                self.record_killing(name)
                grace = float(spec.get("terminationGracePeriodSeconds") or STOP_GRACE)
                stop.publish(grace if self.stop.value is None else self.stop.value)
                await asyncio.wait([task])

    async def pause(self, seconds: float) -> None:
        """Waits this long, or until stopped."""
        await _pause(seconds, self.stop)

    def record_killing(self, *containers: str) -> None:
        for name in containers:
            if self.runs[name].is_running:
                self._host.record(EventRecord("Killing", f"Stopping container {name}"), name)

    async def _until_started(self, name: str) -> None:
        """Waits for a container to start; an unstarted sidecar blocks the following containers."""
        stopped = self.stop.subscribe(self._changed.notify)
        try:
            await self._changed.until(lambda: self.runs[name].has_started or self.stop.value is not None)
        finally:
            stopped()

    async def _keep(self, container: Object, stop: Latest[float | None]) -> None:
        """Runs a container until it has ended permanently, or is stopped."""
        name, spec = container["name"], self._host.stored["spec"]
        back_off = CrashLoopBackoff(self._timing.back_off, self._timing.longest_back_off)
        code = self.runs[name].exit_code
        if code is not None and not restarts.should_restart(spec, container, code):
            return
        while stop.value is None:
            if not await self._run_once(container, stop):
                await _pause(self._timing.retry, stop)
                continue
            if stop.value is not None or not restarts.should_restart(spec, container, self.runs[name].exit_code or 0):
                break
            await self._wait_for_restart(name, back_off, stop)
        if self.runs[name].termination:
            self._set(name, self.runs[name].waiting("", ""))

    async def _run_once(self, container: Object, stop: Latest[float | None]) -> bool:
        """Runs the container once; returns whether it could be started."""
        name, uid = container["name"], self._host.stored["metadata"]["uid"]
        attempt = self.runs[name].attempt + 1
        try:
            launch = await self._host.launch(container, attempt)
            with self._logs.writing(LogName(uid, name, attempt)) as log:
                code = await self._process(name, launch, log, stop).run(launch.command, launch.options)
                if self.runs[name].attempt < attempt:  # it could not even be executed
                    self._started(name)
                code = code if code >= 0 else _SIGNALLED - code
                message = _message(container, launch, code, log)
        except ContainerWaiting as error:
            self._wait_with(name, error.reason, error.message)
            return False
        except ContainerConfigError as error:
            self._wait_with(name, "CreateContainerError", str(error))
            return False
        except OSError as error:  # its log or its volumes cannot be written
            self._wait_with(name, "CreateContainerError", f"{error.filename or name}: {error.strerror}")
            return False
        except KubeletError:
            return False  # the kubelet is being stopped
        self._host.ended(name)
        self._set(name, self.runs[name].ended(code, self._host.now(), message))
        return True

    def _process(
        self, name: str, launch: Launch, log: ContainerLogWriter, stop: Latest[float | None]
    ) -> ContainerProcess:
        metadata = self._host.stored["metadata"]

        def report(event: StateChange | Output) -> None:
            if isinstance(event, Output):
                log.write(event.text, is_partial=event.is_partial)
            elif event.kind == "running":
                self._started(name)
            elif event.kind == "limited" or event.text.startswith("cannot be started"):
                log.write(f"plugwright: {event.text}")

        return ContainerProcess(
            f"{metadata['namespace']}/{metadata['name']}/{name}",
            metadata["name"],
            report,
            paths=launch.paths,
            directory=launch.directory,
            stop=stop,
            input=self.inputs.get(name),
        )

    def _started(self, name: str) -> None:
        self._host.record_started(name)
        self._set(name, self.runs[name].started(self._host.now()))

    def _wait_with(self, name: str, reason: str, message: str) -> None:
        self._host.record_pulled(name)
        self._host.record(EventRecord("Failed", f"Error: {message}", "Warning"), name)
        self._set(name, self.runs[name].waiting(reason, message))

    async def _wait_for_restart(self, name: str, back_off: CrashLoopBackoff, stop: Latest[float | None]) -> None:
        clock, metadata = asyncio.get_running_loop().time, self._host.stored["metadata"]
        if delay := back_off.delay(clock()):
            pod = f"{metadata['name']}_{metadata['namespace']}({metadata['uid']})"
            text = f"Back-off restarting failed container {name} in pod {pod}"
            self._host.record(EventRecord("BackOff", text, "Warning"), name)
            message = f"back-off {go_duration(delay)} restarting failed container={name} pod={pod}"
            self._set(name, self.runs[name].waiting("CrashLoopBackOff", message))
            await _pause(delay, stop)
        back_off.restarted(clock())

    def _set(self, name: str, run: ContainerRun) -> None:
        self.runs[name] = run
        self._changed.notify()
        self._host.refresh()


def _inputs(spec: Object) -> dict[str, ContainerInput]:
    """The inputs of containers with `stdin` or `tty`."""
    found: dict[str, ContainerInput] = {}
    for container in restarts.containers_of(spec):
        is_open, is_terminal, once = (bool(container.get(name)) for name in ("stdin", "tty", "stdinOnce"))
        if is_open or is_terminal:
            given = ContainerInput(is_open=is_open, is_terminal=is_terminal, closes_with_client=once)
            found[str(container.get("name"))] = given
    return found


async def _pause(seconds: float, stop: Latest[float | None]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.until(lambda grace: grace is not None)


def _message(container: Object, launch: Launch, code: int, log: ContainerLogWriter) -> str:
    text = ""
    if launch.termination_log is not None:
        with suppress(OSError):
            text = launch.termination_log.read_bytes()[-_LONGEST_MESSAGE:].decode("utf-8", "replace")
    if not text and code and container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
        return log.tail(_LAST_LINES, _LAST_BYTES)
    return text


def go_duration(seconds: float) -> str:
    """A duration in Go's format: `10s`, `1m20s`, `50ms`."""
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    parts = [f"{hours:g}h" if hours else "", f"{minutes:g}m" if hours or minutes else "", f"{rest:g}s"]
    return "".join(parts)
