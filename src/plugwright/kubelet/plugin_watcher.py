"""The plugin watcher: plugins of every type register by a socket in plugins_registry (1.39 to 1.52).

A reconciliation lists the directory, while the real plugin manager processes events of its inotify watch. Needless
reconciliations are skipped, because a process can have a thousand kubelets. The handler of each type makes the calls to
its plugins and handles registered plugins.
"""

import asyncio
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from plugwright.errors import PlugwrightError
from plugwright.kubelet.metrics import KubeletMetrics, MetricName
from plugwright.kubelet.settings import KubeletContext
from plugwright.protocol import registration
from plugwright.protocol.registration import PluginInfo, PluginInfoClient
from plugwright.system.inotify import WatchedDirectories
from plugwright.system.latest import Signal

__all__ = ["PluginHandler", "PluginWatcher"]

_REGISTER_ERROR = "RegisterPlugin error -- "
_Identity = tuple[int, int]


class PluginHandler(Protocol):
    """One type of plugin; messages are those of the real kubelet."""

    def validate(self, info: PluginInfo, endpoint: Path) -> str:
        """Why the plugin cannot be registered, or nothing."""
        ...

    async def register(self, info: PluginInfo, endpoint: Path) -> None:
        """Raises `PlugwrightError` if the plugin cannot be reached or is refused."""
        ...

    def deregister(self, name: str, endpoint: Path) -> None: ...


@dataclass(slots=True)
class _PluginSocket:
    """A socket in plugins_registry, its registration, and the time of the next attempt."""

    identity: _Identity
    info: PluginInfo | None = None
    endpoint: Path | None = None  # the socket that was dialled
    registered: bool = False
    busy: bool = False
    not_before: float = 0.0
    wait: float = 0.0


class PluginWatcher:
    """`handlers` by the plugins' type in GetInfo, such as `DevicePlugin`."""

    def __init__(
        self,
        context: KubeletContext,
        metrics: KubeletMetrics,
        handlers: Mapping[str, PluginHandler],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._context = context
        self._metrics = metrics
        self._handlers = handlers
        self._tasks = tasks
        self._directory = context.paths.plugins_registry
        self._timing = context.settings.timing
        self._clock = context.settings.clock
        self._on_host = context.settings.on_host or (lambda path: path)
        self._plugins: dict[Path, _PluginSocket] = {}

    async def run(self) -> None:
        # Unlike the device-plugins directory, this directory is never cleaned (1.40).
        self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        changed, began = Signal(), asyncio.get_running_loop().time()
        watched = WatchedDirectories(changed.notify)
        with watched.watching():
            while True:
                seen = changed.count
                folders = self.reconcile()
                is_new = watched.replace(folders)
                is_settled = not (is_new or watched.problem or self._is_pending) and folders
                if is_settled and self._timing.reconcile:
                    await changed.wait(seen)
                await self._next_tick(began)

    @property
    def _is_pending(self) -> bool:
        """Whether the next reconciliation has work though no file changes."""
        return any(plugin.busy or not plugin.registered for plugin in self._plugins.values())

    async def _next_tick(self, began: float) -> None:
        """Waits for the end of the interval: a plugin registers when it is over, not when its socket appears."""
        passed = asyncio.get_running_loop().time() - began
        interval = self._timing.reconcile
        await asyncio.sleep((math.floor(passed / interval) + 1) * interval - passed if interval else 0)

    def reconcile(self) -> list[Path]:
        """First deregisters vanished and replaced sockets, then registers new sockets (1.42).

        Returns the listed directories.
        """
        folders, sockets = _sockets(self._directory)
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
        return folders

    def _deregister(self, path: Path, plugin: _PluginSocket) -> None:
        del self._plugins[path]
        self._count(path, desired=False, actual=False)
        if plugin.registered:
            self._disconnect(path, plugin)

    def _disconnect(self, path: Path, plugin: _PluginSocket) -> None:
        if plugin.info is not None:
            self._handlers[plugin.info.kind].deregister(plugin.info.name, plugin.endpoint or path)

    def _count(self, path: Path, *, desired: bool, actual: bool) -> None:
        for state, value in (("desired", desired), ("actual", actual)):
            labels = {"socket_path": str(path), "state": f"{state}_state_of_world"}
            self._metrics.set(MetricName.WATCHED_PLUGINS, value, **labels)

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
        # The endpoint is used as a path without joining; an empty endpoint means this socket (1.44).
        plugin.endpoint = self._on_host(Path(info.endpoint)) if info.endpoint else path
        error = await self._error(info, path, plugin.endpoint)
        plugin.info, plugin.registered = info, not error
        with self._context.event_log.record_call("NotifyRegistrationStatus", info.name, (error,) if error else ()):
            await self._notify(path, plugin, client, error)
        if error:
            self._retry_later(plugin)
            return
        self._count(path, desired=True, actual=True)
        self._context.record("registered", info.name, f"found at {path.name}")

    async def _notify(self, path: Path, plugin: _PluginSocket, client: PluginInfoClient, error: str) -> None:
        # If a plugin fails this call, it is deregistered again (1.47).
        try:
            await client.notify(not error, error, self._timing.notify)
        except PlugwrightError:
            if plugin.registered:
                self._disconnect(path, plugin)
            raise

    async def _error(self, info: PluginInfo, path: Path, endpoint: Path) -> str:
        """Registers the plugin; returns the kubelet's own message on failure (1.46)."""
        handler = self._handlers.get(info.kind)
        if handler is None:
            return f"{_REGISTER_ERROR}no handler registered for plugin type: {info.kind} at socket {path}"
        if problem := handler.validate(info, endpoint):
            return f"{_REGISTER_ERROR}plugin validation failed with err: {problem}"
        try:
            await handler.register(info, endpoint)
        except PlugwrightError as error:
            return f"{_REGISTER_ERROR}plugin registration failed with err: {getattr(error, 'message', '') or error}"
        return ""

    def _retry_later(self, plugin: _PluginSocket) -> None:
        """Waits half a second after the first failure, and twice as long after each further failure (1.43)."""
        plugin.wait = min(plugin.wait * 2 or self._timing.retry, self._timing.max_retry)
        plugin.not_before = self._clock() + plugin.wait


def _sockets(directory: Path) -> tuple[list[Path], dict[Path, _Identity]]:
    """The directory with those below it, and every socket in them except hidden sockets (1.41).

    A newly created socket has a new identity.
    """
    folders, sockets = [], {}
    for folder, _, names in os.walk(directory):
        folders.append(Path(folder))
        for path in (Path(folder, name) for name in names if not name.startswith(".")):
            try:
                if path.is_socket():
                    status = path.stat()
                    sockets[path] = (status.st_ino, status.st_ctime_ns)
            except OSError:
                continue  # removed in between
    return folders, sockets
