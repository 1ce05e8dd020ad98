"""For tests of NVIDIA GPUs: a simulated machine, its monitor, and the lists of a plugin."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

from plugwright import Device
from plugwright.plugins.nvidia.config import DeviceListStrategy, NvidiaConfig
from plugwright.plugins.nvidia.monitor import GpuMonitor, PollIntervals
from plugwright.plugins.nvidia.plugin import Nvidia
from plugwright.plugins.nvidia.simulation import SimulatedDriver

__all__ = ["INTERVALS", "Lists", "ManualClock", "listing", "machine", "resource", "simulated"]

INTERVALS = PollIntervals(rescan=3600, retry=0.02, read_timeout=5, event_wait=0.2)


class ManualClock:
    """Stands still unless a test changes `now`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def machine(name: str, clock: Callable[[], float] | None = None) -> GpuMonitor:
    return GpuMonitor(SimulatedDriver(name), INTERVALS, clock or ManualClock())


def simulated(monitor: GpuMonitor) -> SimulatedDriver:
    assert isinstance(monitor.driver, SimulatedDriver)
    return monitor.driver


def resource(monitor: GpuMonitor, config: NvidiaConfig | None = None, name: str = "nvidia.com/gpu") -> Nvidia:
    """By default of a driver that is not simulated the files are left to NVIDIA's runtime: there are none here."""
    strategy = DeviceListStrategy.DEVICE_NODES if monitor.driver.inject else DeviceListStrategy.ENVVAR
    return Nvidia(name, config or NvidiaConfig(strategy=strategy), monitor)


class Lists:
    """The lists of a plugin, one after the other."""

    def __init__(self, lists: AsyncGenerator[list[Device], None]) -> None:
        self._lists = lists
        self.devices: dict[str, Device] = {}

    async def until(self, accept: Callable[[dict[str, Device]], bool]) -> dict[str, Device]:
        async with asyncio.timeout(60):
            while not accept(self.devices):
                self.devices = {device.id: device for device in await anext(self._lists)}
        return self.devices

    async def first(self) -> dict[str, Device]:
        return await self.until(bool)

    async def reason(self, device_id: str, text: str) -> Device:
        """Waits until the device is Unhealthy for a reason with `text` in it; for an empty one, until it is healthy."""

        def accept(devices: dict[str, Device]) -> bool:
            device = devices.get(device_id)
            return device is not None and (text in device.reason and not device.healthy if text else device.healthy)

        return (await self.until(accept))[device_id]


@asynccontextmanager
async def listing(plugin: Nvidia) -> AsyncIterator[Lists]:
    lists = cast("AsyncGenerator[list[Device], None]", plugin.discover())
    try:
        yield Lists(lists)
    finally:
        await lists.aclose()
