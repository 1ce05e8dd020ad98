"""Plugin registration, by both ways: the Registration service on kubelet.sock (1.25 to 1.38), and the plugin watcher
over the sockets in plugins_registry (1.39 to 1.52).

The watcher lists the directory at every reconciliation, where the real plugin manager works through the events of its
inotify watch. What happens once a plugin is connected is `endpoints`.
"""

import asyncio
import os
import os.path
from dataclasses import dataclass
from pathlib import Path

from plugwright.errors import InvalidValue, PeerRefused, PlugwrightError
from plugwright.kubelet.devicemanager.manager import DeviceManager
from plugwright.kubelet.metrics import MetricName
from plugwright.model import Resource
from plugwright.protocol import registration
from plugwright.protocol.registration import (
    API_VERSION,
    DEVICE_PLUGIN,
    PluginInfo,
    PluginInfoClient,
    RegisterRequest,
)

__all__ = ["PluginWatcher", "RegistrationServer", "is_resource_name"]

_REGISTER_ERROR = "RegisterPlugin error -- "
_Identity = tuple[int, int]


class RegistrationServer:
    """Answers once the plugin is dialled and its options are known; its device list follows later (1.31, 1.34)."""

    def __init__(self, manager: DeviceManager) -> None:
        self._manager = manager
        self._context = manager.context

    async def register(self, request: RegisterRequest) -> None:
        resource = request.resource
        self._manager.metrics.count(MetricName.REGISTRATIONS, resource_name=resource)
        with self._context.event_log.record_call("Register", resource, (request.endpoint,)):
            if self._context.settings.on_register is not None:
                await self._context.settings.on_register(request)
            _check(request)
            socket = self._socket(request)
            try:
                await self._manager.endpoints.connect(resource, socket)
            except PeerRefused:
                raise
            except PlugwrightError as error:  # such as a path that is too long to be dialled
                raise PeerRefused("UNKNOWN", f"failed to dial device plugin: {error}") from error
        self._context.record("registered", resource, f"at {socket.name}")

    def _socket(self, request: RegisterRequest) -> Path:
        # The endpoint is joined to the directory and cleaned: an absolute path lands below it, `..` leaves it (1.29).
        directory = self._context.paths.device_plugins
        socket = Path(os.path.normpath(f"{directory}/{request.endpoint}"))
        if socket.parent != directory:
            self._context.findings.report(
                "1.29",
                request.resource,
                f"endpoint {request.endpoint!r} is not in the plugin directory",
                "dials it all the same",
            )
        return socket


def _check(request: RegisterRequest) -> None:
    if request.version != API_VERSION:
        raise PeerRefused(
            "UNKNOWN",
            f'requested API version "{request.version}" is not supported by kubelet. '
            f'Supported version is ["{API_VERSION}"]',
        )
    if not is_resource_name(request.resource):
        raise PeerRefused("UNKNOWN", f'the ResourceName "{request.resource}" is invalid')


def is_resource_name(name: str) -> bool:
    try:
        Resource(name)
    except InvalidValue:
        return False
    return True


@dataclass(slots=True)
class _PluginSocket:
    """A socket in plugins_registry, its registration, and when that may be retried."""

    identity: _Identity
    resource: str = ""
    endpoint: Path | None = None  # the socket that was dialled
    registered: bool = False
    busy: bool = False
    not_before: float = 0.0
    wait: float = 0.0


