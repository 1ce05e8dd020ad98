"""Discovery of one resource: runs the plugin's discover() indefinitely and fills the inventory with its lists."""

import asyncio
import logging
import time
from contextlib import aclosing

from plugwright.errors import HardwareMissing, PluginError
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.metrics import ResourceMetrics
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.plugin_calls import PluginCalls
from plugwright.sdk.settings import Timeouts
from plugwright.system.concurrency import Backoff
from plugwright.system.latest import Latest
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["Discovery"]

logger = logging.getLogger(__name__)

_LONGEST_RETRY = 5.0  # seconds; a longer wait would only delay the discovery of recovered hardware
_LONGEST_IDLE = 30.0  # seconds between two checks of a node without the hardware, which most such nodes never get
_STEADY = 10.0  # seconds; an error after this long without one starts the back-off again


class Discovery:
    """Runs discover() of one resource.
    `failing` is why it fails at present, `idle` why the node has nothing to list, and `empty` why its list has no
    device; empty strings otherwise.
    """

    def __init__(self, inventory: Inventory, calls: PluginCalls, metrics: ResourceMetrics, timeouts: Timeouts) -> None:
        self.failing = Latest("")
        self.idle = Latest("")
        self.empty = Latest("")
        self.on_bus = ""  # hardware found on the node although the resource is idle
        self._inventory, self._calls, self._metrics, self._timeouts = inventory, calls, metrics, timeouts
        first = min(0.1, timeouts.discovery / 10)
        self._backoff, self._idle_backoff = Backoff(first, _LONGEST_RETRY), Backoff(first, _LONGEST_IDLE)
        self._problems = LogOnce(logger)
        self._overdue = False
        self._deadline: asyncio.TimerHandle | None = None  # of the next list, while one is due
        self._lease: asyncio.TimerHandle | None = None  # until a list must have confirmed the last one
        self._current: asyncio.Task[object] | None = None  # the only task whose lists count
        self._broken: Exception | None = None  # the exception that broke the deadline

    @property
    def is_failing(self) -> bool:
        """Whether discover() fails, has listed nothing in time, or does not confirm its last list."""
        return bool(self.failing.value or self._overdue or self._inventory.unconfirmed.value)

    async def run(self, plugin: Plugin) -> None:
        """Runs until discover() ends, whose last list then stays. A later run makes this one's lists invalid."""
        self._backoff.reset()
        self._idle_backoff.reset()
        self._current, self._broken = asyncio.current_task(), None
        self._start_deadline()
        self._renew_lease(plugin)
        try:
            while not await self._run_once(plugin):  # noqa: ASYNC110  nothing reports when hardware works again
                await asyncio.sleep((self._idle_backoff if self.idle.value else self._backoff).delay())
        except asyncio.CancelledError:
            if self._broken is not None:
                raise self._broken from None
            raise
        finally:
            if self._is_current():
                self.forget_current()

    def forget_current(self) -> None:
        """Ignores further lists of the present run."""
        self._current = None
        self._cancel_deadline()
        self._cancel_lease()

    async def _run_once(self, plugin: Plugin) -> bool:
        """Whether discover() has ended without an error."""
        resource = self._inventory.resource
        began = time.monotonic()
        has_listed = False
        try:
            async with aclosing(self._calls.device_lists(plugin)) as lists:
                async for devices in lists:
                    if not self._is_current():
                        return True
                    if self._update_inventory(devices):
                        has_listed = True
                        self._renew_lease(plugin)
                        self._note_empty(plugin)
            if not has_listed:
                refused = self._inventory.refused.value
                error = PluginError(
                    f"discover() of {resource} ended without a good list: {refused or 'it yielded none'}"
                )
                if refused:
                    self._problems.is_news(str(error))  # already logged as a refused list
                raise error
        except PluginError as error:
            if time.monotonic() - began > _STEADY:
                self._backoff.reset()
                self._problems.recovered()
            if self._is_current():
                # The loss of listed devices is no idleness.
                is_idle = isinstance(error, HardwareMissing) and not self._inventory.has_found
                (self._be_idle if is_idle else self._failed)(error)
            return not self._is_current()
        logger.debug("discover() ended, its last list stays", extra={"resource": resource})
        return True

    def _is_current(self) -> bool:
        return self._current is asyncio.current_task()

    def _update_inventory(self, devices: object) -> bool:
        """Applies a list; returns whether it is valid."""
        try:
            self._inventory.update(devices)
        except PluginError as error:
            self._metrics.lists_refused += 1
            facts = {"resource": self._inventory.resource, "error": str(error)}
            self._problems.error("device list rejected, the last valid one stays", str(error), key="list", extra=facts)
            self._inventory.refused.publish_if_changed(str(error))
            return False
        self._recovered()
        if self._inventory.unconfirmed.value:
            logger.info("discover() confirms its devices again", extra={"resource": self._inventory.resource})
            self._inventory.unconfirmed.publish("")
        return True

    def _note_empty(self, plugin: Plugin) -> None:
        reason = ""
        if self._inventory.has_found:
            self._problems.recovered("empty")
        else:
            reason = clean(getattr(plugin, "empty_reason", ""))
            facts = {"resource": self._inventory.resource, "reason": reason}
            self._problems.info("no devices found", reason, key="empty", extra=facts)
        self.empty.publish_if_changed(reason)

    def _be_idle(self, error: PluginError) -> None:
        if not self.idle.value:
            facts = {"resource": self._inventory.resource, "reason": str(error)}
            logger.info("nothing to serve on this node, the resource is idle", extra=facts)
        self.failing.publish_if_changed("")
        self.on_bus = clean(getattr(error, "on_bus", ""))
        self.idle.publish_if_changed(str(error))
        self._cancel_deadline()
        if self._inventory.removed_since:  # pods hold devices listed earlier, which the kubelet must know
            self._inventory.publish_without_list()

    def _failed(self, error: PluginError) -> None:
        self._metrics.discovery_failures += 1
        remains = "no list yet" if self._inventory.latest.value is None else "the last list stays"
        facts = {"resource": self._inventory.resource, "error": str(error)}
        self._problems.error(f"discover() failed, retrying; {remains}", str(error), extra=facts)
        logger.debug("discover() failed here", exc_info=error)
        self.idle.publish_if_changed("")
        self.failing.publish_if_changed(str(error))
        self._start_deadline()

    def _start_deadline(self) -> None:
        """Starts waiting for a list: without one in time, the devices become Unhealthy."""
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().call_later(self._timeouts.discovery, self._deadline_passed)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _renew_lease(self, plugin: Plugin) -> None:
        self._cancel_lease()
        if plugin.health_lease:
            loop = asyncio.get_running_loop()
            self._lease = loop.call_later(plugin.health_lease, self._lease_passed, plugin.health_lease)

    def _cancel_lease(self) -> None:
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None

    def _lease_passed(self, seconds: float) -> None:
        reason = f"discover() has not confirmed the devices for {seconds:g} s"
        if not self._inventory.unconfirmed.value:
            facts = {"resource": self._inventory.resource, "seconds": seconds}
            logger.warning("discover() does not confirm its devices, their health is Unknown for claims", extra=facts)
        self._inventory.unconfirmed.publish_if_changed(reason)

    def _deadline_passed(self) -> None:
        try:
            self._distrust()
        except Exception as error:  # noqa: BLE001  raised in `run`: raised here, it would not end discovery
            self._broken = error
            if self._current is not None:
                self._current.cancel()

    def _distrust(self) -> None:
        resource = self._inventory.resource
        reason = self.failing.value or f"discover() has yielded no list for {self._timeouts.discovery:g} s"
        logger.error("no device list, devices turn Unhealthy", extra={"resource": resource, "error": reason})
        self._overdue = True
        self._inventory.distrust(reason)
        self._inventory.publish_without_list()

    def _recovered(self) -> None:
        if self._overdue:
            logger.info("discover() works again", extra={"resource": self._inventory.resource})
        if self.idle.value:
            logger.info("hardware found, the resource is no longer idle", extra={"resource": self._inventory.resource})
        self._overdue = False
        self._problems.recovered("list")
        self.idle.publish_if_changed("")
        self.failing.publish_if_changed("")
        self._cancel_deadline()
