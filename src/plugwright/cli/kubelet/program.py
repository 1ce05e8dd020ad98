"""An emulated kubelet as a program: until a signal ends it, or until the pods it was given are through.

Its pods are `emulated_node`'s; how everything looks is `kubelet_view`'s.

The pods of an emulated kubelet that runs as a program: asked for, waited for, started and ended.

What a scheduler and a container runtime do around the kubelet is here. The program itself is `emulation`, the kubelet
`plugwright.kubelet`.
"""

import asyncio
import itertools
import signal
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from plugwright.cli.kubelet.pod_files import Changes, Folder
from plugwright.cli.kubelet.view import Show, Shown
from plugwright.errors import KubeletError, PodRefused
from plugwright.kubelet import ContainerKind, Kubelet, KubeletSettings, Phase, Pod, PodSpec, processes
from plugwright.kubelet.devicemanager.devices import DeviceCount
from plugwright.kubelet.events import StateChange
from plugwright.kubelet.pod_table import RunContainerOptions
from plugwright.kubelet.processes import Output
from plugwright.system.concurrency import Latest
from plugwright.system.inotify import Directory

__all__ = ["Node", "Plan", "emulate"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for on the command line."""

    root: Path
    settings: KubeletSettings
    pods: tuple[PodSpec, ...] = ()
    folder: Path | None = None
    starts: bool = False  # containers as processes
    once: bool = False  # to the end of these pods, not to a signal
    timeout: float = 60.0  # how long a pod waits for its resources
    strict: bool = False


@dataclass(frozen=True, slots=True)
class _Life:
    """One pod from the moment it is asked for; `task` is over when it was refused or has ended."""

    spec: PodSpec
    task: asyncio.Task[bool]


class Node:
    """The pods, each in a task of its own, and what is told of them."""

    def __init__(self, kubelet: Kubelet, plan: Plan, show: Show, tasks: asyncio.TaskGroup) -> None:
        self._kubelet = kubelet
        self._plan = plan
        self._show = show
        self._tasks = tasks
        self._offered: Latest[Mapping[str, DeviceCount]] = Latest({})
        self._lives: dict[str, _Life] = {}
        self._names: dict[str, str] = {}  # of every pod there ever was, by uid
        self._numbers = itertools.count(1)
        self._restarting = asyncio.Lock()

    async def follow(self) -> None:
        async with aclosing(self._kubelet.events()) as events:
            async for event in events:
                self.show(event)
                self._offered.publish(self._counts())

    def show(self, event: Shown) -> None:
        if isinstance(event, StateChange) and event.kind == "health":
            if event.about not in self._names:
                return  # of a pod that only the checkpoint remembers: nobody has a status of it to look at
            event = replace(event, about=self._names[event.about])
        elif isinstance(event, StateChange) and event.kind == "freed":
            event = replace(event, about=self._names.get(event.about, f"{event.about}, a pod of an earlier run"))
        self._show(event, self._granted(event))

    def add(self, handle: str, pod: PodSpec) -> None:
        name = f"{pod.name}{next(self._numbers)}" if pod.name.endswith("-") else pod.name
        # A pod made anew has a new id: with the old one it would be given what an earlier one has left.
        spec = replace(pod, name=name, uid=str(uuid.uuid4()))
        self._names[spec.uid] = spec.key
        self._lives[handle] = _Life(spec, self._tasks.create_task(self._live(spec)))

    async def remove(self, handle: str) -> None:
        """First its processes end, then the kubelet forgets it."""
        life = self._lives.pop(handle)
        life.task.cancel()
        await asyncio.wait([life.task])
        pod = self._find(life.spec)
        if pod is not None:
            await self._kubelet.remove(pod)

    async def apply(self, changes: Changes) -> None:
        for name, problem in changes.problems.items():
            self.show(StateChange("invalid", name, problem))
        for key in changes.removed:
            await self.remove(key)
        for key, pod in changes.added.items():
            self.add(key, pod)

    async def restart(self) -> None:
        """Containers run on; those of pods that the new kubelet refuses are ended."""
        async with self._restarting:
            self.show(StateChange("restarting", f"kubelet {self._plan.settings.version}"))
            await self._kubelet.restart()
            for life in self._lives.values():
                pod = self._find(life.spec)
                if pod is not None and pod.phase is Phase.FAILED:
                    life.task.cancel()

    async def through(self) -> None:
        """Until every pod that there is was refused, or admitted, or as a process has ended."""
        if self._lives:
            await asyncio.wait([life.task for life in self._lives.values()])

    async def end(self) -> None:
        for life in self._lives.values():
            life.task.cancel()
        await self.through()

    @property
    def went_well(self) -> bool:
        tasks = [life.task for life in self._lives.values()]
        return all(task.done() and not task.cancelled() and task.result() for task in tasks)

    async def _live(self, spec: PodSpec) -> bool:
        is_in_time = await self._wait(spec)
        try:
            pod = await self._kubelet.admit(spec)
        except PodRefused:
            return False  # the kubelet has said so itself
        except KubeletError as error:
            self.show(StateChange("refused", spec.key, str(error)))
            return False
        has_started = self._check_started(pod)
        ended_well = await self._run(pod) if self._plan.starts else True
        return is_in_time and has_started and ended_well

    async def _wait(self, spec: PodSpec) -> bool:
        """As a scheduler, which sends a pod where its resources are; whether they came in time."""
        wanted = {name: spec.total(name) for name in spec.resources if "/" in name and spec.total(name) > 0}
        missing = _missing(self._counts(), wanted)
        if not missing or not self._plan.timeout:
            return True
        self.show(StateChange("waiting", spec.key, f"at most {self._plan.timeout:g} s, because {missing}"))
        try:
            async with asyncio.timeout(self._plan.timeout):
                await self._offered.until(lambda counts: not _missing(counts, wanted))
        except TimeoutError:
            missing = _missing(self._counts(), wanted)
            self.show(StateChange("not waiting", spec.key, f"{missing}; the kubelet gets the pod all the same"))
            return False
        return True

    def _check_started(self, pod: Pod) -> bool:
        waiting = [(name, each) for name, each in pod.containers.items() if each.reason]
        for name, each in waiting:
            self.show(StateChange("waiting", f"{pod.spec.key}/{name}", f"{each.reason}: {each.message}".rstrip(": ")))
        return not waiting

    async def _run(self, pod: Pod) -> bool:
        """The exit codes are told to the kubelet: a container that ended does not run when it restarts."""

        def tell(event: StateChange | Output) -> None:
            self.show(event)
            name = event.about.rpartition("/")[2]
            if isinstance(event, StateChange) and event.kind == "ended" and _goes_on(pod, name):
                self._kubelet.stop_container(pod, name)

        codes = await processes.run(pod, tell)
        mains = [each.name for each in pod.spec.containers if each.kind is ContainerKind.MAIN]
        if all(codes.get(name) == 0 for name in mains):
            self._kubelet.finish(pod)
        return all(code == 0 for code in codes.values())

    def _counts(self) -> Mapping[str, DeviceCount]:
        try:
            return self._kubelet.node()
        except KubeletError:  # while it restarts
            return {}

    def _find(self, spec: PodSpec) -> Pod | None:
        return next((pod for pod in self._kubelet.pods if pod.uid == spec.uid), None)

    def _granted(self, event: Shown) -> RunContainerOptions | None:
        """What a container got that has just been started; its own variables are known to whoever wrote them."""
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


def _goes_on(pod: Pod, name: str) -> bool:
    return pod.phase is Phase.RUNNING and pod.containers[name].running


def _missing(counts: Mapping[str, DeviceCount], wanted: Mapping[str, int]) -> str:
    """What a node does not have, in words; nothing when it has it all."""
    words = []
    for resource, number in sorted(wanted.items()):
        found = counts.get(resource)
        if found is None:
            words.append(f"no plugin has listed {resource}")
        elif found.allocatable < number:
            words.append(f"{resource} has {found.allocatable} healthy devices of {number}")
    return ", ".join(words)


_SETTLE = 0.1  # an editor needs more than one step to write a file
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def emulate(plan: Plan, show: Show, begin: Callable[[Kubelet], None]) -> bool:
    """Until a signal, or until the pods are through; whether everything went well."""
    async with asyncio.TaskGroup() as followers, Kubelet(plan.root, plan.settings) as kubelet:
        begin(kubelet)
        async with asyncio.TaskGroup() as tasks:
            node = Node(kubelet, plan, show, tasks)
            followers.create_task(node.follow())  # ends with the kubelet, when all has been shown
            well = await _live(node, plan, tasks)
    return well and not (plan.strict and kubelet.findings)


async def _live(node: Node, plan: Plan, tasks: asyncio.TaskGroup) -> bool:
    stop = asyncio.Event()
    restarts: list[asyncio.Task[None]] = []
    with _signals(stop, lambda: restarts.append(tasks.create_task(node.restart()))):
        for number, pod in enumerate(plan.pods):
            node.add(f"#{number}", pod)
        folder = Folder(plan.folder) if plan.folder is not None else None
        if folder is not None:
            await node.apply(folder.look())
        work = tasks.create_task(node.through() if plan.once else _watch(node, plan.folder, folder))
        ended = tasks.create_task(stop.wait())
        await asyncio.wait({ended, work}, return_when=asyncio.FIRST_COMPLETED)
        well = not plan.once or node.went_well
        for task in (ended, work, *restarts):
            task.cancel()  # a plugin may hang, and with it what asks it
        await node.end()
    return well


async def _watch(node: Node, path: Path | None, folder: Folder | None) -> None:
    """For ever."""
    if path is None or folder is None:
        await asyncio.Event().wait()
        return
    directory = Directory(path, writes=True)
    async with directory.watching():
        async for _ in directory.ticks.changes():
            await asyncio.sleep(_SETTLE)
            await node.apply(folder.look())


@contextmanager
def _signals(stop: asyncio.Event, restart: Callable[[], object]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    wanted: dict[signal.Signals, Callable[[], object]] = {**dict.fromkeys(_ENDING, stop.set), signal.SIGUSR1: restart}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        del wanted[signal.SIGHUP]  # nohup: it is to outlive its terminal
    for number, heed in wanted.items():
        loop.add_signal_handler(number, heed)
    try:
        yield
    finally:
        for number in wanted:
            loop.remove_signal_handler(number)
