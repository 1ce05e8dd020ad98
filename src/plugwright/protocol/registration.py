"""Registration of a plugin with a kubelet, in its two ways.

Direct: the kubelet serves `Registration` on kubelet.sock and the plugin calls it. Watcher: the plugin makes a socket in
plugins_registry, and the kubelet's plugin watcher calls `GetInfo` and `NotifyRegistrationStatus` on it.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from plugwright.model import Options
from plugwright.protocol import device_plugin, messages, transport
from plugwright.protocol.device_plugin import DevicePluginService
from plugwright.protocol.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from plugwright.protocol.pluginregistration.v1 import pluginregistration_pb2 as watcher_pb
from plugwright.protocol.transport import Method, Unary
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

_REGISTER = Method("/v1beta1.Registration/Register", pb.RegisterRequest, pb.Empty)
_INFO = Method("/pluginregistration.Registration/GetInfo", watcher_pb.InfoRequest, watcher_pb.PluginInfo)
_NOTIFY = Method(
    "/pluginregistration.Registration/NotifyRegistrationStatus",
    watcher_pb.RegistrationStatus,
    watcher_pb.RegistrationStatusResponse,
)


@dataclass(frozen=True, slots=True)
class RegisterRequest:
    """`endpoint` is the name of a socket in the device-plugins directory."""

    resource: str
    endpoint: str
    options: Options = field(default_factory=Options)
    version: str = API_VERSION


class RegistrationService(Protocol):
    """The kubelet's side: returns when the plugin is accepted, raises `PeerRefused` when it is not."""

    async def register(self, request: RegisterRequest) -> None: ...


def serve(service: RegistrationService, socket: Path, *, kept: bool = False) -> AbstractAsyncContextManager[SocketFile]:
    async def register(request: pb.RegisterRequest) -> pb.Empty:
        options = messages.to_options(request.options)
        await service.register(RegisterRequest(request.resource_name, request.endpoint, options, request.version))
        return pb.Empty()

    listening_on = partial(sockets.listen, mode=None)  # a kubelet leaves its socket's mode to the umask
    return transport.serve(socket, [Unary(_REGISTER, register)], kept=kept, listening_on=listening_on)


class RegistrationClient:
    def __init__(self, connection: transport.Connection) -> None:
        self._connection = connection

    async def register(self, request: RegisterRequest, timeout: float | None = None) -> None:
        message = pb.RegisterRequest(
            version=request.version,
            endpoint=request.endpoint,
            resource_name=request.resource,
            options=messages.from_options(request.options),
        )
        await self._connection.call(_REGISTER, message, timeout)


@asynccontextmanager
async def connect(socket: Path) -> AsyncIterator[RegistrationClient]:
    async with transport.connect(socket) as connection:
        yield RegistrationClient(connection)


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A plugin's answer to GetInfo; an empty endpoint means the same socket."""

    name: str
    kind: str = DEVICE_PLUGIN
    endpoint: str = ""
    versions: tuple[str, ...] = (API_VERSION,)


class AnnouncementService(Protocol):
    """The plugin's side of a registration by the watcher."""

    async def announce(self) -> PluginInfo: ...

    async def notify(self, registered: bool, error: str) -> None: ...


def serve_watched(
    service: DevicePluginService, announcement: AnnouncementService, socket: Path
) -> AbstractAsyncContextManager[SocketFile]:
    """The device plugin service and the watcher's `Registration` on one socket."""
    return transport.serve(socket, [*device_plugin.methods(service), *announcement_methods(announcement)])


def announcement_methods(announcement: AnnouncementService) -> list[transport.Bound]:
    """The methods that the plugin watcher calls, to be served beside others on one socket."""

    async def get_info(_: watcher_pb.InfoRequest) -> watcher_pb.PluginInfo:
        info = await announcement.announce()
        return watcher_pb.PluginInfo(
            type=info.kind, name=info.name, endpoint=info.endpoint, supported_versions=info.versions
        )

    async def notify(message: watcher_pb.RegistrationStatus) -> watcher_pb.RegistrationStatusResponse:
        await announcement.notify(message.plugin_registered, message.error)
        return watcher_pb.RegistrationStatusResponse()

    return [Unary(_INFO, get_info), Unary(_NOTIFY, notify)]


class PluginInfoClient:
    def __init__(self, connection: transport.Connection) -> None:
        self._connection = connection

    async def announce(self, timeout: float | None = 1) -> PluginInfo:
        info = await self._connection.call(_INFO, watcher_pb.InfoRequest(), timeout)
        return PluginInfo(info.name, info.type, info.endpoint, tuple(info.supported_versions))

    async def notify(self, registered: bool, error: str = "", timeout: float | None = 5) -> None:
        message = watcher_pb.RegistrationStatus(plugin_registered=registered, error=error)
        await self._connection.call(_NOTIFY, message, timeout)


@asynccontextmanager
async def connect_watched(socket: Path) -> AsyncIterator[PluginInfoClient]:
    async with transport.connect(socket) as connection:
        yield PluginInfoClient(connection)
