"""The DevicePlugin service: served by plugins, called by kubelets."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Protocol

from plugwright.model import Options, PreferenceRequest
from plugwright.protocol import messages, transport
from plugwright.protocol.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from plugwright.protocol.messages import ListedDevice
from plugwright.protocol.transport import Method, Streaming, Unary
from plugwright.system.sockets import SocketFile

__all__ = ["DevicePluginClient", "DevicePluginService", "connect", "methods", "serve"]

_SERVICE = "/v1beta1.DevicePlugin"
_OPTIONS = Method(f"{_SERVICE}/GetDevicePluginOptions", pb.Empty, pb.DevicePluginOptions)
_LIST = Method(f"{_SERVICE}/ListAndWatch", pb.Empty, pb.ListAndWatchResponse)
_PREFER = Method(f"{_SERVICE}/GetPreferredAllocation", pb.PreferredAllocationRequest, pb.PreferredAllocationResponse)
_ALLOCATE = Method(f"{_SERVICE}/Allocate", pb.AllocateRequest, pb.AllocateResponse)
_PRE_START = Method(f"{_SERVICE}/PreStartContainer", pb.PreStartContainerRequest, pb.PreStartContainerResponse)


class DevicePluginService(Protocol):
    """The plugin's side, in our own values; errors of `plugwright.errors` become status codes."""

    async def options(self) -> Options: ...

    def list_and_watch(self) -> AsyncGenerator[bytes, None]:
        """Lists made by `messages.encode_devices`: encoded once, however many streams they go to."""
        ...

    async def prefer(self, requests: Sequence[PreferenceRequest]) -> list[list[str]]: ...

    async def allocate(self, containers: Sequence[Sequence[str]]) -> bytes:
        """The answer, made by `messages.encode_allocations`."""
        ...

    async def pre_start(self, device_ids: Sequence[str]) -> None: ...


def serve(service: DevicePluginService, socket: Path) -> AbstractAsyncContextManager[SocketFile]:
    return transport.serve(socket, methods(service))


def methods(service: DevicePluginService) -> list[transport.Bound]:
    """The service's methods, to be served beside others on one socket."""

    async def options(_: pb.Empty) -> pb.DevicePluginOptions:
        return messages.from_options(await service.options())

    async def prefer(request: pb.PreferredAllocationRequest) -> pb.PreferredAllocationResponse:
        return messages.from_preferences(await service.prefer(messages.to_preference_requests(request)))

    async def allocate(request: pb.AllocateRequest) -> bytes:
        return await service.allocate([list(container.devices_ids) for container in request.container_requests])

    async def pre_start(request: pb.PreStartContainerRequest) -> pb.PreStartContainerResponse:
        await service.pre_start(list(request.devices_ids))
        return pb.PreStartContainerResponse()

    return [
        Unary(_OPTIONS, options),
        Streaming(_LIST, service.list_and_watch),
        Unary(_PREFER, prefer),
        Unary(_ALLOCATE, allocate),
        Unary(_PRE_START, pre_start),
    ]


class DevicePluginClient:
    """Calls one plugin, as a kubelet does."""

    def __init__(self, connection: transport.Connection) -> None:
        self._connection = connection

    async def dial(self) -> None:
        await self._connection.dial()

    async def options(self, timeout: float | None = None) -> Options:
        return messages.to_options(await self._connection.call(_OPTIONS, pb.Empty(), timeout))

    async def list_and_watch(self) -> AsyncGenerator[list[ListedDevice], None]:
        """The lists as they came: a kubelet takes what `Device` would refuse."""
        async with aclosing(self._connection.stream(_LIST, pb.Empty())) as replies:
            async for reply in replies:
                yield messages.to_listed(reply)

    async def prefer(self, *requests: PreferenceRequest) -> list[list[str]]:
        reply = await self._connection.call(_PREFER, messages.from_preference_requests(requests))
        return [list(response.deviceIDs) for response in reply.container_responses]

    async def allocate_encoded(self, *containers: Sequence[str]) -> list[bytes]:
        """The ContainerAllocateResponses as a kubelet keeps them in its checkpoint; `messages.decode` reads them."""
        requests = [pb.ContainerAllocateRequest(devices_ids=device_ids) for device_ids in containers]
        reply = await self._connection.call(_ALLOCATE, pb.AllocateRequest(container_requests=requests))
        return [response.SerializeToString(deterministic=True) for response in reply.container_responses]

    async def pre_start(self, device_ids: Sequence[str], timeout: float | None = 30) -> None:
        request = pb.PreStartContainerRequest(devices_ids=device_ids)
        await self._connection.call(_PRE_START, request, timeout)


@asynccontextmanager
async def connect(socket: Path) -> AsyncIterator[DevicePluginClient]:
    async with transport.connect(socket, transport.MESSAGE_LIMIT) as connection:
        yield DevicePluginClient(connection)
