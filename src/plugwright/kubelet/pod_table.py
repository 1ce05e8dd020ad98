"""The pods of one kubelet with their containers, and the options of each container.

The runtime's options are merged here from the responses of several plugins. The kubelet takes the responses in random
order and the first value wins; here they come sorted by resource, and every conflict is returned, because on a real
node either value can win. `devicemanager.pod_devices` knows the holders of devices.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from plugwright.errors import ContainerWaiting, KubeletError
from plugwright.kubelet.pods import ContainerKind, ContainerSpec, PodSpec
from plugwright.model import some
from plugwright.protocol.messages import AllocateResponse, DeviceSpec, MountSpec

__all__ = ["Container", "OptionConflict", "Phase", "Pod", "PodTable", "RunContainerOptions", "merge_responses"]

_Path = TypeVar("_Path", MountSpec, DeviceSpec)


class Phase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


_TERMINAL = (Phase.SUCCEEDED, Phase.FAILED)


@dataclass(frozen=True, slots=True)
class RunContainerOptions:
    """A container's options from its devices: env, mounts, device nodes, annotations and CDI device names.

    `env` has the container's own variables too, which override the plugins'.
    """

    env: Mapping[str, str]
    mounts: tuple[MountSpec, ...]
    nodes: tuple[DeviceSpec, ...]
    annotations: Mapping[str, str]
    cdi: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Container:
    """A container of an admitted pod; `granted` is None until it has started.

    With a `config_error` it is not started: its pod refers to a missing object.
    """

    spec: ContainerSpec
    granted: RunContainerOptions | None = None
    running: bool = False
    starts: int = 0
    reason: str = "PodInitializing"  # why it is waiting; empty once it has started
    message: str = ""
    config_error: str = ""

    @property
    def is_done(self) -> bool:
        """Whether it is a completed init container; other containers do not end by themselves."""
        return self.spec.kind is ContainerKind.INIT and self.starts > 0 and not self.reason


@dataclass(slots=True, eq=False)
class Pod:
    """A pod with its status and its containers by name."""

    spec: PodSpec
    phase: Phase = Phase.PENDING
    reason: str = ""
    message: str = ""
    containers: dict[str, Container] = field(default_factory=dict)
    terminating: bool = False  # deleted, and a driver still has to unprepare its claims

    def __post_init__(self) -> None:
        self.containers = {container.name: Container(container) for container in self.spec.containers}

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def uid(self) -> str:
        return self.spec.uid

    @property
    def has_ended(self) -> bool:
        return self.phase in _TERMINAL

    def wait(self, reason: str, message: str) -> None:
        """No container can be started yet."""
        self.phase = Phase.PENDING
        for container in self.containers.values():
            container.reason, container.message = reason, message

    def container(self, name: str) -> RunContainerOptions:
        """The options a container was started with; raises `ContainerWaiting` if it did not start."""
        container = self.state(name)
        if container.granted is None:
            raise ContainerWaiting(name, container.reason, container.message or self.message)
        return container.granted

    def state(self, name: str) -> Container:
        """A container, started or not."""
        if name not in self.containers:
            raise KubeletError(f"pod {self.spec.key} has no container {name!r}, only {some(self.containers)}")
        return self.containers[name]


class PodTable:
    """The pods by uid, in the order of their arrival, and the sum of the requests of active pods."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._by_name: dict[tuple[str, str], Pod] = {}
        self._active: set[str] = set()
        self._used: Counter[str] = Counter()
        self._generated_names = 0
        self.sources_ready = True
        self.running_at_start: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def running_already(cls, specs: Iterable[PodSpec]) -> "PodTable":
        """A table of pods from before the kubelet's start."""
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
        """The uids of pods until they end; only ended pods lose their devices (3.59)."""
        return self._active

    def generate_name(self, spec: PodSpec) -> PodSpec:
        """Completes a name ending in `-` with the next number, as an API server completes `generateName`."""
        if not spec.name.endswith("-"):
            return spec
        self._generated_names += 1
        named = replace(spec, name=f"{spec.name}{self._generated_names}", uid="")
        return named if self.find(named.name, named.namespace) is None else self.generate_name(spec)

    def add(self, pod: Pod) -> None:
        if pod.uid in self._pods or self.find(pod.spec.name, pod.spec.namespace):
            raise KubeletError(f"pod {pod.spec.key} already exists")
        self._pods[pod.uid] = self._by_name[pod.spec.name, pod.spec.namespace] = pod
        if not pod.has_ended:
            self._active.add(pod.uid)
            self._used.update({resource: pod.spec.requested(resource) for resource in pod.spec.resources})

    def end(self, pod: Pod, phase: Phase, reason: str = "", message: str = "") -> None:
        """Sets a terminal phase: the pod stays in the table, its devices become free."""
        pod.phase, pod.reason, pod.message = phase, reason, message
        self._deactivate(pod)

    def remove(self, uid: str) -> Pod:
        pod = self._pods.pop(uid)
        del self._by_name[pod.spec.name, pod.spec.namespace]
        self._deactivate(pod)
        return pod

    def _deactivate(self, pod: Pod) -> None:
        for container in pod.containers.values():
            container.running = False
        if pod.uid in self._active:
            self._active.discard(pod.uid)
            self._used.subtract({resource: pod.spec.requested(resource) for resource in pod.spec.resources})

    def used(self, resource: str, *, without: Pod) -> int:
        """The sum of the requests of all active pods except `without`."""
        own = without.spec.requested(resource) if without.uid in self._active else 0
        return self._used[resource] - own

    def running(self) -> frozenset[tuple[str, str]]:
        """The running containers, by pod uid and name."""
        return frozenset(
            (pod.uid, name) for pod in self for name, container in pod.containers.items() if container.running
        )

    def was_restarted(self, uid: str, container: str) -> bool:
        pod = self._pods.get(uid)
        return pod is not None and pod.containers[container].starts > 1

    def halt(self) -> None:
        """After a reboot of the machine: no container runs, and init containers have to run again."""
        for pod in self:
            pod.containers = {container.name: Container(container) for container in pod.spec.containers}


