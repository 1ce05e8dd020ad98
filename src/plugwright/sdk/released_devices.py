"""Calls a plugin's release() for devices after the end of their pods.

The kubelet does not report the end of a pod to device plugins. So for a plugin with its own release(), and only
while containers have devices, its pod-resources API and its checkpoint are polled. A device is free when both show it.
At start, the checkpoint shows the devices allocated by an earlier daemon.

If another pod gets a device before its release is noticed, release() is not called in between: allocate() can be called
for it again. While a device is being released, its next allocation waits. Devices served by claims are not released
here, so the code for moving a device calls `release` first.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Set
from contextlib import suppress

from plugwright.errors import HoldersUnknown, InvalidValue, PluginError
from plugwright.model import Device, natural_order
from plugwright.sdk.holdings.resource_holdings import ResourceHoldings
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.service import PluginService
from plugwright.sdk.settings import Timeouts
from plugwright.system.latest import Latest, Signal
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["ReleasedDevices", "free_devices"]

logger = logging.getLogger(__name__)

_INTERVALS = 3  # after an allocation; by then the kubelet lists its pod, or has refused it
_AT_ONCE = 0.0


def free_devices(allocated: Mapping[str, float], held: Set[str], read: float) -> list[str]:
    """The allocated devices without a pod at the time `read`.

    `allocated` contains the time from which on the absence of a holder counts.
    """
    free = (device_id for device_id, counts in allocated.items() if device_id not in held and counts <= read)
    return sorted(free, key=natural_order)


class ReleasedDevices:
    """Releases devices of one resource. Call `allocating` before allocations, `restart` for another plugin."""

    def __init__(
        self,
        inventory: Inventory,
        service: PluginService,
        holdings: ResourceHoldings,
        timeouts: Timeouts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inventory, self._service, self._holdings = inventory, service, holdings
        self._interval, self._clock = timeouts.holders, clock
        self._listed_by_then = _INTERVALS * timeouts.holders
        self._allocated: dict[str, float] = {}
        self._changed = Signal()  # notified if there is something to read, or another plugin
        self._releasing = Latest[Set[str]](frozenset())
        self._one_at_a_time = asyncio.Lock()
        self._is_restored = False
        self._problems = LogOnce(logger)

    async def allocating(self, device_ids: Collection[str]) -> None:
        """Waits while any of the devices is being released."""
        if not self._has_release:
            return
        if self._releasing.value:
            await self._releasing.until(lambda releasing: releasing.isdisjoint(device_ids))
        self._allocated |= dict.fromkeys(device_ids, self._clock() + self._listed_by_then)
        self._changed.notify()

    async def release(self, device_ids: Collection[str]) -> bool:
        """Releases the remaining allocated devices; the caller has checked for holders.

        Returns whether the release succeeded; if not, it is retried here while the device plugin API offers them.
        """
        async with self._one_at_a_time:
            allocated = [device_id for device_id in device_ids if device_id in self._allocated]
            return not allocated or await self._release(sorted(allocated, key=natural_order))

    def restart(self) -> None:
        """Another plugin can know what containers have been given meanwhile, and can release it."""
        self._is_restored = False
        self._changed.notify()

    async def run(self) -> None:
        """Releases devices after the end of their pods; runs forever."""
        while True:
            await self._changed.until(self._is_needed)
            # A plugin's state of its devices is complete with its first list.
            await self._inventory.latest.until(lambda snapshot: snapshot is not None)
            if not self._is_restored:
                await self._restore()
            if self._is_needed():
                await asyncio.sleep(self._interval)  # nothing reports when a pod ends
                await self._release_free()

    @property
    def _has_release(self) -> bool:
        return type(self._service.plugin).release is not Plugin.release

    def _is_needed(self) -> bool:
        return self._has_release and (not self._is_restored or bool(self._allocated.keys() - self._moved))

    async def _restore(self) -> None:
        """Adds the devices allocated by an earlier daemon, or by this daemon with another plugin."""
        try:
            held = await self._holdings.stored()
        except HoldersUnknown as error:
            self._warn(error)
            await asyncio.sleep(self._interval)
            return
        self._allocated = dict.fromkeys(held, _AT_ONCE) | self._allocated
        self._is_restored = True

    async def _release_free(self) -> None:
        started = self._clock()
        try:
            held = await self._holdings.held(self._allocated)
        except HoldersUnknown as error:
            self._warn(error)
            return
        latest = started + self._listed_by_then
        known = {device_id for device_id, counts in self._allocated.items() if counts <= latest}
        self._allocated |= dict.fromkeys(held & known, _AT_ONCE)
        async with self._one_at_a_time:
            if free := free_devices(self._allocated, held | self._moved, started):
                await self._release(free)

    @property
    def _moved(self) -> Set[str]:
        snapshot = self._inventory.latest.value
        return snapshot.withheld.keys() if snapshot is not None else frozenset()

    async def _release(self, device_ids: list[str]) -> bool:
        """Releases the devices. Publishes them before it awaits anything: an allocation comes earlier or waits."""
        self._releasing.publish(frozenset(device_ids))
        facts = {"resource": self._inventory.resource, "devices": device_ids}
        try:
            await self._service.release(self._devices(device_ids))
            for device_id in device_ids:
                self._allocated.pop(device_id, None)
        except PluginError as error:
            self._warn(error)
            return False
        finally:
            self._releasing.publish(frozenset())
        logger.info("released", extra=facts)
        self._problems.recovered()
        return True

    def _devices(self, device_ids: list[str]) -> list[Device]:
        """The listed devices; a device no longer listed has only its id."""
        snapshot = self._inventory.latest.value
        listed = snapshot.devices if snapshot is not None else {}
        devices = []
        for device_id in device_ids:
            with suppress(InvalidValue):  # an id in the checkpoint that was never a device of this plugin
                devices.append(listed.get(device_id) or Device(device_id))
        return devices

    def _warn(self, error: Exception) -> None:
        facts = {"resource": self._inventory.resource, "error": clean(error)}
        self._problems.warning("devices are not released yet, it is tried again", clean(error), extra=facts)
