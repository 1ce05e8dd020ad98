"""The pods of one kubelet: which are there, what became of them, and what their containers got.

The answers of several plugins made one: what the container runtime is told.

Pure. The first answer wins; a kubelet takes them in no particular order, here they come sorted by resource, and a
conflict is said, because on a real node either may win.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from plugwright.errors import ContainerWaiting, KubeletError
from plugwright.kubelet.pods import ContainerKind, ContainerSpec, PodSpec
from plugwright.model import some
from plugwright.protocol.messages import AllocateResponse, DeviceSpec, MountSpec

__all__ = ["Conflict", "Container", "Phase", "Pod", "PodTable", "RunContainerOptions", "merge"]

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class RunContainerOptions:
    """What a container gets from its devices: env, mounts, device nodes, annotations and CDI names.

    `env` has the container's own variables too, which win over the plugins'.
    """

    env: Mapping[str, str]
    mounts: tuple[MountSpec, ...]
    nodes: tuple[DeviceSpec, ...]
    annotations: Mapping[str, str]
    cdi: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two plugins want different things in one place."""

    what: str
    key: str
    kept: str
    dropped: str

    def __str__(self) -> str:
        return f"{self.what} {self.key} is {self.kept!r} in one answer and {self.dropped!r} in another"


def merge(
    answers: Sequence[AllocateResponse], own_env: Mapping[str, str]
) -> tuple[RunContainerOptions, list[Conflict]]:
    """One for the runtime, and what it had to leave out (3.54, 3.55)."""
    conflicts: list[Conflict] = []
    env = _texts("env", [answer.env for answer in answers], conflicts)
    mounts = [each for answer in answers for each in answer.mounts]
    nodes = [each for answer in answers for each in answer.nodes]
    granted = RunContainerOptions(
        env={**env, **own_env},
        mounts=tuple(_placed("mount", mounts, conflicts, _mount_place)),
        nodes=tuple(_placed("device node", nodes, conflicts, _node_place)),
        annotations=_texts("annotation", [answer.annotations for answer in answers], conflicts),
        cdi=tuple(dict.fromkeys(name for answer in answers for name in answer.cdi)),
    )
    return granted, conflicts


def _texts(what: str, maps: Sequence[Mapping[str, str]], conflicts: list[Conflict]) -> dict[str, str]:
    merged: dict[str, str] = {}
    for texts in maps:
        for key, value in texts.items():
            if merged.setdefault(key, value) != value:
                conflicts.append(Conflict(what, key, merged[key], value))
    return merged


def _mount_place(mount: MountSpec) -> tuple[str, str]:
    return mount.container_path, mount.host_path


def _node_place(node: DeviceSpec) -> tuple[str, str]:
    return node.container_path, node.host_path


def _placed(
    what: str, items: Sequence[_Item], conflicts: list[Conflict], place: Callable[[_Item], tuple[str, str]]
) -> Iterator[_Item]:
    """One item for each path inside; only the host's paths are compared, as a kubelet does."""
    hosts: dict[str, str] = {}
    for item in items:
        inside, host = place(item)
        if inside not in hosts:
            hosts[inside] = host
            yield item
        elif hosts[inside] != host:
            conflicts.append(Conflict(what, inside, hosts[inside], host))


class Phase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


_TERMINAL = (Phase.SUCCEEDED, Phase.FAILED)


@dataclass(slots=True, eq=False)
class Container:
    """One container of an admitted pod. `granted` is None until it has started."""

    spec: ContainerSpec
    granted: RunContainerOptions | None = None
    running: bool = False
    starts: int = 0
    reason: str = "PodInitializing"  # why it waits, empty when it does not
    message: str = ""

    @property
    def is_done(self) -> bool:
        """An init container ends by itself; nothing else does."""
        return self.spec.kind is ContainerKind.INIT and self.starts > 0 and not self.reason


