"""For tests of NVIDIA GPUs: a machine that is watched, and what a plugin lists of it."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

from plugwright import Device
from plugwright.plugins.nvidia.config import Options
from plugwright.plugins.nvidia.monitor import GpuMonitor, PollIntervals
from plugwright.plugins.nvidia.plugin import Nvidia
from plugwright.plugins.nvidia.simulation import Simulation

__all__ = ["PACE", "Clock", "Lists", "listing", "machine", "resource"]

PACE = PollIntervals(rescan=3600, retry=0.02, read_timeout=5, ear=0.2)


class Clock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def machine(name: str, clock: Callable[[], float] | None = None) -> GpuMonitor:
    return GpuMonitor(Simulation(name), PACE, clock or Clock())


def resource(watch: GpuMonitor, options: Options | None = None, name: str = "nvidia.com/gpu") -> Nvidia:
    return Nvidia(name, options or Options(), watch)


class Lists:
    """What a plugin lists, one list after the other."""

    def __init__(self, lists: AsyncGenerator[list[Device], None]) -> None:
        self._lists = lists
        self.devices: dict[str, Device] = {}

    async def until(self, accept: Callable[[dict[str, Device]], bool]) -> dict[str, Device]:
        async with asyncio.timeout(20):
            while not accept(self.devices):
                self.devices = {device.id: device for device in await anext(self._lists)}
        return self.devices

    async def first(self) -> dict[str, Device]:
        return await self.until(bool)

    async def reason(self, device_id: str, text: str) -> Device:
        """Waits until the device is Unhealthy for a reason with `text` in it; for none, until it is healthy."""

        def accept(devices: dict[str, Device]) -> bool:
            found = devices.get(device_id)
            return found is not None and (text in found.reason and not found.healthy if text else found.healthy)

        return (await self.until(accept))[device_id]


@asynccontextmanager
async def listing(plugin: Nvidia) -> AsyncIterator[Lists]:
    lists = cast("AsyncGenerator[list[Device], None]", plugin.discover())
    try:
        yield Lists(lists)
    finally:
        await lists.aclose()
