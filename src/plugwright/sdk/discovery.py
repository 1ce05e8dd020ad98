"""Runs a plugin's discover() for ever and fills the inventory with what it yields."""

import asyncio
import logging
import time
from contextlib import aclosing

from plugwright.errors import PluginError
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.metrics import ResourceMetrics
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.plugin_calls import Caller
from plugwright.sdk.settings import Timeouts
from plugwright.system.concurrency import Backoff, Latest

__all__ = ["Discovery"]

logger = logging.getLogger(__name__)

_LONGEST_RETRY = 5.0  # hardware comes back when it comes back: waiting longer only hides it
_STEADY = 10.0  # a discovery that worked for this long fails for the first time again


class Discovery:
    def __init__(self, inventory: Inventory, caller: Caller, tally: ResourceMetrics, timeouts: Timeouts) -> None:
        self.failing = Latest("")
        self._inventory, self._caller, self._tally, self._timeouts = inventory, caller, tally, timeouts
        self._backoff = Backoff(min(0.1, timeouts.discovery / 10), _LONGEST_RETRY)
        self._said = ""
        self._untrusted = False
        self._deadline: asyncio.TimerHandle | None = None

    async def run(self, plugin: Plugin) -> None:
        """Ends when discover() ends; its last list then stays."""
        self._backoff.reset()
        self._expect()
        try:
            while await self._attempt(plugin):  # noqa: ASYNC110  nobody tells when hardware works again
                await asyncio.sleep(self._backoff.delay())
        finally:
            self._recovered()

    async def _attempt(self, plugin: Plugin) -> bool:
        """Whether another attempt is needed."""
        began = time.monotonic()
        try:
            async with aclosing(self._caller.lists(plugin)) as lists:
                async for devices in lists:
                    self._take(devices)
            if self._inventory.newest.value is None:
                why = self._inventory.refused.value or "it yielded none"
                raise PluginError(f"discover() of {self._inventory.resource} ended without a good list: {why}")
        except PluginError as error:
            if time.monotonic() - began > _STEADY:
                self._backoff.reset()
                self._said = ""
            self._failed(error)
            return True
        logger.debug("discover() ended, its last list stays", extra={"resource": self._inventory.resource})
        return False

    def _take(self, devices: object) -> None:
        try:
            self._inventory.find(devices)
        except PluginError as error:
            self._tally.lists_refused += 1
            if self._inventory.refused.value != str(error):
                facts = {"resource": self._inventory.resource, "error": str(error)}
                logger.error("device list refused, the last good one stays", extra=facts)
            self._inventory.refused.publish_if_changed(str(error))
            return
        self._recovered()

    def _failed(self, error: PluginError) -> None:
        self._tally.discovery_failures += 1
        if self._said != str(error):  # once: a discovery that fails again and again must not fill the log
            facts = {"resource": self._inventory.resource, "error": str(error)}
            logger.error("discover() failed, the last list stays and it is tried again", extra=facts)
        logger.debug("discover() failed here", exc_info=error)
        self._said = str(error)
        self.failing.publish_if_changed(str(error))
        self._expect()

    def _expect(self) -> None:
        """A list is due: without one, the devices cannot be trusted after a while."""
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().call_later(self._timeouts.discovery, self._overdue)

    def _overdue(self) -> None:
        resource = self._inventory.resource
        reason = self.failing.value or f"discover() has yielded no list for {self._timeouts.discovery:g} s"
        logger.error("no device list, devices turn Unhealthy", extra={"resource": resource, "error": reason})
        self._untrusted = True
        self._inventory.fail(reason)
        self._inventory.settle()

    def _recovered(self) -> None:
        if self._untrusted:
            logger.info("discover() works again", extra={"resource": self._inventory.resource})
        self._untrusted = False
        self.failing.publish_if_changed("")
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
