"""Plugins that call: the Registration service on kubelet.sock (1.25 to 1.38).

Plugins that are found: sockets in plugins_registry (1.39 to 1.52).

Once a second the directory is looked through, as the real plugin manager goes through what its watcher told it.
"""

import asyncio
import os
import os.path
from dataclasses import dataclass
from pathlib import Path

from plugwright.errors import InvalidValue, PeerRefused, PlugwrightError
from plugwright.kubelet.devicemanager.manager import DeviceManager
from plugwright.kubelet.metrics import Name
from plugwright.model import Resource
from plugwright.protocol import registration
from plugwright.protocol.registration import (
    API_VERSION,
    DEVICE_PLUGIN,
    PluginInfo,
    PluginInfoClient,
    RegisterRequest,
)

__all__ = ["Registrar", "Watcher", "is_resource_name"]


class Registrar:
    """Answers when the plugin was dialled back and told its options; its list comes later (1.31, 1.34)."""

    def __init__(self, manager: DeviceManager) -> None:
        self._manager = manager
        self._context = manager.context

    async def register(self, request: RegisterRequest) -> None:
        resource = request.resource
        self._manager.metrics.count(Name.REGISTRATIONS, resource_name=resource)
        with self._context.trace.timing("Register", resource, (request.endpoint,)):
            _check(request)
            socket = self._socket(request)
            try:
                await self._manager.connections.connect(resource, socket)
            except PeerRefused:
                raise
            except PlugwrightError as error:  # such as a path that is too long to be dialled
                raise PeerRefused("UNKNOWN", f"failed to dial device plugin: {error}") from error
        self._context.tell("registered", resource, f"at {socket.name}")

    def _socket(self, request: RegisterRequest) -> Path:
        """Joined and cleaned, so that an absolute path lands below the directory, and `..` leaves it (1.29)."""
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


def is_resource_name(name: str) -> bool:
    try:
        Resource(name)
    except InvalidValue:
        return False
    return True


def _check(request: RegisterRequest) -> None:
    if request.version != API_VERSION:
        raise PeerRefused(
            "UNKNOWN",
            f'requested API version "{request.version}" is not supported by kubelet. '
            f'Supported version is ["{API_VERSION}"]',
        )
    if not is_resource_name(request.resource):
        raise PeerRefused("UNKNOWN", f'the ResourceName "{request.resource}" is invalid')


_Identity = tuple[int, int]
_FAILED = "RegisterPlugin error -- "


@dataclass(slots=True)
class _Found:
    """One socket: what it registered, and when it may be tried again."""

    identity: _Identity
    resource: str = ""
    endpoint: Path | None = None  # where its plugin was connected to
    registered: bool = False
    busy: bool = False
    not_before: float = 0.0
    wait: float = 0.0


class Watcher:
    def __init__(self, manager: DeviceManager, tasks: asyncio.TaskGroup) -> None:
        self._manager = manager
        self._tasks = tasks
        self._directory = manager.context.paths.plugins_registry
        self._timing = manager.context.settings.timing
        self._clock = manager.context.settings.clock
        self._found: dict[Path, _Found] = {}

    async def run(self) -> None:
        self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)  # never cleaned (1.40)
        while True:
            self.look()
            await asyncio.sleep(self._timing.look)

    def look(self) -> None:
        """First those that went away or were made anew, then those that are new (1.42)."""
        sockets = _sockets(self._directory)
        for path, found in sorted(self._found.items()):
            if sockets.get(path) != found.identity and not found.busy:
                self._forget(path, found)
        now = self._clock()
        for path, identity in sorted(sockets.items()):
            found = self._found.setdefault(path, _Found(identity))
            self._count(path, desired=True, actual=found.registered)
            if not found.registered and not found.busy and found.not_before <= now:
                found.busy = True
                self._tasks.create_task(self._register(path, found))

    def _forget(self, path: Path, found: _Found) -> None:
        del self._found[path]
        self._count(path, desired=False, actual=False)
        if found.registered:
            self._disconnect(path, found)

    def _disconnect(self, path: Path, found: _Found) -> None:
        self._manager.connections.disconnect(found.resource, found.endpoint or path)

    def _count(self, path: Path, *, desired: bool, actual: bool) -> None:
        for state, value in (("desired", desired), ("actual", actual)):
            labels = {"socket_path": str(path), "state": f"{state}_state_of_world"}
            self._manager.metrics.set(Name.WATCHED_PLUGINS, value, **labels)

    async def _register(self, path: Path, found: _Found) -> None:
        try:
            async with registration.connect_watched(path) as client:
                await self._introduce(path, found, client)
        except PlugwrightError as error:
            found.registered = False
            self._retry_later(found)
            self._manager.context.tell("refused", str(path.name), str(error))
        finally:
            found.busy = False

    async def _introduce(self, path: Path, found: _Found, client: PluginInfoClient) -> None:
        with self._manager.context.trace.timing("GetInfo", path.name):
            told = await client.announce(self._timing.get_info)
        found.endpoint = Path(told.endpoint) if told.endpoint else path  # as it is, nothing is joined (1.44)
        error = _why_not(told, path) or await self._connect(told.name, found.endpoint)
        found.resource, found.registered = told.name, not error
        with self._manager.context.trace.timing("NotifyRegistrationStatus", told.name, (error,) if error else ()):
            await self._notify(path, found, client, error)
        if error:
            self._retry_later(found)
            return
        self._count(path, desired=True, actual=True)
        self._manager.context.tell("registered", told.name, f"found at {path.name}")

    async def _notify(self, path: Path, found: _Found, client: PluginInfoClient, error: str) -> None:
        try:
            await client.notify(not error, error, self._timing.notify)
        except PlugwrightError:
            if found.registered:  # 1.47
                self._disconnect(path, found)
            raise

    async def _connect(self, resource: str, endpoint: Path) -> str:
        try:
            await self._manager.connections.connect(resource, endpoint)
        except PlugwrightError as error:
            return f"{_FAILED}plugin registration failed with err: {getattr(error, 'message', '') or error}"
        return ""

    def _retry_later(self, found: _Found) -> None:
        """No sooner than half a second, a second, two (1.43)."""
        found.wait = min(found.wait * 2 or self._timing.retry, self._timing.most_retry)
        found.not_before = self._clock() + found.wait


def _why_not(told: PluginInfo, path: Path) -> str:
    """The kubelet's own texts (1.46); nothing if the plugin is welcome."""
    if told.kind != DEVICE_PLUGIN:
        return f"{_FAILED}no handler registered for plugin type: {told.kind} at socket {path}"
    if API_VERSION not in told.versions:
        listed = " ".join(told.versions)
        return (
            f"{_FAILED}plugin validation failed with err: manager version, {API_VERSION}, "
            f"is not among plugin supported versions [{listed}]"
        )
    if not is_resource_name(told.name):
        return (
            f"{_FAILED}plugin validation failed with err: invalid name of device plugin socket: "
            f'the ResourceName "{told.name}" is invalid'
        )
    return ""


def _sockets(directory: Path) -> dict[Path, _Identity]:
    """Every socket below, but for hidden ones (1.41); a file made anew is another one."""
    found = {}
    for folder, _, names in os.walk(directory):
        for path in (Path(folder, name) for name in names if not name.startswith(".")):
            try:
                if path.is_socket():
                    status = path.stat()
                    found[path] = (status.st_ino, status.st_ctime_ns)
            except OSError:
                continue  # it went away in between
    return found