@dataclass(slots=True, eq=False)
class Pod:
    """A pod as its status shows it, and what its containers were given."""

    spec: PodSpec
    phase: Phase = Phase.PENDING
    reason: str = ""
    message: str = ""
    containers: dict[str, Container] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.containers = {each.name: Container(each) for each in self.spec.containers}

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def uid(self) -> str:
        return self.spec.uid

    def container(self, name: str) -> RunContainerOptions:
        """What the runtime was told; raises `ContainerWaiting` for a container that did not start."""
        container = self.state(name)
        if container.granted is None:
            raise ContainerWaiting(name, container.reason, container.message or self.message)
        return container.granted

    def state(self, name: str) -> Container:
        """How a container is, started or not."""
        if name not in self.containers:
            raise KubeletError(f"pod {self.spec.key} has no container {name!r}, only {some(self.containers)}")
        return self.containers[name]


class PodTable:
    """The pods by uid, in the order they came; `used` is what those that are active ask for."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._by_name: dict[tuple[str, str], Pod] = {}
        self._active: set[str] = set()
        self._used: Counter[str] = Counter()
        self._named = 0
        self.sources_ready = True
        self.running_at_start: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def running_already(cls, specs: Iterable[PodSpec]) -> "PodTable":
        table = cls()
        for spec in specs:
            pod = Pod(spec, Phase.RUNNING)
            for container in pod.containers.values():
                container.starts, container.reason = 1, ""
                container.running = container.spec.kind is not ContainerKind.INIT
            table.add(pod)
        return table

    def __iter__(self) -> Iterator[Pod]:
        return iter(list(self._pods.values()))

    def get(self, uid: str) -> Pod | None:
        return self._pods.get(uid)

    def find(self, name: str, namespace: str) -> Pod | None:
        return self._by_name.get((name, namespace))

    @property
    def active(self) -> set[str]:
        """The uids of pods that are not over: their devices are theirs (3.59)."""
        return self._active

    def named(self, spec: PodSpec) -> PodSpec:
        """With the next number where a name ends in `-`, as an API server completes `generateName`."""
        if not spec.name.endswith("-"):
            return spec
        self._named += 1
        named = replace(spec, name=f"{spec.name}{self._named}", uid="")
        return named if self.find(named.name, named.namespace) is None else self.named(spec)

    def add(self, pod: Pod) -> None:
        if pod.uid in self._pods or self.find(pod.spec.name, pod.spec.namespace):
            raise KubeletError(f"pod {pod.spec.key} is there already")
        self._pods[pod.uid] = self._by_name[pod.spec.name, pod.spec.namespace] = pod
        self._enter(pod)

    def end(self, pod: Pod, phase: Phase, reason: str = "", message: str = "") -> None:
        """A terminal phase: the pod stays to be looked at, its devices are free."""
        pod.phase, pod.reason, pod.message = phase, reason, message
        for container in pod.containers.values():
            container.running = False
        self._leave(pod)

    def remove(self, uid: str) -> Pod:
        pod = self._pods.pop(uid)
        del self._by_name[pod.spec.name, pod.spec.namespace]
        self._leave(pod)
        for container in pod.containers.values():
            container.running = False
        return pod

    def used(self, resource: str, *, without: Pod) -> int:
        own = without.spec.total(resource) if without.uid in self._active else 0
        return self._used[resource] - own

    def running(self) -> frozenset[tuple[str, str]]:
        return frozenset(
            (pod.uid, name) for pod in self for name, container in pod.containers.items() if container.running
        )

    def was_restarted(self, uid: str, container: str) -> bool:
        pod = self._pods.get(uid)
        return pod is not None and pod.containers[container].starts > 1

    def halt(self) -> None:
        """The machine went down: nothing runs, and init containers have to run again."""
        for pod in self:
            pod.containers = {each.name: Container(each) for each in pod.spec.containers}

    def _enter(self, pod: Pod) -> None:
        if pod.phase not in _TERMINAL:
            self._active.add(pod.uid)
            self._used.update({resource: pod.spec.total(resource) for resource in pod.spec.resources})

    def _leave(self, pod: Pod) -> None:
        if pod.uid in self._active:
            self._active.discard(pod.uid)
            self._used.subtract({resource: pod.spec.total(resource) for resource in pod.spec.resources})
