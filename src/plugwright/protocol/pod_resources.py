"""The kubelet's pod-resources service: which container holds which device."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from plugwright.protocol import transport
from plugwright.protocol.podresources.v1 import podresources_pb2 as pb
from plugwright.protocol.transport import Method, Serving, Unary

__all__ = ["Holding", "PodResourcesClient", "PodResourcesService", "connect", "serve"]

_LIST = Method("/v1.PodResourcesLister/List", pb.ListPodResourcesRequest, pb.ListPodResourcesResponse)


@dataclass(frozen=True, slots=True, order=True)
class Holding:
    """One device in one container of one pod."""

    resource: str
    device_id: str
    namespace: str
    pod: str
    container: str


class PodResourcesService(Protocol):
    async def holdings(self) -> Sequence[Holding]: ...


def serve(service: PodResourcesService, socket: Path) -> AbstractAsyncContextManager[Serving]:
    async def listed(_: pb.ListPodResourcesRequest) -> pb.ListPodResourcesResponse:
        return pb.ListPodResourcesResponse(pod_resources=[_from_holding(each) for each in await service.holdings()])

    return transport.serve(socket, [Unary(_LIST, listed)])


def _from_holding(holding: Holding) -> pb.PodResources:
    devices = pb.ContainerDevices(resource_name=holding.resource, device_ids=[holding.device_id])
    container = pb.ContainerResources(name=holding.container, devices=[devices])
    return pb.PodResources(name=holding.pod, namespace=holding.namespace, containers=[container])


class PodResourcesClient:
    def __init__(self, connection: transport.Connection) -> None:
        self._connection = connection

    async def holdings(self, timeout: float | None = None) -> list[Holding]:
        """Every device that an active pod holds, sorted."""
        reply = await self._connection.call(_LIST, pb.ListPodResourcesRequest(), timeout)
        return sorted(
            {
                Holding(devices.resource_name, device_id, pod.namespace, pod.name, container.name)
                for pod in reply.pod_resources
                for container in pod.containers
                for devices in container.devices
                for device_id in devices.device_ids
            }
        )


@asynccontextmanager
async def connect(socket: Path) -> AsyncIterator[PodResourcesClient]:
    async with transport.connect(socket) as connection:
        yield PodResourcesClient(connection)
