"""The registered DRA drivers, and the connections to them.

A driver may have several plugins, as during a rolling update: the newest connected plugin is called (11.7). Slices of a
driver are deleted half a minute after its end, because pods would wait for it (11.9).
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from plugwright.errors import KubeletError, PeerRefused, PlugwrightError
from plugwright.kubelet.dra.resource_api import KubeClient
from plugwright.kubelet.settings import KubeletContext
from plugwright.protocol import dra, dra_health, transport
from plugwright.protocol.dra import Claim, DRAPluginClient, PreparedDevice
from plugwright.protocol.dra_health import ReportedHealth
from plugwright.protocol.registration import PluginInfo
from plugwright.system.concurrency import Backoff

__all__ = ["DRAPlugin", "Drivers", "HealthHandler"]

_OLD_HEALTH = "v1alpha1.DRAResourceHealth"


@dataclass(slots=True, eq=False)
class DRAPlugin:
    """One plugin of a driver: its service socket, and the called version of the service."""

    driver: str
    endpoint: Path
    version: str
    services: tuple[str, ...]
    context: KubeletContext
    connection: transport.Connection
    connected: bool = False
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    async def prepare(self, claims: Sequence[Claim]) -> dict[str, list[PreparedDevice] | str]:
        uids = tuple(claim.uid for claim in claims)
        with self.context.event_log.record_call("NodePrepareResources", self.driver, uids):
            return await self._client.prepare(claims, self.context.settings.timing.prepare)

    async def unprepare(self, claims: Sequence[Claim]) -> dict[str, str]:
        uids = tuple(claim.uid for claim in claims)
        with self.context.event_log.record_call("NodeUnprepareResources", self.driver, uids):
            return await self._client.unprepare(claims, self.context.settings.timing.prepare)

    @property
    def _client(self) -> DRAPluginClient:
        return DRAPluginClient(self.connection, self.version)

    def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        self.connection.close()


class HealthHandler(Protocol):
    """Receives a driver's health reports, and the end of its stream."""

    def health_received(self, driver: str, devices: Iterable[ReportedHealth]) -> None: ...

    def health_lost(self, driver: str) -> None: ...


