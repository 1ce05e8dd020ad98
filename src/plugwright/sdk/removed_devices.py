"""Removed devices: which of them pods still hold, and when they can leave the list.

Kubelets from 1.34 on can crash when a device held by a pod disappears from the list (2.25). A device missing from
discovery therefore stays in it as Unhealthy until the ledger knows it is free. If a source of the ledger cannot be
read, the device stays, and `unreadable` contains the reason.
"""

import asyncio
import logging
import time

from plugwright.errors import HoldersUnknown
from plugwright.sdk.holdings.resource_holdings import ResourceHoldings
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.settings import Timeouts
from plugwright.system.latest import Latest
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["RemovedDevices"]

logger = logging.getLogger(__name__)


class RemovedDevices:
    """`unreadable` is why held devices are unknown; empty if they are known."""

    def __init__(self, inventory: Inventory, holdings: ResourceHoldings, timeouts: Timeouts) -> None:
        self.unreadable = Latest("")
        self._problems = LogOnce(logger)
        self._inventory, self._holdings = inventory, holdings
        self._keep = timeouts.departed

    async def list_held(self) -> None:
        """Lists the devices held according to the checkpoint; for the start, before the first list of discovery."""
        try:
            self._inventory.add_held(await self._holdings.stored())
        except HoldersUnknown as error:  # the resource is served without it
            self._cannot_read(error)

    async def run(self) -> None:
        """Removes missing devices from the list after a while, once no pod holds them; runs forever."""
        inventory = self._inventory
        while True:
            await inventory.latest.until(lambda _: bool(inventory.removed_since))
            oldest = min(inventory.removed_since.values(), default=0.0)
            await asyncio.sleep(max(self._keep - (time.monotonic() - oldest), self._keep / 10))
            now = time.monotonic()
            due = [device_id for device_id, since in inventory.removed_since.items() if now - since >= self._keep]
            if due and not await self._forget(due):
                await asyncio.sleep(self._keep)  # a pod holds them, and nothing reports when it ends

    async def _forget(self, due: list[str]) -> bool:
        """Forgets free devices; returns whether these were all of `due`."""
        try:
            held = await self._holdings.held(due)
        except HoldersUnknown as error:
            self._cannot_read(error)
            return False
        self.unreadable.publish_if_changed("")
        self._problems.recovered()
        removed = self._inventory.removed_since
        free = [device_id for device_id in due if device_id not in held and device_id in removed]
        if free:
            self._inventory.forget(free)
            facts = {"resource": self._inventory.resource, "devices": free}
            logger.info("removed devices are no longer listed", extra=facts)
        return len(free) == len(due)

    def _cannot_read(self, error: HoldersUnknown) -> None:
        reason = clean(error)
        facts = {"resource": self._inventory.resource, "error": reason}
        self._problems.warning("removed devices stay listed: cannot read which devices pods hold", reason, extra=facts)
        self.unreadable.publish_if_changed(reason)
