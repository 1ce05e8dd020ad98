"""The kubelet's pod-resources service: which container holds which device, and which devices are allocatable.

v1 and v1alpha1 are served on one socket. Answers grow with the node: Go's clients accept 4 MiB unless a limit is set,
and most set 16; ours accepts any size.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Protocol

from plugwright.protocol import transport
from plugwright.protocol.podresources.v1 import podresources_pb2 as pb
from plugwright.protocol.podresources.v1alpha1 import podresources_pb2 as alpha
from plugwright.protocol.transport import Method, Unary
from plugwright.system import sockets
from plugwright.system.sockets import SocketFile

__all__ = [
    "AllocatableDevice",
    "ContainerDevices",
    "ContainerResources",
    "HeldDevice",
    "PodResources",
    "PodResourcesClient",
    "PodResourcesLister",
    "connect",
    "serve",
]

_LIST = Method("/v1.PodResourcesLister/List", pb.ListPodResourcesRequest, pb.ListPodResourcesResponse)
_ALLOCATABLE = Method(
    "/v1.PodResourcesLister/GetAllocatableResources", pb.AllocatableResourcesRequest, pb.AllocatableResourcesResponse
)
_GET = Method("/v1.PodResourcesLister/Get", pb.GetPodResourcesRequest, pb.GetPodResourcesResponse)
_ALPHA_LIST = Method("/v1alpha1.PodResourcesLister/List", alpha.ListPodResourcesRequest, alpha.ListPodResourcesResponse)


@dataclass(frozen=True, slots=True, order=True)
class HeldDevice:
    """One device in one container of one pod."""

    resource: str
    device_id: str
    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """One device on one NUMA node; a device on two is two of these, `numa` is None where it is on none."""

    resource: str
    device_id: str
    numa: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerResources:
    name: str
    devices: tuple[ContainerDevices, ...] = ()


@dataclass(frozen=True, slots=True)
class PodResources:
    name: str
    namespace: str
    containers: tuple[ContainerResources, ...] = ()


@dataclass(frozen=True, slots=True)
class AllocatableDevice:
    """A healthy device, in use or not; `nodes` is None where its plugin sent no topology."""

    resource: str
    device_id: str
    nodes: tuple[int, ...] | None = None


class PodResourcesLister(Protocol):
    """The kubelet's side; `pod` raises `PeerRefused` for a pod it does not know."""

    async def pods(self) -> Sequence[PodResources]: ...

    async def allocatable(self) -> Sequence[AllocatableDevice]: ...

    async def pod(self, name: str, namespace: str) -> PodResources: ...

    async def alpha_pods(self) -> Sequence[PodResources]: ...


def serve(lister: PodResourcesLister, socket: Path, *, kept: bool = False) -> AbstractAsyncContextManager[SocketFile]:
    """As a kubelet does: an old socket is replaced; with `kept` the new one is left at the end."""

    async def pods(_: pb.ListPodResourcesRequest) -> pb.ListPodResourcesResponse:
        return pb.ListPodResourcesResponse(pod_resources=map(_from_pod, await lister.pods()))

    async def allocatable(_: pb.AllocatableResourcesRequest) -> pb.AllocatableResourcesResponse:
        return pb.AllocatableResourcesResponse(devices=_from_allocatable(await lister.allocatable()))

    async def pod(request: pb.GetPodResourcesRequest) -> pb.GetPodResourcesResponse:
        resources = await lister.pod(request.pod_name, request.pod_namespace)
        return pb.GetPodResourcesResponse(pod_resources=_from_pod(resources))

    async def alpha_pods(_: alpha.ListPodResourcesRequest) -> alpha.ListPodResourcesResponse:
        return alpha.ListPodResourcesResponse(pod_resources=map(_from_alpha_pod, await lister.alpha_pods()))

    methods: list[transport.Bound] = [
        Unary(_LIST, pods),
        Unary(_ALLOCATABLE, allocatable),
        Unary(_GET, pod),
        Unary(_ALPHA_LIST, alpha_pods),
    ]
    return transport.serve(socket, methods, kept=kept, listening_on=sockets.listen_in_place)


def _from_pod(pod: PodResources) -> pb.PodResources:
    containers = [
        pb.ContainerResources(name=container.name, devices=map(_from_device, container.devices))
        for container in pod.containers
    ]
    return pb.PodResources(name=pod.name, namespace=pod.namespace, containers=containers)


