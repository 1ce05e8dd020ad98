"""The daemon: serves any number of plugins, which can be added, removed and replaced while it runs.

Each plugin has its own `ResourceRuntime` under a supervisor, so that a broken plugin does not affect another. `run`
adds signals, the control socket and the probes.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from plugwright.errors import ConfigError
from plugwright.model import some
from plugwright.sdk import registration
from plugwright.sdk.audit import AllocationAudit
from plugwright.sdk.cordon_controller import CordonController
from plugwright.sdk.cordons import CordonRule
from plugwright.sdk.history_events import DeviceHistory
from plugwright.sdk.holdings.ledger import Ledger
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.plugin_checks import check_plugins
from plugwright.sdk.resource_runtime import DriverFactory, ResourceRuntime, served_by
from plugwright.sdk.rivals import RegisteredResource, Rivals
from plugwright.sdk.settings import Registration, Settings
from plugwright.sdk.shared_parts import SharedParts
from plugwright.sdk.socket_directory import watch_for_replacement
from plugwright.sdk.status import ConfigState
from plugwright.system import sockets
from plugwright.system.blocking import HungCall, hung_calls
from plugwright.system.concurrency import cancel_within, single_error
from plugwright.system.heartbeat import Heartbeat
from plugwright.system.inotify import Directory
from plugwright.system.latest import Latest, Signal
from plugwright.text import clean

__all__ = ["Daemon"]

logger = logging.getLogger(__name__)

_STOP_MARGIN = 1.0  # seconds that a runtime gets to end beyond its plugin's own limit


class Daemon:
    """Serves any number of resources; `drivers` makes the DRA driver of a resource that needs one.

    `shared` is for several daemons in one event loop; its creator closes it.
    """

    def __init__(
        self, settings: Settings, drivers: DriverFactory | None = None, shared: SharedParts | None = None
    ) -> None:
        self.settings, self._drivers = settings, drivers
        self.heartbeat = Heartbeat()
        parts = shared or SharedParts(settings.limits.loop_step)
        self._own_parts = parts if shared is None else None
        self.stalls, self.log_level = parts.stalls, parts.log_level
        self.resources: dict[str, ResourceRuntime] = {}
        self.serving = False  # from the first configuration on, until it stops
        self.changed = Signal()  # notified when something that `status` shows has changed
        self.config = Latest[ConfigState | None](None)  # published by the follower of the operator's file
        self.config.subscribe(self.changed.notify)
        self.history: DeviceHistory | None = None  # None: not kept
        self.cordons = CordonController(settings)
        self.cordons.changed.subscribe(self.changed.notify)
        paths, is_direct = settings.paths, settings.registration is Registration.DIRECT
        self._directory = Directory(paths.device_plugins if is_direct else paths.plugins_registry)
        self.ledger = Ledger(settings, self._resend_one)
        self.ledger.changed.subscribe(self._compare_holders)
        self._audit = AllocationAudit(self.ledger, settings.timeouts.audit)
        self.rivals = Rivals(
            self.ledger.checkpoint,
            paths.device_plugins,
            self._listed,
            settings.timeouts.holders,
            self.ledger.memory.may_have_sibling,
        )
        self.rivals.found.subscribe(self.changed.notify)
        self.hung = Latest[tuple[HungCall, ...]](())  # blocking calls of every kind, on this event loop
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._abandoned: set[asyncio.Task[Any]] = set()

    @asynccontextmanager
    async def running(self, plugins: Iterable[Plugin]) -> AsyncIterator["Daemon"]:
        """Serves while inside; leaving ends the streams and removes the sockets.

        `DirectoryReplaced` ends it: only a new process can see the directory that the kubelet uses now.
        """
        plugins = check_plugins(plugins)
        self.hung = hung_calls()
        unsubscribe = self.hung.subscribe(self.changed.notify)
        for plugin in plugins:
            sockets.check_path(self._directory.path / registration.unique_socket_name(plugin.resource))
        self._remove_stale_sockets()
        error: BaseException | None = None
        try:
            async with self._directory.watching(), asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(watch_for_replacement(self._directory)),
                    group.create_task(self._remove_recent_sockets()),
                    *(group.create_task(part.run()) for part in (self.cordons, self.ledger, self.rivals)),
                ]
                try:
                    await self.apply(plugins)
                    self.serving = True
                    yield self
                except BaseException as raised:  # noqa: BLE001  raised again below: a TaskGroup would make a group of it
                    error = raised
                self.serving = False
                await self._stop(list(self.resources))
                for task in tasks:
                    task.cancel()
        except BaseExceptionGroup as group_error:
            raise single_error(group_error) from None
        finally:
            unsubscribe()
            await self._audit.close()
            self.ledger.memory.close()
            if self._own_parts is not None:
                self._own_parts.close()
        if error is not None:
            raise error

    def _remove_stale_sockets(self) -> None:
        removed = registration.remove_stale_sockets(self._directory.path)
        if removed:
            logger.info("sockets of an earlier run removed", extra={"sockets": removed})

    async def _remove_recent_sockets(self) -> None:
        """Removes the sockets of a run that was killed just before this one started: at first they were too new."""
        await asyncio.sleep(registration.NEW_SOCKET)
        self._remove_stale_sockets()

    async def apply(self, plugins: Iterable[Plugin], cordons: Sequence[CordonRule] | None = None) -> None:
        """Serves exactly `plugins`; a plugin object that is already served continues untouched.

        `cordons` replaces the configured rules.
        """
        new = {plugin.resource: plugin for plugin in check_plugins(plugins)}
        await self.cordons.load()
        if cordons is not None:
            self.cordons.declare(cordons)
        served = {resource: served_by(plugin) for resource, plugin in new.items()}
        await self.ledger.start(served, {plugin.serve.cdi for plugin in new.values()})
        removed = [resource for resource in self.resources if resource not in new]
        for resource in removed:
            snapshot = self.resources[resource].inventory.latest.value
            devices = len(snapshot.devices) if snapshot is not None else 0
            logger.info("resource removed", extra={"resource": resource, "devices": devices})
        await self._stop(removed)
        for resource, plugin in new.items():
            runtime = self.resources.get(resource)
            if runtime is not None and runtime.serve_asked != plugin.serve:
                logger.info(
                    "resource served through another API", extra={"resource": resource, "serve": plugin.serve.api}
                )
                await self._stop([resource])
                self._start(plugin)
            elif runtime is None:
                if self.serving:
                    logger.info("resource added", extra={"resource": resource})
                self._start(plugin)
            elif runtime.service.plugin is not plugin:
                logger.info("resource changed", extra={"resource": resource})
                runtime.replace_plugin(plugin)
        self.changed.notify()

    @property
    def plugins(self) -> dict[str, Plugin]:
        """The currently served plugins, by resource."""
        return {name: runtime.service.plugin for name, runtime in self.resources.items()}

    @property
    def directory(self) -> Path:
        """The directory of the sockets."""
        return self._directory.path

    def rediscover(self) -> None:
        """Calls every plugin's discover() again."""
        for runtime in self.resources.values():
            runtime.replace_plugin(runtime.service.plugin)

    def resource(self, name: str) -> ResourceRuntime:
        if name not in self.resources:
            raise ConfigError(f"no resource {name!r} is served here (served: {some(sorted(self.resources))})")
        return self.resources[name]

    def _start(self, plugin: Plugin) -> None:
        runtime = ResourceRuntime(plugin, self.settings, self._directory, self.stalls, self.ledger, self._drivers)
        self.cordons.attach(runtime.inventory)
        runtime.service.on_allocated = self._audit.add
        runtime.subscribe(self.changed.notify)
        self.resources[plugin.resource] = runtime
        # In no TaskGroup: isolates unexpected failures of one resource from the others.
        task = self._tasks[plugin.resource] = asyncio.create_task(runtime.run(), name=f"resource {plugin.resource}")
        task.add_done_callback(partial(self._notice_end, runtime))

    def _notice_end(self, runtime: ResourceRuntime, task: "asyncio.Task[None]") -> None:
        """Reports a resource that ended without being stopped in the log, in `status` and in readiness."""
        if self._tasks.get(runtime.resource) is not task:
            return
        error = None if task.cancelled() else task.exception()
        how = "was cancelled by plugin code" if task.cancelled() else f"ended: {type(error).__name__}: {error}"
        reason = clean(f"{task.get_name()} {how}")
        logger.error("resource has ended", extra={"resource": runtime.resource, "error": reason}, exc_info=error)
        runtime.inventory.add_fault("resource", reason)
        runtime.supervisor.fault.publish(reason)

    async def _stop(self, resources: list[str]) -> None:
        stopping = [self._tasks.pop(resource) for resource in resources]
        runtimes = [self.resources.pop(resource) for resource in resources]
        for resource in resources:
            self.cordons.detach(resource)
            self.ledger.withdraw(resource)
        self._abandoned |= await cancel_within(self.settings.limits.stop + _STOP_MARGIN, *stopping)
        for runtime in runtimes:
            self._abandoned |= runtime.supervisor.abandoned
        for task in tuple(self._abandoned):
            task.add_done_callback(self._abandoned.discard)

    def _resend_one(self) -> None:
        """Sends a list again, any one: the kubelet then writes its checkpoint, which covers all resources."""
        for runtime in self.resources.values():
            if runtime.service.streams.value.open:
                runtime.inventory.resend()
                return

    def _listed(self) -> dict[str, RegisteredResource]:
        """The resources whose list the kubelet has."""
        listed = {}
        for name, runtime in self.resources.items():
            snapshot = runtime.inventory.latest.value
            if snapshot is not None and runtime.service.streams.value.open:
                allocated = runtime.inventory.allocated.keys()
                listed[name] = RegisteredResource(snapshot.devices.keys(), allocated, runtime.registration.endpoint)
        return listed

    def _compare_holders(self) -> None:
        self.changed.notify()
        for runtime in self.resources.values():
            runtime.inventory.compare_holders()
