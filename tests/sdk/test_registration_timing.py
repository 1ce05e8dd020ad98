"""How long a registration waits before another one, and after what the wait is short again."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import pytest
from tests.observed_kubelet import ObservedKubelet
from tests.plugin_client import connect_plugin
from tests.sdk.actors import TAPE, ListingPlugin
from tests.sdk.misbehaving_kubelet import MisbehavingKubelet

from plugwright import Device, Settings, Timeouts, serving
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.plugin_calls import PluginCalls, StallDetector
from plugwright.sdk.registration import RegistrationTiming, ResourceRegistration
from plugwright.sdk.service import PluginService
from plugwright.system.concurrency import Backoff
from plugwright.system.inotify import Directory
from plugwright.system.latest import Latest

AT_ONCE, NEVER = 0.0, 3600.0


class RecordedBackoff(Backoff):
    """Records the delays. The first `ended` of them end at once instead, and the others never."""

    def __init__(self, ended: int) -> None:
        super().__init__(1.0, 8.0, jitter=0)
        self.ended = ended
        self.delays: list[float] = []

    def delay(self) -> float:
        self.delays.append(super().delay())
        return AT_ONCE if len(self.delays) <= self.ended else NEVER


@dataclass
class TurnedClock:
    seconds: float = 0.0
    asked: Latest[int] = field(default_factory=lambda: Latest(0))

    def __call__(self) -> float:
        self.asked.publish(self.asked.value + 1)
        return self.seconds


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not fact():
            await asyncio.sleep(0.001)


class Trial:
    """One registration with a kubelet that asks for no list unless the test does."""

    def __init__(self, kubelet: MisbehavingKubelet, settings: Settings) -> None:
        self.kubelet = kubelet
        self.retry = RecordedBackoff(ended=99)
        self.lost_stream = RecordedBackoff(ended=99)
        self.first_stream = RecordedBackoff(ended=0)
        self.clock = TurnedClock()
        self.stalls = StallDetector(5)
        inventory = Inventory(TAPE)
        inventory.update([Device("st0")])
        self.service = PluginService(ListingPlugin(), inventory, PluginCalls(TAPE, self.stalls), settings)
        self.directory = Directory(settings.paths.device_plugins)
        timing = RegistrationTiming(self.retry, self.lost_stream, self.first_stream, self.clock)
        self.registration = ResourceRegistration(inventory, self.service, self.directory, settings, timing)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Trial"]:
        async with self.directory.watching():
            running = asyncio.create_task(self.registration.run())
            try:
                yield self
            finally:
                running.cancel()
                await asyncio.wait([running])
                self.stalls.close()

    async def requested(self, count: int) -> None:
        await until(lambda: len(self.kubelet.requests) >= count)

    @asynccontextmanager
    async def list_open(self) -> AsyncIterator[None]:
        """The kubelet watches the list of the latest registration while inside."""
        asked = self.clock.asked.value
        path = self.kubelet.paths.device_plugins / self.kubelet.requests[-1].endpoint
        async with connect_plugin(path) as plugin, aclosing(plugin.lists()) as lists:
            await anext(lists)
            await self.clock.asked.until(lambda count: count > asked)  # the registration has noticed
            yield

    async def lose_list(self) -> None:
        """Opens a list and ends it; returns when that is registered again."""
        count = len(self.kubelet.requests)
        async with self.list_open():
            pass
        await self.requested(count + 1)

    async def remove_sockets(self) -> None:
        """Returns when the plugin has registered with another socket."""
        count = len(self.kubelet.requests)
        for path in self.kubelet.paths.device_plugins.glob("plugwright-*.sock"):
            path.unlink()
        await self.requested(count + 1)

    def make_kubelet_socket_again(self) -> None:
        kept = self.kubelet.paths.root / "kept"
        os.link(self.kubelet.paths.kubelet_socket, kept)
        self.kubelet.paths.kubelet_socket.unlink()
        kept.rename(self.kubelet.paths.kubelet_socket)


@pytest.fixture
async def trial(misbehaving: MisbehavingKubelet, settings: Settings) -> AsyncIterator[Trial]:
    misbehaving.watch_lists = False
    async with asyncio.timeout(100), Trial(misbehaving, settings).running() as trial:
        await until(lambda: trial.service.metrics.registrations["ok"] == 1)
        yield trial


async def test_each_lost_list_in_a_row_waits_twice_as_long_up_to_the_longest(trial: Trial) -> None:
    for _ in range(6):
        await trial.lose_list()
    assert trial.lost_stream.delays == [1, 2, 4, 8, 8, 8]


async def test_a_list_lost_to_a_new_kubelet_is_a_first_loss(trial: Trial) -> None:
    for _ in range(3):
        await trial.lose_list()
    trial.make_kubelet_socket_again()
    await trial.requested(5)
    await trial.lose_list()
    assert trial.lost_stream.delays == [1, 2, 4, 1]


async def test_a_list_lost_after_a_steady_time_is_a_first_loss(trial: Trial) -> None:
    for seconds in (59.0, 59.0, 61.0, 59.0):
        count = len(trial.kubelet.requests)
        async with trial.list_open():
            trial.clock.seconds += seconds
        await trial.requested(count + 1)
    assert trial.lost_stream.delays == [1, 2, 1, 2]


async def test_a_failure_after_a_registration_is_a_first_failure(trial: Trial) -> None:
    trial.kubelet.refuse = "not now"
    await trial.remove_sockets()
    await until(lambda: len(trial.retry.delays) >= 4)
    assert trial.retry.delays[:4] == [1, 2, 4, 8]
    trial.kubelet.refuse = ""
    await until(lambda: trial.service.metrics.registrations["ok"] == 2)
    failures = len(trial.retry.delays)
    trial.kubelet.refuse = "not now"
    await trial.remove_sockets()
    await until(lambda: len(trial.retry.delays) > failures)
    assert trial.retry.delays[failures] == 1


async def test_a_failure_with_a_new_kubelet_is_a_first_failure(trial: Trial) -> None:
    trial.retry.ended = 3
    trial.kubelet.refuse = "not now"
    await trial.remove_sockets()
    await until(lambda: len(trial.retry.delays) == 4)  # and this one does not end by itself
    trial.make_kubelet_socket_again()
    await until(lambda: len(trial.retry.delays) == 5)
    assert trial.retry.delays == [1, 2, 4, 8, 1]


async def test_a_kubelet_that_asks_for_no_list_is_waited_for_twice_as_long_each_time(trial: Trial) -> None:
    trial.first_stream.ended = 99
    await trial.remove_sockets()
    await until(lambda: len(trial.first_stream.delays) >= 6)
    assert trial.first_stream.delays[:6] == [1, 2, 4, 8, 8, 8]


async def test_a_first_list_after_a_registration_makes_the_wait_for_one_short_again(trial: Trial) -> None:
    trial.first_stream.ended = 3
    await trial.remove_sockets()
    await until(lambda: len(trial.first_stream.delays) == 4)  # and this one does not end by itself
    async with trial.list_open():
        await trial.remove_sockets()
        await until(lambda: len(trial.first_stream.delays) == 5)
    assert trial.first_stream.delays == [1, 2, 4, 8, 1]


async def test_a_list_of_an_earlier_registration_is_not_the_first_of_the_next(trial: Trial) -> None:
    async with trial.list_open():
        trial.first_stream.ended = 2
        await trial.remove_sockets()
    await trial.requested(3)
    assert trial.lost_stream.delays == []
    assert trial.first_stream.delays[:2] == [1, 1]


def test_the_waits_of_a_daemon_have_a_jitter_and_an_end() -> None:
    timing = RegistrationTiming.of(Timeouts())
    for backoff, first in ((timing.retry, 0.01), (timing.lost_stream, 0.2), (timing.first_stream, 10.0)):
        assert (backoff.first, backoff.longest, backoff.jitter) == (first, 30.0, 0.2)


async def test_the_seconds_without_a_stream_are_counted_from_its_end(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    loop = asyncio.get_running_loop()
    async with serving(ListingPlugin(), settings=settings) as daemon:
        await kubelet.endpoint(TAPE)
        service = daemon.resources[TAPE].service
        assert service.seconds_without_stream == 0
        before_end = loop.time()
        await kubelet.stop()
        await service.streams.until(lambda streams: streams.open == 0)
        assert 0 < service.seconds_without_stream <= loop.time() - before_end
        await kubelet.start()
        await service.streams.until(lambda streams: streams.open == 1)
        assert service.seconds_without_stream == 0