def _from_device(device: ContainerDevices) -> pb.ContainerDevices:
    topology = None if device.numa is None else pb.TopologyInfo(nodes=[pb.NUMANode(ID=device.numa)])
    return pb.ContainerDevices(resource_name=device.resource, device_ids=[device.device_id], topology=topology)


def _from_allocatable(devices: Iterable[AllocatableDevice]) -> list[pb.ContainerDevices]:
    return [
        _from_device(ContainerDevices(device.resource, device.device_id, node))
        for device in devices
        for node in ((None,) if device.nodes is None else device.nodes)
    ]


def _from_alpha_pod(pod: PodResources) -> alpha.PodResources:
    containers = [
        alpha.ContainerResources(name=container.name, devices=map(_from_alpha_device, container.devices))
        for container in pod.containers
    ]
    return alpha.PodResources(name=pod.name, namespace=pod.namespace, containers=containers)


def _from_alpha_device(device: ContainerDevices) -> alpha.ContainerDevices:
    return alpha.ContainerDevices(resource_name=device.resource, device_ids=[device.device_id])


class PodResourcesClient:
    """Calls a kubelet; `timeout` is in seconds, pods come in the order they are sent."""

    def __init__(self, connection: transport.Connection) -> None:
        self._connection = connection

    async def held_devices(self, timeout: float | None = None) -> list[HeldDevice]:
        """Every device that an active pod holds, sorted."""
        return sorted(
            {
                HeldDevice(device.resource, device.device_id, pod.namespace, pod.name, container.name)
                for pod in await self.pods(timeout)
                for container in pod.containers
                for device in container.devices
            }
        )

    async def pods(self, timeout: float | None = None) -> list[PodResources]:
        """Every active pod, those without devices too."""
        reply = await self._connection.call(_LIST, pb.ListPodResourcesRequest(), timeout)
        return [_to_pod(pod) for pod in reply.pod_resources]

    async def pod(self, name: str, namespace: str, timeout: float | None = None) -> PodResources:
        request = pb.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
        return _to_pod((await self._connection.call(_GET, request, timeout)).pod_resources)

    async def allocatable(self, timeout: float | None = None) -> list[AllocatableDevice]:
        """Every healthy device, sorted."""
        reply = await self._connection.call(_ALLOCATABLE, pb.AllocatableResourcesRequest(), timeout)
        listed = sorted(_to_devices(reply.devices), key=_resource_and_id)
        return [_to_allocatable(*key, items) for key, items in groupby(listed, _resource_and_id)]

    async def alpha_pods(self, timeout: float | None = None) -> list[PodResources]:
        """Every pod the kubelet knows, through v1alpha1: no NUMA nodes."""
        reply = await self._connection.call(_ALPHA_LIST, alpha.ListPodResourcesRequest(), timeout)
        return [_to_alpha_pod(pod) for pod in reply.pod_resources]


def _to_pod(pod: pb.PodResources) -> PodResources:
    containers = (
        ContainerResources(container.name, tuple(_to_devices(container.devices))) for container in pod.containers
    )
    return PodResources(pod.name, pod.namespace, tuple(containers))


def _to_devices(items: Iterable[pb.ContainerDevices]) -> Iterable[ContainerDevices]:
    for item in items:
        for device_id in item.device_ids:
            for node in tuple(node.ID for node in item.topology.nodes) or (None,):
                yield ContainerDevices(item.resource_name, device_id, node)


def _to_alpha_pod(pod: alpha.PodResources) -> PodResources:
    containers = (
        ContainerResources(container.name, tuple(_to_alpha_devices(container.devices))) for container in pod.containers
    )
    return PodResources(pod.name, pod.namespace, tuple(containers))


def _to_alpha_devices(items: Iterable[alpha.ContainerDevices]) -> Iterable[ContainerDevices]:
    return (ContainerDevices(item.resource_name, device_id) for item in items for device_id in item.device_ids)


def _resource_and_id(device: ContainerDevices) -> tuple[str, str]:
    return device.resource, device.device_id


def _to_allocatable(resource: str, device_id: str, items: Iterable[ContainerDevices]) -> AllocatableDevice:
    nodes = tuple(sorted(item.numa for item in items if item.numa is not None))
    return AllocatableDevice(resource, device_id, nodes or None)


@asynccontextmanager
async def connect(socket: Path, limit: int | None = None) -> AsyncIterator[PodResourcesClient]:
    """`limit` is the largest answer in bytes that is accepted."""
    async with transport.connect(socket, limit) as connection:
        yield PodResourcesClient(connection)
