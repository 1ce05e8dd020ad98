"""Runs a plugin's discover() for ever and fills the inventory with what it yields."""

import asyncio
import logging
from contextlib import aclosing

from plugwright.errors import PluginError
from plugwright.sdk.backoff import Backoff
from plugwright.sdk.calls import Caller
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.settings import Patience
from plugwright.sdk.tally import Tally

__all__ = ["Discovery"]

logger = logging.getLogger(__name__)

_LONGEST_RETRY = 5.0  # hardware comes back when it comes back: waiting longer only hides it


class Discovery:
    def __init__(self, inventory: Inventory, caller: Caller, tally: Tally, patience: Patience) -> None:
        self.failing = ""
        self._inventory, self._caller, self._tally, self._patience = inventory, caller, tally, patience
        self._deadline: asyncio.TimerHandle | None = None

    async def run(self, plugin: Plugin) -> None:
        """Ends when discover() ends; its last list then stays."""
        backoff = Backoff(min(0.1, self._patience.discovery / 10), _LONGEST_RETRY)
        self._expect()
        try:
            while await self._attempt(plugin, backoff):  # noqa: ASYNC110  nobody tells when hardware works again
                await asyncio.sleep(backoff.delay())
        finally:
            self._recovered()

    async def _attempt(self, plugin: Plugin, backoff: Backoff) -> bool:
        """Whether another attempt is needed."""
        yielded = False
        try:
            async with aclosing(self._caller.lists(plugin)) as lists:
                async for devices in lists:
                    yielded = True
                    self._take(devices)
                    backoff.reset()
            if not yielded:
                raise PluginError(f"discover() of {self._inventory.resource} ended without a list")
        except PluginError as error:
            self._failed(error)
            return True
        logger.debug("discover() ended, its last list stays", extra={"resource": self._inventory.resource})
        return False

    def _take(self, devices: object) -> None:
        resource = self._inventory.resource
        try:
            self._inventory.find(devices)
        except PluginError as error:
            self._tally.lists_refused += 1
            if self._inventory.refused != str(error):
                logger.error(
                    "device list refused, the last good one stays", extra={"resource": resource, "error": str(error)}
                )
            self._inventory.refused = str(error)
            return
        if self.failing:
            logger.info("discover() works again", extra={"resource": resource})
        self._recovered()

    def _failed(self, error: PluginError) -> None:
        self._tally.discovery_failures += 1
        if self.failing != str(error):
            facts = {"resource": self._inventory.resource, "error": str(error)}
            logger.error("discover() failed, the last list stays and it is tried again", extra=facts)
        logger.debug("discover() failed here", exc_info=error)
        self.failing = str(error)
        self._expect()

    def _expect(self) -> None:
        """A list is due: without one, the devices cannot be trusted after a while."""
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().call_later(self._patience.discovery, self._overdue)

    def _overdue(self) -> None:
        reason = self.failing or f"discover() has yielded no list for {self._patience.discovery:g} s"
        logger.error(
            "no device list, devices turn Unhealthy", extra={"resource": self._inventory.resource, "error": reason}
        )
        self._inventory.fail(reason)
        self._inventory.settle()

    def _recovered(self) -> None:
        self.failing = ""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