class Drivers:
    """Behind the plugin watcher: `validate`, `register` and `deregister` are called for plugins of type DRAPlugin."""

    def __init__(
        self, context: KubeletContext, api: KubeClient | None, tasks: asyncio.TaskGroup, health: HealthHandler
    ) -> None:
        self._context = context
        self._api = api
        self._tasks = tasks
        self._health = health
        self._plugins: dict[str, list[DRAPlugin]] = {}  # of each driver, the oldest first
        self._wipes: dict[str, asyncio.Task[None]] = {}

    def get(self, driver: str) -> DRAPlugin:
        plugins = self._plugins.get(driver)
        if not plugins:
            raise KubeletError(f"DRA driver {driver} is not registered")
        return next((plugin for plugin in reversed(plugins) if plugin.connected), plugins[-1])

    def validate(self, info: PluginInfo, endpoint: Path) -> str:
        problem = _problem(info.versions)
        if not problem:
            return ""
        return f"invalid supported gRPC versions of DRA driver plugin {info.name} at endpoint {endpoint}: {problem}"

    async def register(self, info: PluginInfo, endpoint: Path) -> None:
        """The kubelet calls the first version it knows in the plugin's own list, not the newest (11.4)."""
        plugins = self._plugins.setdefault(info.name, [])
        if any(plugin.endpoint == endpoint for plugin in plugins):
            raise KubeletError(f"endpoint {endpoint} already registered for DRA driver plugin {info.name}")
        version = next(service for service in info.versions if service in dra.VERSIONS)
        connection = transport.Connection(endpoint, transport.MESSAGE_LIMIT)
        plugin = DRAPlugin(info.name, endpoint, version, info.versions, self._context, connection)
        plugins.append(plugin)
        await self._dial_at_once(plugin)
        plugin.tasks.append(self._tasks.create_task(self._stay_connected(plugin)))
        if health_version := self._health_version(plugin):
            plugin.tasks.append(self._tasks.create_task(self._watch_health(plugin, health_version)))
        self._connection_changed(info.name)

    def deregister(self, name: str, endpoint: Path) -> None:
        plugins = self._plugins.get(name, [])
        for plugin in [plugin for plugin in plugins if plugin.endpoint == endpoint]:
            plugins.remove(plugin)
            plugin.end()
        if not plugins:
            self._plugins.pop(name, None)
        self._connection_changed(name)

    async def wipe(self, driver: str = "") -> None:
        """Deletes slices, as often as it takes: all of the node when the kubelet starts (11.8)."""
        retry = Backoff(1.0, 300.0)
        while self._api is not None:
            try:
                await self._api.delete_slices(driver)
            except PlugwrightError:
                await asyncio.sleep(retry.delay())
                continue
            self._context.record("deleted", "ResourceSlices", f"of {driver}" if driver else "of the node")
            return

    def _health_version(self, plugin: DRAPlugin) -> str:
        """Until 1.36 every driver is asked in the single version, announced or not (11.23)."""
        profile = self._context.profile
        if not profile.reports_device_health:
            return ""
        if not profile.asks_announced_health:
            return _OLD_HEALTH
        return next((version for version in dra_health.VERSIONS if version in plugin.services), "")

    async def _dial_at_once(self, plugin: DRAPlugin) -> None:
        """The newest connected plugin is called (11.7): also this plugin, once it knows of its registration."""
        with suppress(PlugwrightError, TimeoutError):
            async with asyncio.timeout(self._context.settings.timing.get_info):
                await plugin.connection.dial()
            plugin.connected = True

    async def _stay_connected(self, plugin: DRAPlugin) -> None:
        """A lost connection is made again, and does not deregister the driver (11.6)."""
        retry = Backoff(1.0, 120.0)
        try:
            while True:
                try:
                    await plugin.connection.dial()
                except PlugwrightError:
                    await asyncio.sleep(retry.delay())
                    continue
                retry.reset()
                plugin.connected = True
                self._connection_changed(plugin.driver)
                await plugin.connection.lost()
                plugin.connected = False
                self._context.record("disconnected", plugin.driver, plugin.endpoint.name)
                self._connection_changed(plugin.driver)
        finally:
            plugin.connection.close()  # the end of a kubelet ends its connections

    def _connection_changed(self, driver: str) -> None:
        wipe = self._wipes.get(driver)
        if any(plugin.connected for plugin in self._plugins.get(driver, ())):
            if wipe is not None:
                wipe.cancel()
                del self._wipes[driver]
        elif wipe is None:
            self._wipes[driver] = self._tasks.create_task(self._wipe_later(driver))

    async def _wipe_later(self, driver: str) -> None:
        await asyncio.sleep(self._context.settings.timing.wipe)
        await self.wipe(driver)
        self._wipes.pop(driver, None)

    async def _watch_health(self, plugin: DRAPlugin, version: str) -> None:
        while True:
            try:
                async with aclosing(dra_health.watch(plugin.connection, version)) as messages:
                    async for devices in messages:
                        self._health.health_received(plugin.driver, devices)
            except PeerRefused as error:
                if error.code == "UNIMPLEMENTED" and self._context.profile.asks_announced_health:
                    return
            except PlugwrightError:
                pass
            self._health.health_lost(plugin.driver)
            await asyncio.sleep(self._context.settings.timing.health_retry)


def _problem(services: tuple[str, ...]) -> str:
    if not services:
        return "empty list of supported gRPC services (aka supported versions)"
    if any(service in dra.VERSIONS for service in services):
        return ""
    return (
        f"none of services supported by the plugin ({_quoted(services)}) are supported by the kubelet "
        f"({_quoted(dra.VERSIONS)})"
    )


def _quoted(texts: Iterable[str]) -> str:
    return "[" + " ".join(f'"{text}"' for text in texts) + "]"
