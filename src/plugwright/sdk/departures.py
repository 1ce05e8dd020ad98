"""Forgets devices that are gone, when that is safe.

Kubelets from 1.34 on crash when a device that a pod holds disappears from the list. So a device that discovery no
longer finds stays listed as Unhealthy, and goes only when nobody can be holding it.
"""

import asyncio
import logging
import time

from plugwright.protocol.paths import KubeletPaths
from plugwright.sdk import holders
from plugwright.sdk.inventory import Inventory

__all__ = ["forget_departed"]

logger = logging.getLogger(__name__)

_WRITING = 1.0  # seconds within which a kubelet has written its checkpoint after a list


async def forget_departed(inventory: Inventory, paths: KubeletPaths, patience: float) -> None:
    """Runs for ever; sleeps while no device is gone."""
    while True:
        await inventory.newest.until(lambda _: bool(inventory.departures))
        oldest = min(inventory.departures.values(), default=0.0)
        await asyncio.sleep(max(patience - (time.monotonic() - oldest), patience / 10))
        due = [each for each, since in inventory.departures.items() if time.monotonic() - since >= patience]
        if due and not await _forget(inventory, paths, due):
            await asyncio.sleep(patience)  # someone holds them, and nobody tells when that ends


async def _forget(inventory: Inventory, paths: KubeletPaths, due: list[str]) -> bool:
    """Whether all of `due` could be forgotten."""
    held = await _held(inventory, paths, due)
    if held is None:
        logger.debug("departed devices are kept: who holds them cannot be read", extra={"resource": inventory.resource})
        return False
    free = [each for each in due if each not in held and each in inventory.departures]
    if free:
        inventory.drop(free)
        logger.info("departed devices forgotten", extra={"resource": inventory.resource, "devices": free})
    return len(free) == len(due)


async def _held(inventory: Inventory, paths: KubeletPaths, due: list[str]) -> set[str] | None:
    """What pods hold, and what the kubelet's checkpoint says that they do."""
    active = await holders.held_by_pods(paths.pod_resources_socket, inventory.resource)
    stored = holders.held_by_checkpoint(paths.checkpoint, inventory.resource)
    if active is None or stored is None:
        return None
    if any(each in stored and each not in active for each in due):
        # The kubelet has freed them and does not write that down; it does when it is sent a list.
        inventory.resend()
        await asyncio.sleep(_WRITING)
        stored = holders.held_by_checkpoint(paths.checkpoint, inventory.resource)
    return None if stored is None else active | set(stored)
