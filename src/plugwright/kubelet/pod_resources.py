"""The pod-resources API of the emulated kubelet: rate limit, which pods are listed, and their devices.

The messages are `protocol.pod_resources`. As upstream, the service asks a `DevicesProvider`; `DeviceManagerProvider`
uses the device manager.
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
from plugwright.kubelet.dra.dra_manager import DRAManager
from plugwright.kubelet.metrics import KubeletMetrics, MetricName
from plugwright.kubelet.pod_table import Pod, PodTable
from plugwright.kubelet.pods import ContainerKind, ContainerSpec
from plugwright.kubelet.versions import VersionProfile
from plugwright.protocol import pod_resources
from plugwright.protocol.pod_resources import (
    AllocatableDevice,
    ContainerDevices,
    ContainerResources,
    DynamicResource,
    PodResources,
)
from plugwright.system.sockets import SocketFile

__all__ = [
    "BURST",
    "RATE",
    "ContainerView",
    "DeviceManagerProvider",
    "DevicesProvider",
    "PodResourcesService",
    "PodView",
    "TokenBucket",
    "serving",
]

RATE, BURST = 100.0, 10  # requests per second and in one burst, of all clients together
_DIRECTORY_MODE = 0o750


@asynccontextmanager
async def serving(service: "PodResourcesService", socket: Path, *, kept: bool = False) -> AsyncIterator[SocketFile]:
    """Serves on `socket` and creates its directory; `kept` leaves the file behind, as a killed kubelet does."""
    socket.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
    async with pod_resources.serve(service, socket, kept=kept) as served:
        yield served


@dataclass(frozen=True, slots=True)
class ContainerView:
    """A container with its recorded devices, one item for each device and NUMA node, and its claims."""

    name: str
    kind: ContainerKind = ContainerKind.MAIN
    devices: tuple[ContainerDevices, ...] = ()
    claims: tuple[DynamicResource, ...] = ()


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod with all its containers in order, also those without devices."""

    name: str
    namespace: str
    containers: tuple[ContainerView, ...] = ()


class DevicesProvider(Protocol):
    """The pods and devices of one node, as the service needs them."""

    def update_allocated_devices(self) -> None:
        """Frees the devices of inactive pods."""

    def active_pods(self) -> Iterable[PodView]: ...

    def all_pods(self) -> Iterable[PodView]:
        """All pods of the kubelet, including refused and ended pods."""

    def active_pod(self, name: str, namespace: str) -> PodView | None: ...

    def allocatable_devices(self) -> Iterable[AllocatableDevice]:
        """Every healthy device, with `nodes` as its plugin sent them: None without a topology message."""


class PodResourcesService:
    """Responds as a kubelet of this version does, sorted if the real kubelet has no order."""

    def __init__(
        self,
        provider: DevicesProvider,
        profile: VersionProfile,
        metrics: KubeletMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._provider, self._profile, self._metrics = provider, profile, metrics
        self._bucket = TokenBucket(clock)

    async def pods(self) -> Sequence[PodResources]:
        self._accept("v1", MetricName.POD_RESOURCES_LIST)
        # List frees the devices of inactive pods before it answers (6.4).
        self._provider.update_allocated_devices()
        pods = self._provider.active_pods() if self._profile.lists_active_only else self._provider.all_pods()
        return _pod_list(pods, self._kinds)

    async def allocatable(self) -> Sequence[AllocatableDevice]:
        self._accept("v1", MetricName.POD_RESOURCES_ALLOCATABLE)
        # A topology message without nodes hides the device: the kubelet makes one item for each node (6.11).
        devices = [device for device in self._provider.allocatable_devices() if device.nodes != ()]
        return sorted(devices, key=lambda device: (device.resource, device.device_id))

    async def pod(self, name: str, namespace: str) -> PodResources:
        self._accept("v1", MetricName.POD_RESOURCES_GET)
        pod = self._provider.active_pod(name, namespace)
        if pod is None:
            self._metrics.count(MetricName.POD_RESOURCES_GET_ERRORS, server_api_version="v1")
            raise PeerRefused("UNKNOWN", f"pod {name} in namespace {namespace} not found")
        return _pod_resources(pod, self._kinds)

    async def alpha_pods(self) -> Sequence[PodResources]:
        self._accept("v1alpha1")
        self._provider.update_allocated_devices()
        return _pod_list(self._provider.all_pods(), {ContainerKind.MAIN})

    @property
    def _kinds(self) -> set[ContainerKind]:
        return {ContainerKind.MAIN, ContainerKind.SIDECAR} if self._profile.lists_sidecars else {ContainerKind.MAIN}

    def _accept(self, version: str, *names: MetricName) -> None:
        if not self._bucket.take():
            raise PeerRefused("RESOURCE_EXHAUSTED", "rejected by rate limit")
        for name in (MetricName.POD_RESOURCES, *names):
            self._metrics.count(name, server_api_version=version)


def _pod_list(pods: Iterable[PodView], kinds: set[ContainerKind]) -> list[PodResources]:
    return [_pod_resources(pod, kinds) for pod in sorted(pods, key=lambda pod: (pod.namespace, pod.name))]


def _pod_resources(pod: PodView, kinds: set[ContainerKind]) -> PodResources:
    def order(device: ContainerDevices) -> tuple[str, str, int]:
        return device.resource, device.device_id, NO_NUMA if device.numa is None else device.numa

    containers = (
        ContainerResources(container.name, tuple(sorted(container.devices, key=order)), container.claims)
        for container in pod.containers
        if container.kind in kinds
    )
    return PodResources(pod.name, pod.namespace, tuple(containers))


class TokenBucket:
    """Allows `rate` requests per second, and `burst` at once; `clock` returns seconds."""

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


class DeviceManagerProvider:
    """The `DevicesProvider` over the device manager, the DRA manager and the pod table."""

    def __init__(self, manager: DeviceManager, claims: DRAManager, table: PodTable, allocator: Allocator) -> None:
        self._manager, self._claims, self._table, self._allocator = manager, claims, table, allocator

    def update_allocated_devices(self) -> None:
        self._allocator.update_allocated_devices()

    def active_pods(self) -> Iterable[PodView]:
        return [self._view(pod) for pod in self._table if pod.uid in self._table.active]

    def all_pods(self) -> Iterable[PodView]:
        return [self._view(pod) for pod in self._table]

    def active_pod(self, name: str, namespace: str) -> PodView | None:
        pod = self._table.find(name, namespace)
        return self._view(pod) if pod is not None and pod.uid in self._table.active else None

    def allocatable_devices(self) -> Iterable[AllocatableDevice]:
        for resource in self._manager.devices:
            devices = self._manager.devices.of(resource)
            for device_id in devices.healthy:
                yield AllocatableDevice(resource, device_id, devices.known[device_id].nodes)

    def _view(self, pod: Pod) -> PodView:
        containers = (
            ContainerView(
                container.name,
                container.kind,
                tuple(self._devices(pod, container)),
                tuple(self._claims.dynamic_resources(pod.spec, container)),
            )
            for container in pod.spec.containers
        )
        return PodView(pod.spec.name, pod.spec.namespace, tuple(containers))

    def _devices(self, pod: Pod, container: ContainerSpec) -> Iterator[ContainerDevices]:
        """The NUMA nodes as recorded at allocation, not those of the newest device list (6.8)."""
        for entry in self._manager.pod_devices.of_container(pod.uid, container.name):
            for node, device_ids in (entry.devices or {}).items():
                for device_id in device_ids or ():
                    yield ContainerDevices(entry.resource, device_id, None if node == NO_NUMA else node)
