"""Serves plugins: one `ResourceRuntime` for each, so that a broken one never touches another."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from plugwright.errors import ConfigError, InvalidValue
from plugwright.model import Resource, some
from plugwright.sdk import inventory, registration
from plugwright.sdk.cordons import Cordons
from plugwright.sdk.discovery import Discovery
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.plugin import Plugin, announced
from plugwright.sdk.plugin_calls import Caller, StallWatch
from plugwright.sdk.registration import ResourceRegistration
from plugwright.sdk.service import PluginService
from plugwright.sdk.settings import Registration, Settings
from plugwright.system import sockets
from plugwright.system.concurrency import Latest
from plugwright.system.inotify import Directory

__all__ = ["Daemon", "ResourceRuntime", "checked"]

logger = logging.getLogger(__name__)


class ResourceRuntime:
    """One resource: its plugin, what the plugin found, and how it stands with the kubelet."""

    def __init__(self, plugin: Plugin, settings: Settings, directory: Directory, stalls: StallWatch) -> None:
        self.resource = plugin.resource
        self.inventory = Inventory(plugin.resource)
        self._settings = settings
        self._caller = Caller(plugin.resource, stalls)
        self.service = PluginService(plugin, self.inventory, self._caller, settings)
        self.discovery = Discovery(self.inventory, self._caller, self.service.tally, settings.timeouts)
        self.lifecycle = ResourceRegistration(self.inventory, self.service, directory, settings)
        self._exchanged = asyncio.Event()

    def ring(self, bell: Callable[[], None]) -> None:
        """Calls `bell` whenever something that `status` shows has changed."""
        parts = (self.inventory.newest, self.inventory.refused, self.discovery.failing)
        for part in (*parts, self.service.streams, self.lifecycle.standing):
            part.subscribe(bell)

    async def run(self) -> None:
        paths, patience = self._settings.paths, self._settings.timeouts
        self.inventory.hold(inventory.held_by_checkpoint(paths.checkpoint, self.resource) or {})
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._discover(), name=f"discover {self.resource}")
            tasks.create_task(self.lifecycle.run(), name=f"lifecycle {self.resource}")
            tasks.create_task(inventory.forget_departed(self.inventory, paths, patience.departed))

    def exchange(self, plugin: Plugin) -> None:
        """Another plugin takes over the resource; what was found stays until the new one has found something."""
        before, self.service.plugin = announced(self.service.plugin), plugin
        self._exchanged.set()
        if announced(plugin) != before:
            self.lifecycle.register_again()

    async def command(self, name: str, arguments: Mapping[str, str]) -> str:
        return await self._caller.call(
            "command", self.service.plugin.command, name, arguments, limit=self._settings.limits.command
        )

    async def _discover(self) -> None:
        while True:
            self._exchanged.clear()
            async with asyncio.TaskGroup() as tasks:
                discovering = tasks.create_task(self.discovery.run(self.service.plugin))
                await self._exchanged.wait()
                discovering.cancel()


class Daemon:
    """Any number of resources, which may come, go and change while it runs."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.stalls = StallWatch(settings.limits.loop_step)
        self.resources: dict[str, ResourceRuntime] = {}
        self.serving = False  # from the first configuration on, until it ends
        self.changed = Latest(0)  # goes up whenever something that `status` shows has changed
        self._directory = Directory(_directory(settings))
        self._cordons = Cordons(settings.state_dir / "cordons.json" if settings.state_dir else None)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    @asynccontextmanager
    async def running(self, plugins: Iterable[Plugin]) -> AsyncIterator["Daemon"]:
        """Serves while inside; leaving ends the streams and removes the sockets."""
        plugins = checked(plugins)
        for plugin in plugins:
            sockets.check_path(self._directory.path / registration.fresh_name(plugin.resource))
        removed = registration.remove_stale(self._directory.path)
        if removed:
            logger.info("sockets of an earlier run removed", extra={"sockets": removed})
        error: BaseException | None = None
        try:
            async with self._directory.watching(), asyncio.TaskGroup() as self._group:
                try:
                    await self.apply(plugins)
                    self.serving = True
                    yield self
                except BaseException as raised:  # noqa: BLE001  raised again below: a TaskGroup would make a group of it
                    error = raised
                self.serving = False
                await self._stop(list(self.resources))
        finally:
            self.stalls.close()
        if error is not None:
            raise error

    async def apply(self, plugins: Iterable[Plugin]) -> None:
        """Makes `plugins` what is served: what is the same object goes on untouched."""
        wanted = {plugin.resource: plugin for plugin in checked(plugins)}
        await self._stop([resource for resource in self.resources if resource not in wanted])
        for resource, plugin in wanted.items():
            runtime = self.resources.get(resource)
            if runtime is None:
                self._start(plugin)
            elif runtime.service.plugin is not plugin:
                logger.info("resource changed", extra={"resource": resource})
                runtime.exchange(plugin)
        self._ring()

    @property
    def directory(self) -> Path:
        """Where the sockets are."""
        return self._directory.path

    def rediscover(self) -> None:
        """Calls every plugin's discover() anew."""
        for runtime in self.resources.values():
            runtime.exchange(runtime.service.plugin)

    def cordon(self, resource: str, device_id: str, reason: str) -> None:
        runtime = self.resource(resource)
        snapshot = runtime.inventory.newest.value
        devices = snapshot.devices if snapshot is not None else {}
        if device_id not in devices:
            raise ConfigError(f"{resource} has no device {device_id!r} (there is: {some(devices)})")
        devices[device_id].unhealthy(reason)  # refuses a reason that could not be kept
        self._cordons.add(resource, device_id, reason)
        runtime.inventory.cordon(self._cordons.of(resource))

    def uncordon(self, resource: str, device_id: str) -> None:
        runtime = self.resource(resource)
        if device_id not in self._cordons.of(resource):
            raise ConfigError(f"{device_id!r} of {resource} is not cordoned")
        self._cordons.remove(resource, device_id)
        runtime.inventory.cordon(self._cordons.of(resource))

    def resource(self, name: str) -> ResourceRuntime:
        if name not in self.resources:
            raise ConfigError(f"no resource {name!r} is served here (there is: {some(sorted(self.resources))})")
        return self.resources[name]

    def _start(self, plugin: Plugin) -> None:
        assert self._group is not None
        runtime = ResourceRuntime(plugin, self.settings, self._directory, self.stalls)
        runtime.inventory.cordon(self._cordons.of(plugin.resource))
        runtime.ring(self._ring)
        self.resources[plugin.resource] = runtime
        self._tasks[plugin.resource] = self._group.create_task(runtime.run(), name=f"resource {plugin.resource}")

    async def _stop(self, resources: list[str]) -> None:
        stopping = [self._tasks.pop(resource) for resource in resources]
        for resource, task in zip(resources, stopping, strict=True):
            del self.resources[resource]
            task.cancel()
        if stopping:
            await asyncio.wait(stopping)

    def _ring(self) -> None:
        self.changed.publish(self.changed.value + 1)


def checked(plugins: Iterable[Plugin]) -> list[Plugin]:
    """The plugins, if each has a resource name of its own."""
    plugins = list(plugins)
    seen = set()
    for plugin in plugins:
        resource = getattr(plugin, "resource", "")
        if not isinstance(plugin, Plugin) or not resource:
            raise InvalidValue(f"{plugin!r} is no Plugin with a resource")
        if Resource(resource).name in seen:
            raise InvalidValue(f"two plugins serve {resource}")
        seen.add(resource)
    return plugins


def _directory(settings: Settings) -> Path:
    paths = settings.paths
    return paths.device_plugins if settings.registration is Registration.DIRECT else paths.plugins_registry
