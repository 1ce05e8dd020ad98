"""An emulated kubelet as a program: the node around it, until a signal or until the given pods are done.

It does the work of a scheduler and a container runtime: a pod waits for its resources, is admitted, runs as processes
and ends. `plugwright.kubelet` is the kubelet itself; the caller produces the output.
"""

import asyncio
import itertools
import signal
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from plugwright.cluster.cdi_devices import apply_cdi_devices
from plugwright.cluster.standalone.pod_changes import Claim, PodChanges, PodSource
from plugwright.cluster.standalone.pod_claims import PodClaims
from plugwright.errors import ConfigError, KubeletError, PodRefused
from plugwright.kubelet import ContainerKind, Kubelet, KubeletSettings, Phase, Pod, PodSpec, processes
from plugwright.kubelet.devicemanager.devices import DeviceCount
from plugwright.kubelet.events import Event, StateChange
from plugwright.kubelet.pod_table import RunContainerOptions
from plugwright.kubelet.processes import Output
from plugwright.sdk import cdi
from plugwright.system.concurrency import single_error
from plugwright.system.inotify import settled_changes
from plugwright.system.latest import Latest
from plugwright.system.stop_signals import stop_on_signals

__all__ = ["KubeletOptions", "PodRunner", "Show", "Shown", "emulate", "run"]

Shown = Event | Output
Show = Callable[[Shown, RunContainerOptions | None], None]  # with the options of a container that has just started
Begin = Callable[[Kubelet, Path | None], None]  # called once, with the path of the drivers' kubeconfig

_PREPARE_RETRY = 10.0  # seconds; shorter than in a real kubelet, for waiting users


@dataclass(frozen=True, slots=True)
class KubeletOptions:
    """The options of the command line."""

    root: Path
    settings: KubeletSettings
    pods: tuple[PodSpec, ...] = ()
    folder: PodSource | None = None
    starts: bool = False  # containers run as processes
    once: bool = False  # until these pods are done, not until a signal
    timeout: float = 60.0  # how long a pod waits for its resources
    strict: bool = False
    cdi_dirs: tuple[Path, ...] = (cdi.STATIC, cdi.DYNAMIC)  # where a runtime searches the specs of CDI devices
    api: bool = False  # with an API server for DRA drivers
    node_name: str = "node"
    claims: tuple[Claim, ...] = ()


def run(options: KubeletOptions, show: Show, begin: Begin) -> bool:
    """Runs until a signal, or until the pods are done; returns whether everything succeeded."""
    try:
        return asyncio.run(emulate(options, show, begin))
    except BaseExceptionGroup as group:
        raise single_error(group) from None


async def emulate(
    options: KubeletOptions, show: Show, begin: Begin, attach: Callable[["PodRunner"], None] | None = None
) -> bool:
    """Like `run`, in the caller's event loop; `attach` gets the runner of the pods before the first pod is added."""
    claims = PodClaims(options.node_name, served=options.api)
    for claim in options.claims:
        claims.put(claim)
    async with (
        asyncio.TaskGroup() as followers,
        Kubelet(options.root, options.settings, resource_api=claims.api) as kubelet,
        claims.served(kubelet.paths.root) as kubeconfig,
    ):
        begin(kubelet, kubeconfig)
        async with asyncio.TaskGroup() as tasks:
            runner = PodRunner(kubelet, options, show, tasks, claims)
            if attach is not None:
                attach(runner)
            followers.create_task(runner.follow())  # ends with the kubelet, after the last event
            succeeded = await _run(runner, options, tasks)
    return succeeded and not (options.strict and kubelet.findings)


async def _run(runner: "PodRunner", options: KubeletOptions, tasks: asyncio.TaskGroup) -> bool:
    stop = asyncio.Event()
    restarts: list[asyncio.Task[None]] = []
    with _signal_handlers(stop, lambda: restarts.append(tasks.create_task(runner.restart()))):
        for number, pod in enumerate(options.pods):
            runner.add(f"#{number}", pod)
        if options.folder is not None:
            await runner.apply(options.folder.scan())
        work = tasks.create_task(runner.wait() if options.once else _watch(runner, options.folder))
        stopped = tasks.create_task(stop.wait())
        await asyncio.wait({stopped, work}, return_when=asyncio.FIRST_COMPLETED)
        succeeded = not options.once or runner.succeeded
        for task in (stopped, work, *restarts):
            task.cancel()  # a plugin can hang in a call, which also blocks the task that made it
        await runner.end()
    return succeeded and not (options.once and runner.is_terminating)


async def _watch(runner: "PodRunner", folder: PodSource | None) -> None:
    """Applies the changes of the folder; never returns."""
    if folder is None:
        await asyncio.Event().wait()
        return
    async with aclosing(settled_changes(folder.path)) as changes:
        async for _ in changes:
            await runner.apply(folder.scan())


@contextmanager
def _signal_handlers(stop: asyncio.Event, restart: Callable[[], object]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    with stop_on_signals(stop):
        loop.add_signal_handler(signal.SIGUSR1, restart)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGUSR1)


