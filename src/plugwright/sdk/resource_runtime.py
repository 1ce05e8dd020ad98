"""One resource at run time: its plugin with the parts that discover, list, register and serve its devices.

`daemon` makes one for each plugin, and isolates them from each other.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from plugwright.errors import ConfigError, PluginError
from plugwright.sdk.discovery import Discovery
from plugwright.sdk.driver_names import driver_name
from plugwright.sdk.expected_devices import ExpectedDevices
from plugwright.sdk.holdings.ledger import Ledger
from plugwright.sdk.holdings.records import ServedResource
from plugwright.sdk.holdings.resource_holdings import ResourceHoldings
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.node_state import NodeState
from plugwright.sdk.ownership import Ownership
from plugwright.sdk.plugin import Plugin, supported_options
from plugwright.sdk.plugin_calls import PluginCalls, StallDetector
from plugwright.sdk.registration import ResourceRegistration
from plugwright.sdk.released_devices import ReleasedDevices
from plugwright.sdk.removed_devices import RemovedDevices
from plugwright.sdk.serve_settings import ResourceDriver, ServeMode
from plugwright.sdk.service import PluginService
from plugwright.sdk.settings import Settings
from plugwright.sdk.supervision import Part, ResourceSupervisor
from plugwright.system.inotify import Directory
from plugwright.system.latest import Signal
from plugwright.text import clean

__all__ = ["DriverFactory", "ResourceRuntime", "served_by"]

logger = logging.getLogger(__name__)


class ResourceRuntime:
    """One resource at run time: its plugin, inventory, service and registration, under supervision."""

    def __init__(
        self,
        plugin: Plugin,
        settings: Settings,
        directory: Directory,
        stalls: StallDetector,
        ledger: Ledger,
        drivers: "DriverFactory | None" = None,
    ) -> None:
        self.resource = plugin.resource
        self.serve = self.serve_asked = plugin.serve
        self.ownership = Ownership(plugin.resource, settings)
        self.inventory = Inventory(plugin.resource, ledger=ledger)
        self.settings, self.ledger = settings, ledger
        self.calls = PluginCalls(plugin.resource, stalls)
        self.service = PluginService(plugin, self.inventory, self.calls, settings)
        self.discovery = Discovery(self.inventory, self.calls, self.service.metrics, settings.timeouts)
        self.expected = ExpectedDevices(plugin, self.inventory, self.discovery, settings.state_dir)
        self.registration = ResourceRegistration(self.inventory, self.service, directory, settings)
        self.holdings = ResourceHoldings(plugin.resource, ledger, self.inventory.resend)
        self.removed_devices = RemovedDevices(self.inventory, self.holdings, settings.timeouts)
        self.released_devices = ReleasedDevices(self.inventory, self.service, self.holdings, settings.timeouts)
        self.service.before_allocate = self.released_devices.allocating
        self._node = NodeState(self.holdings, settings.state_dir)
        self.supervisor = ResourceSupervisor(plugin.resource, self.service.metrics, settings)
        self._restarts = Signal()  # notified to call discover() again
        self._restarts.subscribe(self.released_devices.restart)
        self.calls.threads.blocked.subscribe(self._apply_blocked)
        self.driver = drivers(self) if drivers is not None else None
        self.inventory.served = served_by(plugin, is_arbitrated=self.driver is not None)
        if self.driver is not None and self.serve.api is ServeMode.DEVICE_PLUGIN:
            # Earlier claims can hold devices: the driver unprepares them, and returns each device afterwards.
            self.serve = self.serve.without_new_claims()
        if drivers is None and self.serve.api is not ServeMode.DEVICE_PLUGIN:
            raise ConfigError(f"{plugin.resource} cannot be served by claims here: no DRA driver was given")

    @property
    def is_idle(self) -> bool:
        """Whether the node has nothing for it to serve, so that it is not registered with the kubelet."""
        return bool(self.discovery.idle.value) and self.inventory.latest.value is None

    @property
    def stuck(self) -> dict[str, int]:
        """Threads that hang in the plugin, by method."""
        return self.calls.threads.stuck

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Calls `callback` whenever something that `status` shows has changed."""
        inventory, discovery = self.inventory, self.discovery
        for source in (inventory.refused, inventory.unconfirmed, discovery.failing, discovery.idle, discovery.empty):
            source.subscribe(callback)
        inventory.latest.subscribe(callback)
        self.expected.shortfall.subscribe(callback)
        self.removed_devices.unreadable.subscribe(callback)
        self.supervisor.fault.subscribe(callback)
        self.service.streams.subscribe(callback)
        self.registration.status.subscribe(callback)
        self.ownership.owner.subscribe(callback)
        if self.driver is not None:
            self.driver.state.subscribe(callback)

    async def run(self) -> None:
        try:
            if await self.ownership.acquire():
                self.ledger.take_over()
            await self._serve()
        finally:
            self.service.flush()
            self.ownership.close()

    async def _serve(self) -> None:
        await self.removed_devices.list_held()
        parts = [Part("discovery", self._discover, self.inventory.distrust)]  # its next list ends the distrust
        if self.serve.api is not ServeMode.DRA:
            parts.append(self._part("registration", self.registration.run))
        if self.driver is not None:
            parts.append(Part("driver", self.driver.run, self.driver.fail))
        parts.append(Part("expected devices", self.expected.run, lambda _: None))
        parts.append(self._part("removed devices", self.removed_devices.run))
        parts.append(self._part("released devices", self.released_devices.run))
        await self.supervisor.run(parts)

    def replace_plugin(self, plugin: Plugin) -> None:
        """Gives the resource to another plugin; the device list stays until the new plugin yields its first."""
        if plugin is not self.service.plugin:
            self.inventory.reconfigure()
            self.ledger.replace(self.resource)
        before, self.service.plugin = supported_options(self.service.plugin), plugin
        self.expected.replace_plugin(plugin)
        self._restarts.notify()
        if supported_options(plugin) != before:
            self.registration.register_again()

    async def command(self, name: str, arguments: Mapping[str, str]) -> str:
        limit = self.settings.limits.command
        return await self.calls.call("command", self.service.plugin.command, name, arguments, limit=limit)

    def _apply_blocked(self) -> None:
        """Marks devices Unhealthy whose containers could not start."""
        blocked = self.calls.threads.blocked.value
        for method in ("allocate", "pre_start"):
            if method in blocked:
                self.inventory.add_fault(method, blocked[method])
            else:
                self.inventory.remove_fault(method)

    def _part(self, name: str, run: Callable[[], Awaitable[None]]) -> Part:
        return Part(name, run, partial(self.inventory.add_fault, name), partial(self.inventory.remove_fault, name))

    async def _discover(self) -> None:
        while True:
            seen = self._restarts.count
            await self._restore()
            self.ledger.accept(self.resource)
            name = f"discover() of {self.resource}"
            discovering = asyncio.create_task(self.discovery.run(self.service.plugin), name=name)
            restarted = asyncio.create_task(self._restarts.wait(seen))
            try:
                await asyncio.wait((discovering, restarted), return_when=asyncio.FIRST_COMPLETED)
                if not restarted.done():
                    if discovering.cancelled():
                        raise PluginError(f"{name} cancelled its own task")
                    discovering.result()  # raises the error that ended it
                    await restarted  # discover() has ended; its last list stays
            finally:
                self.discovery.forget_current()
                await self.supervisor.end(discovering, restarted)

    async def _restore(self) -> None:
        """Calls restore(). If that fails, the resource is served anyway: only restarting containers are affected."""
        plugin = self.service.plugin
        if type(plugin).restore is not Plugin.restore:
            try:
                await self.calls.call("restore", plugin.restore, self._node, limit=self.settings.limits.command)
            except PluginError as error:
                facts = {"resource": self.resource, "error": clean(error)}
                logger.error("what containers were given earlier may not be there", extra=facts)


def served_by(plugin: Plugin, *, is_arbitrated: bool = False) -> ServedResource:
    """The resource of a plugin, as the ledger needs it."""
    serve = plugin.serve
    return ServedResource(serve.api, serve.driver or driver_name(plugin.resource), is_arbitrated)


DriverFactory = Callable[[ResourceRuntime], ResourceDriver | None]
"""Makes the DRA driver of a resource; None if the resource needs no driver."""
