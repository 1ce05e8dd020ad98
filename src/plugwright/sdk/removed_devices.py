"""Removed devices: which of them pods still hold, and when one may leave the list.

Kubelets from 1.34 on may crash when a device that a pod holds disappears from the list (2.25). So a device that
discovery no longer lists stays in it as Unhealthy until no pod can hold it. That is read from the kubelet's checkpoint
and its pod-resources API; neither is changed. Where one of them cannot be read, the device stays, and `unreadable` says
why.
"""

import asyncio
import logging
import time

from plugwright.errors import HoldersUnknown
from plugwright.protocol.paths import KubeletPaths
from plugwright.sdk.device_holders import ResourceHolders
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.kubelet_checkpoint import KubeletCheckpoint
from plugwright.sdk.settings import Timeouts
from plugwright.system.latest import Latest
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["RemovedDevices"]

logger = logging.getLogger(__name__)


class RemovedDevices:
    """`unreadable` is why it is not known which devices pods hold, empty if it is."""

    def __init__(
        self, inventory: Inventory, paths: KubeletPaths, timeouts: Timeouts, checkpoint: KubeletCheckpoint
    ) -> None:
        self.unreadable = Latest("")
        self._problems = LogOnce(logger)
        self._inventory = inventory
        self.holders = ResourceHolders(
            inventory.resource, paths.pod_resources_socket, checkpoint, inventory.resend, inventory.allocating
        )
        self._keep = timeouts.departed

    async def list_held(self) -> None:
        """Lists what pods hold by the checkpoint; for the start, before discovery has listed anything."""
        try:
            self._inventory.add_held(await self.holders.stored())
        except HoldersUnknown as error:  # the resource is served without it
            self._cannot_read(error)

    async def run(self) -> None:
        """Takes devices off the list that were removed for a while and that no pod holds; runs for ever."""
        inventory = self._inventory
        while True:
            await inventory.latest.until(lambda _: bool(inventory.removed_since))
            oldest = min(inventory.removed_since.values(), default=0.0)
            await asyncio.sleep(max(self._keep - (time.monotonic() - oldest), self._keep / 10))
            now = time.monotonic()
            due = [device_id for device_id, since in inventory.removed_since.items() if now - since >= self._keep]
            if due and not await self._forget(due):
                await asyncio.sleep(self._keep)  # a pod holds them, and nothing reports when that ends

    async def _forget(self, due: list[str]) -> bool:
        """Whether all of `due` could be forgotten."""
        try:
            held = await self.holders.held(due)
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
