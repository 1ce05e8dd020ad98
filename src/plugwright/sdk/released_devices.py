"""Devices that are given back: release() of the plugin is called once the pods that had them are gone.

The kubelet tells a device plugin of no end of a pod. So for a plugin with a release() of its own, and only while
containers have devices, its pod-resources API and its checkpoint are read again and again. A device is free when both
say so. At the start it is the checkpoint that knows what containers were given by an earlier daemon.

A device that another pod gets before that is noticed is not released in between: allocate() may be called for it again.
While a device is being released, its next allocation waits. A device that has moved to claims is no longer ours to
release, so what moves it calls `release` first.
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
    """The devices that were allocated and that no pod held at the time `read`.

    `allocated` has the time from which on it counts that no pod holds the device.
    """
    free = (device_id for device_id, counts in allocated.items() if device_id not in held and counts <= read)
    return sorted(free, key=natural_order)


class ReleasedDevices:
    """Of one resource. `allocating` is to be called before devices are allocated, `restart` for another plugin."""

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
        self._changed = Signal()  # there is something to read, or another plugin
        self._releasing = Latest[Set[str]](frozenset())
        self._one_at_a_time = asyncio.Lock()
        self._is_restored = False
        self._problems = LogOnce(logger)

    async def allocating(self, device_ids: Collection[str]) -> None:
        """Waits while one of the devices is being released."""
        if not self._has_release:
            return
        if self._releasing.value:
            await self._releasing.until(lambda releasing: releasing.isdisjoint(device_ids))
        self._allocated |= dict.fromkeys(device_ids, self._clock() + self._listed_by_then)
        self._changed.notify()

    async def release(self, device_ids: Collection[str]) -> bool:
        """Releases those that were allocated and are not yet released; the caller knows that no pod holds them.

        Whether that has succeeded; if not, it is tried again here for as long as the device plugin API offers them.
        """
        async with self._one_at_a_time:
            allocated = [device_id for device_id in device_ids if device_id in self._allocated]
            return not allocated or await self._release(sorted(allocated, key=natural_order))

    def restart(self) -> None:
        """Another plugin may know what containers have been given meanwhile, and may release it."""
        self._is_restored = False
        self._changed.notify()

    async def run(self) -> None:
        """Releases what pods no longer hold; runs for ever."""
        while True:
            await self._changed.until(self._is_needed)
            # What a plugin knows of its devices is there with its first list.
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
        """Takes over what containers were given by an earlier daemon, or while another plugin was served."""
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
        """Nothing is awaited before the device is known to be on its way: an allocation comes before or waits."""
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
        """As they are listed; one that is no longer listed has its id alone."""
        snapshot = self._inventory.latest.value
        listed = snapshot.devices if snapshot is not None else {}
        devices = []
        for device_id in device_ids:
            with suppress(InvalidValue):  # an id in the checkpoint that no device of this plugin ever had
                devices.append(listed.get(device_id) or Device(device_id))
        return devices

    def _warn(self, error: Exception) -> None:
        facts = {"resource": self._inventory.resource, "error": clean(error)}
        self._problems.warning("devices are not released yet, it is tried again", clean(error), extra=facts)