class PluginWatcher:
    def __init__(self, manager: DeviceManager, tasks: asyncio.TaskGroup) -> None:
        self._manager = manager
        self._context = manager.context
        self._tasks = tasks
        self._directory = manager.context.paths.plugins_registry
        self._timing = manager.context.settings.timing
        self._clock = manager.context.settings.clock
        self._plugins: dict[Path, _PluginSocket] = {}

    async def run(self) -> None:
        # Unlike the device-plugins directory this one is never cleaned (1.40).
        self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        while True:
            self.reconcile()
            await asyncio.sleep(self._timing.reconcile)

    def reconcile(self) -> None:
        """First deregisters sockets that vanished or were replaced, then registers new ones (1.42)."""
        sockets = _sockets(self._directory)
        for path, plugin in sorted(self._plugins.items()):
            if sockets.get(path) != plugin.identity and not plugin.busy:
                self._deregister(path, plugin)
        now = self._clock()
        for path, identity in sorted(sockets.items()):
            plugin = self._plugins.setdefault(path, _PluginSocket(identity))
            self._count(path, desired=True, actual=plugin.registered)
            if not plugin.registered and not plugin.busy and plugin.not_before <= now:
                plugin.busy = True
                self._tasks.create_task(self._register(path, plugin))

    def _deregister(self, path: Path, plugin: _PluginSocket) -> None:
        del self._plugins[path]
        self._count(path, desired=False, actual=False)
        if plugin.registered:
            self._disconnect(path, plugin)

    def _disconnect(self, path: Path, plugin: _PluginSocket) -> None:
        self._manager.endpoints.disconnect(plugin.resource, plugin.endpoint or path)

    def _count(self, path: Path, *, desired: bool, actual: bool) -> None:
        for state, value in (("desired", desired), ("actual", actual)):
            labels = {"socket_path": str(path), "state": f"{state}_state_of_world"}
            self._manager.metrics.set(MetricName.WATCHED_PLUGINS, value, **labels)

    async def _register(self, path: Path, plugin: _PluginSocket) -> None:
        try:
            async with registration.connect_watched(path) as client:
                await self._handshake(path, plugin, client)
        except PlugwrightError as error:
            plugin.registered = False
            self._retry_later(plugin)
            self._context.record("refused", str(path.name), str(error))
        finally:
            plugin.busy = False

    async def _handshake(self, path: Path, plugin: _PluginSocket, client: PluginInfoClient) -> None:
        with self._context.event_log.record_call("GetInfo", path.name):
            info = await client.announce(self._timing.get_info)
        # The endpoint is a path as it is, without joining; an empty one means this socket (1.44).
        plugin.endpoint = Path(info.endpoint) if info.endpoint else path
        error = _validation_error(info, path) or await self._connect(info.name, plugin.endpoint)
        plugin.resource, plugin.registered = info.name, not error
        with self._context.event_log.record_call("NotifyRegistrationStatus", info.name, (error,) if error else ()):
            await self._notify(path, plugin, client, error)
        if error:
            self._retry_later(plugin)
            return
        self._count(path, desired=True, actual=True)
        self._context.record("registered", info.name, f"found at {path.name}")

    async def _notify(self, path: Path, plugin: _PluginSocket, client: PluginInfoClient, error: str) -> None:
        # A plugin that fails this call is deregistered again (1.47).
        try:
            await client.notify(not error, error, self._timing.notify)
        except PlugwrightError:
            if plugin.registered:
                self._disconnect(path, plugin)
            raise

    async def _connect(self, resource: str, endpoint: Path) -> str:
        try:
            await self._manager.endpoints.connect(resource, endpoint)
        except PlugwrightError as error:
            return f"{_REGISTER_ERROR}plugin registration failed with err: {getattr(error, 'message', '') or error}"
        return ""

    def _retry_later(self, plugin: _PluginSocket) -> None:
        """Waits half a second after the first failure, and twice as long after each other one (1.43)."""
        plugin.wait = min(plugin.wait * 2 or self._timing.retry, self._timing.max_retry)
        plugin.not_before = self._clock() + plugin.wait


def _validation_error(info: PluginInfo, path: Path) -> str:
    """The kubelet's own text (1.46), or nothing if the plugin is valid."""
    if info.kind != DEVICE_PLUGIN:
        return f"{_REGISTER_ERROR}no handler registered for plugin type: {info.kind} at socket {path}"
    if API_VERSION not in info.versions:
        versions = " ".join(info.versions)
        return (
            f"{_REGISTER_ERROR}plugin validation failed with err: manager version, {API_VERSION}, "
            f"is not among plugin supported versions [{versions}]"
        )
    if not is_resource_name(info.name):
        return (
            f"{_REGISTER_ERROR}plugin validation failed with err: invalid name of device plugin socket: "
            f'the ResourceName "{info.name}" is invalid'
        )
    return ""


def _sockets(directory: Path) -> dict[Path, _Identity]:
    """Every socket below the directory except hidden ones (1.41); one that was created again has a new identity."""
    sockets = {}
    for folder, _, names in os.walk(directory):
        for path in (Path(folder, name) for name in names if not name.startswith(".")):
            try:
                if path.is_socket():
                    status = path.stat()
                    sockets[path] = (status.st_ino, status.st_ctime_ns)
            except OSError:
                continue  # removed in between
    return sockets
