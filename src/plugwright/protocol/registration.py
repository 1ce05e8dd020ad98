"""Registration of a plugin with a kubelet, in its two ways.

Direct: the kubelet serves `Registration` on kubelet.sock and the plugin calls it. Watcher: the plugin makes a socket in
plugins_registry, and the kubelet's plugin watcher calls `GetInfo` and `NotifyRegistrationStatus` on it.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from plugwright.model import Options
from plugwright.protocol import device_plugin, messages, transport, wire_format
from plugwright.protocol.device_plugin import AllocateNow, DevicePluginService
from plugwright.protocol.transport import Unary
from plugwright.protocol.wire_format import write, write_flag, write_text
from plugwright.system import sockets
from plugwright.system.sockets import SocketFile

__all__ = [
    "API_VERSION",
    "DEVICE_PLUGIN",
    "AnnouncementService",
    "PluginInfo",
    "PluginInfoClient",
    "RegisterRequest",
    "RegistrationClient",
    "RegistrationService",
    "announcement_methods",
    "connect",
    "connect_watched",
    "serve",
    "serve_watched",
]

API_VERSION = "v1beta1"
DEVICE_PLUGIN = "DevicePlugin"
_REPLY_LIMIT = 64 * 1024  # bytes: the reply to Register is empty, that to GetInfo has a few names

_REGISTER = "/v1beta1.Registration/Register"
_INFO = "/pluginregistration.Registration/GetInfo"
_NOTIFY = "/pluginregistration.Registration/NotifyRegistrationStatus"


class RegisterRequest(msgspec.Struct, frozen=True):
    """`endpoint` is the name of a socket in the device-plugins directory."""

    resource: str
    endpoint: str
    options: Options = Options()
    version: str = API_VERSION


def _encode_request(request: RegisterRequest) -> bytes:
    names = write_text(1, request.version) + write_text(2, request.endpoint) + write_text(3, request.resource)
    return names + write(4, messages.encode_options(request.options))


def _decode_request(message: bytes) -> RegisterRequest:
    fields = wire_format.read(message)
    options = messages.options_of(wire_format.message(fields, 4) or {})
    version, endpoint, resource = (wire_format.text(fields, number) for number in (1, 2, 3))
    return RegisterRequest(resource, endpoint, options, version)


class RegistrationService(Protocol):
    """The kubelet's side: returns when the plugin is accepted, raises `PeerRefused` when it is not."""

    async def register(self, request: RegisterRequest) -> None: ...


def serve(service: RegistrationService, socket: Path, *, kept: bool = False) -> AbstractAsyncContextManager[SocketFile]:
    async def register(message: bytes) -> bytes:
        await service.register(_decode_request(message))
        return b""

    listening_on = partial(sockets.listen, mode=None)  # a kubelet leaves its socket's mode to the umask
    return transport.serve(socket, [Unary(_REGISTER, register)], kept=kept, listening_on=listening_on)


class RegistrationClient:
    def __init__(self, connection: transport.Connection) -> None:
        self._connection = connection

    async def register(self, request: RegisterRequest, timeout: float | None = None) -> None:
        await self._connection.call(_REGISTER, _encode_request(request), wire_format.read, timeout)


@asynccontextmanager
async def connect(socket: Path) -> AsyncIterator[RegistrationClient]:
    async with transport.connect(socket, _REPLY_LIMIT) as connection:
        yield RegistrationClient(connection)


class PluginInfo(msgspec.Struct, frozen=True):
    """A plugin's answer to GetInfo; an empty endpoint means the same socket."""

    name: str
    kind: str = DEVICE_PLUGIN
    endpoint: str = ""
    versions: tuple[str, ...] = (API_VERSION,)


def _encode_info(info: PluginInfo) -> bytes:
    names = write_text(1, info.kind) + write_text(2, info.name) + write_text(3, info.endpoint)
    return names + b"".join(write(4, version.encode()) for version in info.versions)


def _decode_info(message: bytes) -> PluginInfo:
    fields = wire_format.read(message)
    kind, name, endpoint = (wire_format.text(fields, number) for number in (1, 2, 3))
    return PluginInfo(name, kind, endpoint, tuple(wire_format.texts(fields, 4)))


class AnnouncementService(Protocol):
    """The plugin's side of a registration by the watcher."""

    async def announce(self) -> PluginInfo: ...

    async def notify(self, registered: bool, error: str) -> None: ...


def serve_watched(
    service: DevicePluginService,
    announcement: AnnouncementService,
    socket: Path,
    allocate_now: AllocateNow | None = None,
) -> AbstractAsyncContextManager[SocketFile]:
    """The device plugin service and the watcher's `Registration` on one socket."""
    return transport.serve(socket, [*device_plugin.methods(service, allocate_now), *announcement_methods(announcement)])


def announcement_methods(announcement: AnnouncementService) -> list[transport.Bound]:
    """The methods called by the plugin watcher, to be served beside others on one socket."""

    async def get_info(message: bytes) -> bytes:
        wire_format.read(message)  # an empty message
        return _encode_info(await announcement.announce())

    async def notify(message: bytes) -> bytes:
        fields = wire_format.read(message)
        await announcement.notify(wire_format.flag(fields, 1), wire_format.text(fields, 2))
        return b""

    return [Unary(_INFO, get_info), Unary(_NOTIFY, notify)]


class PluginInfoClient:
    def __init__(self, connection: transport.Connection) -> None:
        self._connection = connection

    async def announce(self, timeout: float | None = 1) -> PluginInfo:
        return await self._connection.call(_INFO, b"", _decode_info, timeout)

    async def notify(self, registered: bool, error: str = "", timeout: float | None = 5) -> None:
        message = write_flag(1, registered) + write_text(2, error)
        await self._connection.call(_NOTIFY, message, wire_format.read, timeout)


@asynccontextmanager
async def connect_watched(socket: Path) -> AsyncIterator[PluginInfoClient]:
    async with transport.connect(socket, _REPLY_LIMIT) as connection:
        yield PluginInfoClient(connection)
