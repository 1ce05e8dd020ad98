"""The pod-resources service of the emulated kubelet: what may be asked, how often, and which pods are told.

Who holds what is the manager's, behind `Node`; the messages are `protocol.pod_resources`'.

What the pod-resources service tells: the records and the newest lists, as values.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from plugwright.errors import PeerRefused
from plugwright.kubelet.devicemanager.allocation import Allocator
from plugwright.kubelet.devicemanager.manager import DeviceManager
from plugwright.kubelet.devicemanager.pod_devices import NO_NUMA
from plugwright.kubelet.metrics import Metrics, Name
from plugwright.kubelet.pod_table import Pod, PodTable
from plugwright.kubelet.pods import ContainerKind, ContainerSpec
from plugwright.kubelet.versions import Profile
from plugwright.protocol import pod_resources
from plugwright.protocol.pod_resources import AllocatableDevice, ContainerDevices, ContainerResources, PodResources
from plugwright.system.sockets import SocketFile

__all__ = [
    "BURST",
    "RATE",
    "ContainerView",
    "Holdings",
    "Node",
    "PodResourcesService",
    "PodView",
    "TokenBucket",
    "serving",
]

RATE, BURST = 100.0, 10  # requests a second and at once, of all clients together
_DIRECTORY_MODE = 0o750


@dataclass(frozen=True, slots=True)
class ContainerView:
    """A container with what was recorded for it at allocation: an item for each device and NUMA node."""

    name: str
    kind: ContainerKind = ContainerKind.MAIN
    devices: tuple[ContainerDevices, ...] = ()


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod with all its containers in order, those that hold nothing too."""

    name: str
    namespace: str
    containers: tuple[ContainerView, ...] = ()


class Node(Protocol):
    """What the service asks of the device manager."""

    def collect(self) -> None:
        """Forgets what pods held that are no longer active (3.57)."""

    def active(self) -> Iterable[PodView]: ...

    def known(self) -> Iterable[PodView]:
        """All pods of the kubelet, refused and ended ones too."""

    def find(self, name: str, namespace: str) -> PodView | None:
        """An active pod."""

    def allocatable(self) -> Iterable[AllocatableDevice]:
        """Every healthy device in the newest lists, with `nodes` as its plugin sent them, None for no topology."""


class TokenBucket:
    """At most `rate` a second, `burst` at once; `clock` tells seconds."""

    def __init__(self, clock: Callable[[], float], rate: float = RATE, burst: int = BURST) -> None:
        self._clock, self._rate, self._burst = clock, rate, burst
        self._tokens, self._filled = float(burst), clock()

    def take(self) -> bool:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._filled) * self._rate)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class PodResourcesService:
    """Answers as a kubelet of this version does, sorted where the real one has no order."""

    def __init__(self, node: Node, profile: Profile, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._node, self._profile, self._metrics = node, profile, metrics
        self._bucket = TokenBucket(clock)

    async def pods(self) -> Sequence[PodResources]:
        self._admit("v1", Name.POD_RESOURCES_LIST)
        self._node.collect()
        pods = self._node.active() if self._profile.lists_active_only else self._node.known()
        return _told(pods, self._kinds)

    async def allocatable(self) -> Sequence[AllocatableDevice]:
        self._admit("v1", Name.POD_RESOURCES_ALLOCATABLE)
        # 6.11: a topology message without nodes hides the device; the real kubelet makes an item for each node
        devices = [device for device in self._node.allocatable() if device.nodes != ()]
        return sorted(devices, key=lambda device: (device.resource, device.device_id))

    async def pod(self, name: str, namespace: str) -> PodResources:
        self._admit("v1", Name.POD_RESOURCES_GET)
        found = self._node.find(name, namespace)
        if found is None:
            self._metrics.count(Name.POD_RESOURCES_GET_ERRORS, server_api_version="v1")
            raise PeerRefused("UNKNOWN", f"pod {name} in namespace {namespace} not found")
        return _shown(found, self._kinds)

    async def alpha_pods(self) -> Sequence[PodResources]:
        self._admit("v1alpha1")
        self._node.collect()
        return _told(self._node.known(), {ContainerKind.MAIN})

    @property
    def _kinds(self) -> set[ContainerKind]:
        return {ContainerKind.MAIN, ContainerKind.SIDECAR} if self._profile.lists_sidecars else {ContainerKind.MAIN}

    def _admit(self, version: str, *also: Name) -> None:
        if not self._bucket.take():
            raise PeerRefused("RESOURCE_EXHAUSTED", "rejected by rate limit")
        for name in (Name.POD_RESOURCES, *also):
            self._metrics.count(name, server_api_version=version)


def _told(pods: Iterable[PodView], kinds: set[ContainerKind]) -> list[PodResources]:
    return [_shown(pod, kinds) for pod in sorted(pods, key=lambda pod: (pod.namespace, pod.name))]


def _shown(pod: PodView, kinds: set[ContainerKind]) -> PodResources:
    containers = [ContainerResources(each.name, _sorted(each.devices)) for each in pod.containers if each.kind in kinds]
    return PodResources(pod.name, pod.namespace, tuple(containers))


def _sorted(devices: Iterable[ContainerDevices]) -> tuple[ContainerDevices, ...]:
    def order(device: ContainerDevices) -> tuple[str, str, int]:
        return device.resource, device.device_id, -1 if device.numa is None else device.numa

    return tuple(sorted(devices, key=order))


@asynccontextmanager
async def serving(service: PodResourcesService, socket: Path, *, kept: bool = False) -> AsyncIterator[SocketFile]:
    """Serves on `socket`, whose directory is made where it is missing; `kept` leaves the file, as a kill does."""
    socket.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
    async with pod_resources.serve(service, socket, kept=kept) as served:
        yield served


class Holdings:
    """`podresources.Node` over the device manager and its pods."""

    def __init__(self, manager: DeviceManager, table: PodTable, allocator: Allocator) -> None:
        self._manager, self._table, self._allocator = manager, table, allocator

    def collect(self) -> None:
        self._allocator.collect()

    def active(self) -> Iterable[PodView]:
        return [self._view(pod) for pod in self._table if pod.uid in self._table.active]

    def known(self) -> Iterable[PodView]:
        return [self._view(pod) for pod in self._table]

    def find(self, name: str, namespace: str) -> PodView | None:
        pod = self._table.find(name, namespace)
        return self._view(pod) if pod is not None and pod.uid in self._table.active else None

    def allocatable(self) -> Iterable[AllocatableDevice]:
        for resource in self._manager.stock:
            shelf = self._manager.stock.shelf(resource)
            for device_id in shelf.healthy:
                yield AllocatableDevice(resource, device_id, shelf.known[device_id].nodes)

    def _view(self, pod: Pod) -> PodView:
        containers = tuple(self._container(pod, each) for each in pod.spec.containers)
        return PodView(pod.spec.name, pod.spec.namespace, containers)

    def _container(self, pod: Pod, container: ContainerSpec) -> ContainerView:
        return ContainerView(container.name, container.kind, tuple(self._devices(pod, container)))

    def _devices(self, pod: Pod, container: ContainerSpec) -> Iterator[ContainerDevices]:
        """From the records, which survive the plugin and the kubelet (6.8)."""
        for entry in self._manager.ledger.of_container(pod.uid, container.name):
            for node, device_ids in (entry.devices or {}).items():
                for device_id in device_ids or ():
                    yield ContainerDevices(entry.resource, device_id, None if node == NO_NUMA else node)
