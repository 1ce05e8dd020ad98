"""Events of a real GPU can be registered."""

import asyncio

from plugwright.plugins.nvidia.driver import GpuSnapshot
from plugwright.plugins.nvidia.monitor import GpuMonitor, PollIntervals
from plugwright.plugins.nvidia.nvml import Nvml


def test_events_can_be_registered(snapshot: GpuSnapshot, driver: Nvml) -> None:
    events = driver.events(tuple(gpu.uuid for gpu in snapshot.gpus))
    try:
        assert not events.unwatched
        assert set(events.watched) == {gpu.uuid for gpu in snapshot.gpus}
        assert events.wait(0.05) is None
    finally:
        events.close()


async def test_the_monitor_watches_all_gpus(snapshot: GpuSnapshot) -> None:
    monitor = GpuMonitor(Nvml(), PollIntervals(event_wait=5))
    async with monitor.running(), asyncio.timeout(60):
        view = await monitor.views.until(lambda view: len(view.watched) == len(snapshot.gpus))
        assert not view.problem
        assert not view.unwatched
        assert set(view.health) == {gpu.uuid for gpu in snapshot.gpus}