@dataclass(frozen=True, slots=True)
class _PodTask:
    """A pod from its submission on; `task` ends when the pod is refused or done."""

    spec: PodSpec
    task: asyncio.Task[bool]


class PodRunner:
    """The pods, each in a separate task."""

    def __init__(
        self, kubelet: Kubelet, options: KubeletOptions, show: Show, tasks: asyncio.TaskGroup, claims: PodClaims
    ) -> None:
        self._kubelet = kubelet
        self._claims = claims
        self._options = options
        self._show = show
        self._tasks = tasks
        self._node_status: Latest[Mapping[str, DeviceCount]] = Latest({})
        self._pods: dict[str, _PodTask] = {}
        self._keys: dict[str, str] = {}  # of all pods so far, by uid
        self._numbers = itertools.count(1)
        self._restart_lock = asyncio.Lock()

    async def follow(self) -> None:
        async with aclosing(self._kubelet.events()) as events:
            async for event in events:
                self.show(event)
                self._node_status.publish(self._counts())

    def show(self, event: Shown) -> None:
        if isinstance(event, StateChange) and event.kind == "health":
            if event.about not in self._keys:
                return  # a pod known only from the checkpoint has no status
            event = replace(event, about=self._keys[event.about])
        elif isinstance(event, StateChange) and event.kind == "freed":
            event = replace(event, about=self._keys.get(event.about, f"{event.about}, a pod of an earlier run"))
        self._show(event, self._granted(event))

    def add(self, handle: str, pod: PodSpec) -> None:
        name = f"{pod.name}{next(self._numbers)}" if pod.name.endswith("-") else pod.name
        # A new uid for each submission: the old uid would get the devices recorded for the earlier pod.
        spec = replace(pod, name=name, uid=str(uuid.uuid4()))
        self._keys[spec.uid] = spec.key
        self._pods[handle] = _PodTask(spec, self._tasks.create_task(self._run_pod(spec)))

    async def resubmit(self, handle: str) -> None:
        """Removes a pod and submits it again, as a new pod of the same name."""
        spec = self._pods[handle].spec
        await self.remove(handle)
        self.add(handle, spec)

    @property
    def handles(self) -> tuple[str, ...]:
        return tuple(self._pods)

    @property
    def ended(self) -> tuple[str, ...]:
        """Handles of refused pods, and of pods without a running container."""
        return tuple(handle for handle, pod_task in self._pods.items() if self._has_ended(pod_task))

    def _has_ended(self, pod_task: _PodTask) -> bool:
        pod = self._find(pod_task.spec)
        runs = pod is not None and any(container.running for container in pod.containers.values())
        return pod_task.task.done() and not runs

    async def remove(self, handle: str) -> None:
        """Ends the processes of a pod, then removes it from the kubelet."""
        removed = self._pods.pop(handle)
        removed.task.cancel()
        await asyncio.wait([removed.task])
        pod = self._find(removed.spec)
        if pod is not None:
            await self._kubelet.remove(pod)
            self._claims.release(pod.spec)

    async def apply(self, changes: PodChanges) -> None:
        for name, problem in changes.problems.items():
            self.show(StateChange("invalid", name, problem))
        for key in changes.removed:
            await self.remove(key)
        for key in changes.removed_claims:
            self._claims.remove(key)
        for key, claim in changes.claims.items():
            try:
                self._claims.put(claim)
            except ConfigError as error:
                self.show(StateChange("invalid", key, str(error)))
        for key, pod in changes.added.items():
            self.add(key, pod)

    async def restart(self) -> None:
        """Restarts the kubelet beside running containers; ends those of pods refused by it."""
        async with self._restart_lock:
            self.show(StateChange("restarting", f"kubelet {self._options.settings.version}"))
            await self._kubelet.restart()
            for pod_task in self._pods.values():
                pod = self._find(pod_task.spec)
                if pod is not None and pod.phase is Phase.FAILED:
                    pod_task.task.cancel()

    async def wait(self) -> None:
        """Returns when every pod is refused or admitted, and its processes have ended."""
        if self._pods:
            await asyncio.wait([pod_task.task for pod_task in self._pods.values()])

    async def end(self) -> None:
        """Ends the pods; removes those with claims, to leave nothing prepared by their drivers."""
        for pod_task in self._pods.values():
            pod_task.task.cancel()
        await self.wait()
        for pod in self._kubelet.pods:
            if pod.spec.claims and not pod.terminating:
                await self._kubelet.remove(pod)

    @property
    def is_terminating(self) -> bool:
        """Whether a driver has failed to unprepare the claims of a pod."""
        return any(pod.terminating for pod in self._kubelet.pods)

    @property
    def succeeded(self) -> bool:
        tasks = [pod_task.task for pod_task in self._pods.values()]
        return all(task.done() and not task.cancelled() and task.result() for task in tasks)

    async def _run_pod(self, spec: PodSpec) -> bool:
        has_resources = await self._wait_for_resources(spec) and await self._wait_for_claims(spec)
        self._claims.reserve(spec)
        try:
            pod = await self._kubelet.admit(spec)
        except PodRefused:
            return False  # the kubelet has recorded it
        except KubeletError as error:
            self.show(StateChange("refused", spec.key, str(error)))
            return False
        has_started = self._check_started(pod)
        if not self._options.once:
            await self._retry_claims(pod)
        has_succeeded = await self._run_processes(pod) if self._options.starts else True
        return has_resources and has_started and has_succeeded

    async def _wait_for_resources(self, spec: PodSpec) -> bool:
        """Waits, as a scheduler does, until the node has the resources; returns whether it has them in time."""
        requests = {name: spec.requested(name) for name in spec.resources if "/" in name and spec.requested(name) > 0}
        missing = _missing(self._counts(), requests)
        if not missing or not self._options.timeout:
            return True
        self.show(StateChange("waiting", spec.key, f"at most {self._options.timeout:g} s, because {missing}"))
        try:
            async with asyncio.timeout(self._options.timeout):
                await self._node_status.until(lambda counts: not _missing(counts, requests))
        except TimeoutError:
            missing = _missing(self._counts(), requests)
            self.show(StateChange("not waiting", spec.key, f"{missing}; the pod is submitted anyway"))
            return False
        return True

    async def _wait_for_claims(self, spec: PodSpec) -> bool:
        """Waits, as a scheduler does, until the claims are allocated; returns whether they are in time."""
        problem = self._claims.unallocated(spec)
        if not problem or not self._options.timeout:
            return True
        self.show(StateChange("waiting", spec.key, f"at most {self._options.timeout:g} s, because {problem}"))
        if await self._claims.until_allocated(spec, self._options.timeout):
            return True
        self.show(
            StateChange("not waiting", spec.key, f"{self._claims.unallocated(spec)}; the pod is submitted anyway")
        )
        return False

    async def _retry_claims(self, pod: Pod) -> None:
        """Retries the preparation of claims; a real kubelet does so after 60 to 90 seconds (11.15)."""
        while any(container.reason == "ContainerCreating" for container in pod.containers.values()):
            await asyncio.sleep(_PREPARE_RETRY)
            with suppress(KubeletError):  # it is being restarted
                await self._kubelet.start_waiting(pod)

    def _check_started(self, pod: Pod) -> bool:
        waiting = [(name, container) for name, container in pod.containers.items() if container.reason]
        for name, container in waiting:
            text = f"{container.reason}: {container.message}".rstrip(": ")
            self.show(StateChange("waiting", f"{pod.spec.key}/{name}", text))
        return not waiting

    async def _run_processes(self, pod: Pod) -> bool:
        """Runs the containers, and updates the kubelet's record of running ones; returns whether all succeeded."""

        def report(event: StateChange | Output) -> None:
            self.show(event)
            name = event.about.rpartition("/")[2]
            has_ended = isinstance(event, StateChange) and event.kind == "ended"
            if has_ended and pod.phase is Phase.RUNNING and pod.containers[name].running:
                self._kubelet.stop_container(pod, name)

        apply_cdi = partial(apply_cdi_devices, directories=self._options.cdi_dirs)
        codes = await processes.run(pod, report, apply_cdi=apply_cdi)
        mains = [container.name for container in pod.spec.containers if container.kind is ContainerKind.MAIN]
        if all(codes.get(name) == 0 for name in mains):
            self._kubelet.finish(pod)
        return all(code == 0 for code in codes.values())

    def _counts(self) -> Mapping[str, DeviceCount]:
        try:
            return self._kubelet.node()
        except KubeletError:  # during a restart
            return {}

    def _find(self, spec: PodSpec) -> Pod | None:
        return next((pod for pod in self._kubelet.pods if pod.uid == spec.uid), None)

    def _granted(self, event: Shown) -> RunContainerOptions | None:
        """The options of a newly started container, without the variables of its own spec."""
        if not isinstance(event, StateChange) or event.kind != "started":
            return None
        key, _, name = event.about.rpartition("/")
        pod = next((pod for pod in self._kubelet.pods if pod.spec.key == key), None)
        container = pod.containers.get(name) if pod is not None else None
        if container is None or container.granted is None:
            return None
        own = container.spec.env
        return replace(
            container.granted, env={name: text for name, text in container.granted.env.items() if name not in own}
        )


def _missing(counts: Mapping[str, DeviceCount], requests: Mapping[str, int]) -> str:
    """The missing resources of a node, as text; empty if it has all of them."""
    lacks = []
    for resource, requested in sorted(requests.items()):
        count = counts.get(resource)
        if count is None:
            lacks.append(f"no plugin has listed {resource}")
        elif count.allocatable < requested:
            lacks.append(f"{resource} has {count.allocatable} healthy devices and the pod asks for {requested}")
    return ", ".join(lacks)
