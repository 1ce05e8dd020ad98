"""Being told of Xids can be asked for on a real GPU."""

import asyncio

from plugwright.plugins.nvidia.driver import Reading
from plugwright.plugins.nvidia.monitor import GpuMonitor, PollIntervals
from plugwright.plugins.nvidia.nvml import Nvml


def test_events_can_be_heard(reading: Reading, driver: Nvml) -> None:
    events = driver.events(tuple(gpu.uuid for gpu in reading.gpus))
    try:
        assert not events.unwatched
        assert set(events.watched) == {gpu.uuid for gpu in reading.gpus}
        assert events.wait(0.05) is None
    finally:
        events.close()


async def test_a_machine_is_watched(reading: Reading) -> None:
    watch = GpuMonitor(Nvml(), PollIntervals(ear=5))
    news = asyncio.Event()
    async with watch.watching(news.set), asyncio.timeout(60):
        while watch.view is None or len(watch.view.watched) < len(reading.gpus):
            news.clear()
            await news.wait()
        assert not watch.view.problem
        assert not watch.view.unwatched
        assert set(watch.view.facts) == {gpu.uuid for gpu in reading.gpus}