@dataclass(frozen=True, slots=True)
class OptionConflict:
    """Two plugins set the same variable, path or annotation to different values."""

    option: str
    key: str
    kept: str
    dropped: str

    def __str__(self) -> str:
        return f"{self.option} {self.key} is {self.kept!r} in one answer and {self.dropped!r} in another"


def merge_responses(
    responses: Sequence[AllocateResponse], own_env: Mapping[str, str]
) -> tuple[RunContainerOptions, list[OptionConflict]]:
    """The options for the container runtime, and the values left out of them.

    The first response wins, and the container's own variables override the plugins' (3.54, 3.55).
    """
    conflicts: list[OptionConflict] = []
    env = _merge_maps("env", [response.env for response in responses], conflicts)
    mounts = [mount for response in responses for mount in response.mounts]
    nodes = [node for response in responses for node in response.nodes]
    options = RunContainerOptions(
        env={**env, **own_env},
        mounts=tuple(_merge_paths("mount", mounts, conflicts)),
        nodes=tuple(_merge_paths("device node", nodes, conflicts)),
        annotations=_merge_maps("annotation", [response.annotations for response in responses], conflicts),
        cdi=tuple(dict.fromkeys(name for response in responses for name in response.cdi)),
    )
    return options, conflicts


def _merge_maps(option: str, maps: Sequence[Mapping[str, str]], conflicts: list[OptionConflict]) -> dict[str, str]:
    merged: dict[str, str] = {}
    for texts in maps:
        for key, value in texts.items():
            if merged.setdefault(key, value) != value:
                conflicts.append(OptionConflict(option, key, merged[key], value))
    return merged


def _merge_paths(option: str, items: Sequence[_Path], conflicts: list[OptionConflict]) -> Iterator[_Path]:
    """The first item for each container path; like the kubelet, only host paths are compared."""
    host_paths: dict[str, str] = {}
    for item in items:
        container_path, host_path = item.container_path, item.host_path
        if container_path not in host_paths:
            host_paths[container_path] = host_path
            yield item
        elif host_paths[container_path] != host_path:
            conflicts.append(OptionConflict(option, container_path, host_paths[container_path], host_path))
