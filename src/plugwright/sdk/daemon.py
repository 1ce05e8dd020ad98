"""The daemon: serves any number of plugins, which may come, go and be replaced while it runs.

Each has a `ResourceRuntime` of its own, so that a broken plugin does not affect another. Signals, the control socket
and the probes are around it, in `run`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from plugwright.errors import ConfigError
from plugwright.model import some
from plugwright.sdk import inventory, registration
from plugwright.sdk.cordons import Cordons
from plugwright.sdk.discovery import Discovery
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.plugin import Plugin, supported_options
from plugwright.sdk.plugin_calls import PluginCalls, StallDetector
from plugwright.sdk.plugin_checks import check_plugins
from plugwright.sdk.registration import ResourceRegistration
from plugwright.sdk.service import PluginService
from plugwright.sdk.settings import Registration, Settings
from plugwright.system import sockets
from plugwright.system.concurrency import Latest
from plugwright.system.inotify import Directory

__all__ = ["Daemon", "ResourceRuntime"]

logger = logging.getLogger(__name__)


class ResourceRuntime:
    """One resource at run time: its plugin, inventory, service and registration."""

    def __init__(self, plugin: Plugin, settings: Settings, directory: Directory, stalls: StallDetector) -> None:
        self.resource = plugin.resource
        self.inventory = Inventory(plugin.resource)
        self._settings = settings
        self._calls = PluginCalls(plugin.resource, stalls)
        self.service = PluginService(plugin, self.inventory, self._calls, settings)
        self.discovery = Discovery(self.inventory, self._calls, self.service.metrics, settings.timeouts)
        self.registration = ResourceRegistration(self.inventory, self.service, directory, settings)
        self._starts = Latest(0)  # goes up when discover() is to be called again

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Calls `callback` whenever something that `status` shows has changed."""
        self.inventory.latest.subscribe(callback)
        self.inventory.refused.subscribe(callback)
        self.discovery.failing.subscribe(callback)
        self.service.streams.subscribe(callback)
        self.registration.status.subscribe(callback)

    async def run(self) -> None:
        paths, keep = self._settings.paths, self._settings.timeouts.departed
        self.inventory.add_held(inventory.held_by_checkpoint(paths.checkpoint, self.resource) or {})
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._discover(), name=f"discovery {self.resource}")
            tasks.create_task(self.registration.run(), name=f"registration {self.resource}")
            tasks.create_task(inventory.forget_removed_devices(self.inventory, paths, keep))

    def replace_plugin(self, plugin: Plugin) -> None:
        """Another plugin takes over the resource; the device list stays until the new one yields its first."""
        before, self.service.plugin = supported_options(self.service.plugin), plugin
        self._starts.publish(self._starts.value + 1)
        if supported_options(plugin) != before:
            self.registration.register_again()

    async def command(self, name: str, arguments: Mapping[str, str]) -> str:
        return await self._calls.call(
            "command", self.service.plugin.command, name, arguments, limit=self._settings.limits.command
        )

    async def _discover(self) -> None:
        while True:
            start = self._starts.value
            async with asyncio.TaskGroup() as tasks:
                discovering = tasks.create_task(self.discovery.run(self.service.plugin))
                await self._starts.until(lambda count: count != start)  # noqa: B023  awaited here
                discovering.cancel()


class Daemon:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.stalls = StallDetector(settings.limits.loop_step)
        self.resources: dict[str, ResourceRuntime] = {}
        self.serving = False  # from the first configuration on, until it stops
        self.changed = Latest(0)  # goes up whenever something that `status` shows has changed
        paths, is_direct = settings.paths, settings.registration is Registration.DIRECT
        self._directory = Directory(paths.device_plugins if is_direct else paths.plugins_registry)
        self._cordons = Cordons(settings.state_dir / "cordons.json" if settings.state_dir else None)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    @asynccontextmanager
    async def running(self, plugins: Iterable[Plugin]) -> AsyncIterator["Daemon"]:
        """Serves while inside; leaving ends the streams and removes the sockets."""
        plugins = check_plugins(plugins)
        for plugin in plugins:
            sockets.check_path(self._directory.path / registration.unique_socket_name(plugin.resource))
        removed = registration.remove_stale_sockets(self._directory.path)
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
        """Serves `plugins` and no others; a plugin that is served already, the same object, goes on untouched."""
        new = {plugin.resource: plugin for plugin in check_plugins(plugins)}
        await self._stop([resource for resource in self.resources if resource not in new])
        for resource, plugin in new.items():
            runtime = self.resources.get(resource)
            if runtime is None:
                self._start(plugin)
            elif runtime.service.plugin is not plugin:
                logger.info("resource changed", extra={"resource": resource})
                runtime.replace_plugin(plugin)
        self._publish_change()

    @property
    def plugins(self) -> dict[str, Plugin]:
        """The plugins that are served now, by resource."""
        return {name: runtime.service.plugin for name, runtime in self.resources.items()}

    @property
    def directory(self) -> Path:
        """The directory of the sockets."""
        return self._directory.path

    def rediscover(self) -> None:
        """Calls every plugin's discover() again."""
        for runtime in self.resources.values():
            runtime.replace_plugin(runtime.service.plugin)

    def cordon(self, resource: str, device_id: str, reason: str) -> None:
        runtime = self.resource(resource)
        snapshot = runtime.inventory.latest.value
        devices = snapshot.devices if snapshot is not None else {}
        if device_id not in devices:
            raise ConfigError(f"{resource} has no device {device_id!r} (it has: {some(devices)})")
        devices[device_id].unhealthy(reason)  # raises for a reason that a device cannot have
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
            raise ConfigError(f"no resource {name!r} is served here (served: {some(sorted(self.resources))})")
        return self.resources[name]

    def _start(self, plugin: Plugin) -> None:
        assert self._group is not None
        runtime = ResourceRuntime(plugin, self.settings, self._directory, self.stalls)
        runtime.inventory.cordon(self._cordons.of(plugin.resource))
        runtime.subscribe(self._publish_change)
        self.resources[plugin.resource] = runtime
        self._tasks[plugin.resource] = self._group.create_task(runtime.run(), name=f"resource {plugin.resource}")

    async def _stop(self, resources: list[str]) -> None:
        stopping = [self._tasks.pop(resource) for resource in resources]
        for resource, task in zip(resources, stopping, strict=True):
            del self.resources[resource]
            task.cancel()
        if stopping:
            await asyncio.wait(stopping)

    def _publish_change(self) -> None:
        self.changed.publish(self.changed.value + 1)
