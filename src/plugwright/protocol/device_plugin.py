"""The DevicePlugin service: served by plugins, called by kubelets."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Protocol

from plugwright.errors import MalformedMessage
from plugwright.model import Options, PreferenceRequest
from plugwright.protocol import messages, transport, wire_format
from plugwright.protocol.messages import ListedDevice
from plugwright.protocol.transport import Streaming, Unary
from plugwright.system.sockets import SocketFile

__all__ = ["SERVICE", "AllocateNow", "DevicePluginClient", "DevicePluginService", "connect", "methods", "serve"]

SERVICE = "/v1beta1.DevicePlugin"
_OPTIONS = f"{SERVICE}/GetDevicePluginOptions"
_LIST = f"{SERVICE}/ListAndWatch"
_PREFER = f"{SERVICE}/GetPreferredAllocation"
_ALLOCATE = f"{SERVICE}/Allocate"
_PRE_START = f"{SERVICE}/PreStartContainer"

# As `DevicePluginService.allocate`, without waiting; None if the answer is not at hand, and nothing is done then.
AllocateNow = Callable[[Sequence[Sequence[str]]], bytes | None]


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


def serve(
    service: DevicePluginService, socket: Path, allocate_now: AllocateNow | None = None
) -> AbstractAsyncContextManager[SocketFile]:
    return transport.serve(socket, methods(service, allocate_now))


def methods(service: DevicePluginService, allocate_now: AllocateNow | None = None) -> list[transport.Bound]:
    """The service's methods, to be served beside others on one socket."""

    async def options(message: bytes) -> bytes:
        wire_format.read(message)  # an empty message
        return messages.encode_options(await service.options())

    async def prefer(message: bytes) -> bytes:
        return messages.encode_preferences(await service.prefer(messages.decode_preference_requests(message)))

    async def allocate(message: bytes) -> bytes:
        return await service.allocate(messages.decode_allocate_request(message))

    def allocated_now(message: bytes) -> bytes | None:
        try:
            containers = messages.decode_allocate_request(message)
        except MalformedMessage:
            return None  # `allocate` refuses it
        return allocate_now(containers) if allocate_now is not None else None

    async def pre_start(message: bytes) -> bytes:
        await service.pre_start(messages.decode_ids(message))
        return b""

    def lists(message: bytes) -> AsyncGenerator[bytes, None]:
        wire_format.read(message)
        return service.list_and_watch()

    return [
        Unary(_OPTIONS, options),
        Streaming(_LIST, lists),
        Unary(_PREFER, prefer),
        Unary(_ALLOCATE, allocate, allocated_now if allocate_now is not None else None),
        Unary(_PRE_START, pre_start),
    ]


class DevicePluginClient:
    """Calls one plugin, as a kubelet does."""

    def __init__(self, connection: transport.Connection) -> None:
        self._connection = connection

    async def dial(self) -> None:
        await self._connection.dial()

    async def options(self, timeout: float | None = None) -> Options:
        return await self._connection.call(_OPTIONS, b"", messages.decode_options, timeout)

    async def list_and_watch(self) -> AsyncGenerator[list[ListedDevice], None]:
        """The lists as received: a kubelet accepts some values `Device` would refuse."""
        async with aclosing(self._connection.stream(_LIST, b"", messages.decode_devices)) as lists:
            async for devices in lists:
                yield devices

    async def prefer(self, *requests: PreferenceRequest) -> list[list[str]]:
        message = messages.encode_preference_requests(requests)
        return await self._connection.call(_PREFER, message, messages.decode_preferences)

    async def allocate_encoded(self, *containers: Sequence[str]) -> list[bytes]:
        """The ContainerAllocateResponses as a kubelet keeps them in its checkpoint; `messages.decode` reads them."""
        message = messages.encode_allocate_request(containers)
        return await self._connection.call(_ALLOCATE, message, messages.decode_allocations)

    async def pre_start(self, device_ids: Sequence[str], timeout: float | None = 30) -> None:
        await self._connection.call(_PRE_START, messages.encode_ids(device_ids), wire_format.read, timeout)


@asynccontextmanager
async def connect(socket: Path) -> AsyncIterator[DevicePluginClient]:
    async with transport.connect(socket, transport.MESSAGE_LIMIT) as connection:
        yield DevicePluginClient(connection)
