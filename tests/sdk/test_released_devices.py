"""A plugin with release() gets its devices back when the pods that had them are gone; nobody else pays for it."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.observed_kubelet import ObservedKubelet
from tests.protocol.held_devices import serve_held_devices
from tests.sdk.actors import TAPE, ListingPlugin, LogRecorder, recorded_log

from plugwright import Allocation, Device, Settings, Timeouts, serving
from plugwright.protocol.pod_resources import HeldDevice
from plugwright.sdk.released_devices import free_devices
from plugwright.system.latest import Latest
from plugwright.testing import pod_requesting, running

OFTEN = Settings(timeouts=Timeouts(holders=0.3))


class Rewinding(ListingPlugin):
    """Remembers what was given back; `problem` is what release() raises."""

    def __init__(self, *ids: str) -> None:
        super().__init__(TAPE, *ids)
        self.released: Latest[tuple[tuple[Device, ...], ...]] = Latest(())
        self.problem: Exception | None = None

    async def release(self, devices: Sequence[Device]) -> None:
        if self.problem is not None:
            raise self.problem
        self.released.publish((*self.released.value, tuple(devices)))

    async def ids_released(self, times: int) -> list[list[str]]:
        async with asyncio.timeout(60):
            released = await self.released.until(lambda calls: len(calls) >= times)
        return [[device.id for device in devices] for devices in released]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[LogRecorder]:
    with recorded_log("plugwright.sdk.released_devices", caplog) as log:
        yield log


async def test_devices_are_released_when_their_pod_is_gone(tmp_path: Path) -> None:
    plugin = Rewinding("st0", "st1", "st2")
    async with running(plugin, tmp_path, served=OFTEN) as kubelet:
        first = await kubelet.admit(pod_requesting({TAPE: 2}))
        second = await kubelet.admit(pod_requesting({TAPE: 1}))
        await kubelet.remove(first)
        assert await plugin.ids_released(1) == [["st0", "st1"]]
        await kubelet.remove(second)
        assert await plugin.ids_released(2) == [["st0", "st1"], ["st2"]]


async def test_a_device_that_was_given_back_can_be_had_and_given_back_again(tmp_path: Path) -> None:
    plugin = Rewinding("st0")
    async with running(plugin, tmp_path, served=OFTEN) as kubelet:
        for times in (1, 2):
            await kubelet.remove(await kubelet.admit(pod_requesting({TAPE: 1})))
            assert await plugin.ids_released(times) == [["st0"]] * times


async def test_a_pod_that_ends_while_the_daemon_is_away_is_noticed_by_the_next_one(tmp_path: Path) -> None:
    async with running(Rewinding("st0", "st1"), tmp_path, served=OFTEN) as kubelet:
        pod = await kubelet.admit(pod_requesting({TAPE: 2}))
        settings = kubelet.daemon.settings
        await kubelet.daemon.apply([])
        await kubelet.remove(pod)
        plugin = Rewinding("st0", "st1")
        async with serving(plugin, settings=replace(settings, control_socket=None)):
            assert await plugin.ids_released(1) == [["st0", "st1"]]


async def test_a_plugin_that_takes_over_releases_what_the_one_before_allocated(tmp_path: Path) -> None:
    async with running(ListingPlugin(TAPE, "st0"), tmp_path, served=OFTEN) as kubelet:
        pod = await kubelet.admit(pod_requesting({TAPE: 1}))
        plugin = Rewinding("st0")
        await kubelet.daemon.apply([plugin])
        await kubelet.remove(pod)
        assert await plugin.ids_released(1) == [["st0"]]


async def test_a_device_that_is_gone_is_released_too(tmp_path: Path) -> None:
    plugin = Rewinding("st0", "st1")
    async with running(plugin, tmp_path, served=OFTEN) as kubelet:
        pod = await kubelet.admit(pod_requesting({TAPE: 2}))
        plugin.ids.publish(("st1",))
        await kubelet.remove(pod)
        assert await plugin.ids_released(1) == [["st0", "st1"]]


async def test_a_release_that_fails_is_logged_once_and_tried_again(tmp_path: Path, log: LogRecorder) -> None:
    plugin = Rewinding("st0")
    plugin.problem = OSError("the tape is stuck")
    async with running(plugin, tmp_path, served=OFTEN) as kubelet:
        await kubelet.remove(await kubelet.admit(pod_requesting({TAPE: 1})))
        await log.until("devices are not released yet, it is tried again", times=3)
        plugin.problem = None
        assert await plugin.ids_released(1) == [["st0"]]
    warned = [line for line in log.lines if "the tape is stuck" in line]
    assert len(warned) >= 3
    assert log.lines[-1].startswith("released")


async def test_only_the_first_failure_is_a_warning(
    tmp_path: Path, log: LogRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = Rewinding("st0")
    plugin.problem = OSError("the tape is stuck")
    async with running(plugin, tmp_path, served=OFTEN) as kubelet:
        await kubelet.remove(await kubelet.admit(pod_requesting({TAPE: 1})))
        await log.until("the tape is stuck", times=3)
    levels = [record.levelname for record in caplog.records if "the tape is stuck" in str(record.__dict__.get("error"))]
    assert levels[:3] == ["WARNING", "DEBUG", "DEBUG"]


class Slow(Rewinding):
    """Its release() waits to be let on, and its allocate() says what was going on meanwhile."""

    def __init__(self, *ids: str) -> None:
        super().__init__(*ids)
        self.begun, self.may_end = Latest(0), Latest(False)
        self.order: list[str] = []

    async def release(self, devices: Sequence[Device]) -> None:
        self.begun.publish(self.begun.value + 1)
        await self.may_end.until(bool)
        self.order.append("released")

    async def allocate(self, devices: object) -> Allocation:
        self.order.append("allocated")
        return Allocation()


async def test_the_next_allocation_waits_until_a_device_is_released(tmp_path: Path) -> None:
    plugin = Slow("st0")
    async with running(plugin, tmp_path, served=OFTEN) as kubelet, asyncio.timeout(60):
        await kubelet.remove(await kubelet.admit(pod_requesting({TAPE: 1})))
        await plugin.begun.until(lambda count: count == 1)
        admitting = asyncio.create_task(kubelet.admit(pod_requesting({TAPE: 1})))
        plugin.ids.publish(("st0", "st1"))
        await kubelet.capacity(TAPE, 2)  # by now the call has come
        plugin.may_end.publish(True)
        await admitting
    assert plugin.order == ["allocated", "released", "allocated"]


class Node:
    """Nobody holds anything; it counts the questions."""

    def __init__(self) -> None:
        self.times = 0

    async def held_devices(self) -> Sequence[HeldDevice]:
        self.times += 1
        return ()


async def test_nothing_is_asked_for_a_plugin_without_release(kubelet: ObservedKubelet, settings: Settings) -> None:
    node, rarely = Node(), Timeouts(holders=0.0, audit=3600)
    plugin = ListingPlugin(TAPE, "st0")
    async with (
        serve_held_devices(node, kubelet.paths.pod_resources_socket),
        serving(plugin, settings=replace(settings, timeouts=rarely)),
    ):
        tape = await kubelet.endpoint(TAPE)
        at_the_start = node.times
        for count in range(2, 12):
            await tape.client.allocate(["st0"])
            plugin.ids.publish(tuple(f"st{number}" for number in range(count)))
            await kubelet.endpoint(TAPE, count)
        assert node.times == at_the_start


async def test_nothing_is_asked_while_nothing_is_allocated(kubelet: ObservedKubelet, settings: Settings) -> None:
    node, rarely = Node(), Timeouts(holders=0.0, audit=3600)
    plugin = Rewinding("st0")
    async with (
        serve_held_devices(node, kubelet.paths.pod_resources_socket),
        serving(plugin, settings=replace(settings, timeouts=rarely)),
    ):
        tape = await kubelet.endpoint(TAPE)
        at_the_start = node.times
        for count in range(2, 12):
            plugin.ids.publish(tuple(f"st{number}" for number in range(count)))
            await kubelet.endpoint(TAPE, count)
        assert node.times == at_the_start
        await tape.client.allocate(["st0"])
        assert await plugin.ids_released(1) == [["st0"]]


async def test_a_device_that_claims_have_is_released_by_whoever_moves_it(tmp_path: Path) -> None:
    plugin = Rewinding("st0", "st1")
    async with running(plugin, tmp_path, served=OFTEN) as kubelet:
        runtime = kubelet.daemon.resource(TAPE)
        pod = await kubelet.admit(pod_requesting({TAPE: 2}))
        runtime.inventory.withhold({"st0": "served by DRA"})
        await kubelet.remove(pod)
        assert await plugin.ids_released(1) == [["st1"]]
        assert await runtime.released_devices.release(["st0", "st1"])
        assert await plugin.ids_released(2) == [["st1"], ["st0"]]
        assert await runtime.released_devices.release(["st0"])
        assert len(plugin.released.value) == 2


class Blocking(Rewinding):
    def release(self, devices: Sequence[Device]) -> None:  # type: ignore[override]
        self.thread_calls = getattr(self, "thread_calls", 0) + 1


async def test_a_release_without_async_runs_in_a_thread(tmp_path: Path, log: LogRecorder) -> None:
    plugin = Blocking("st0")
    async with running(plugin, tmp_path, served=OFTEN) as kubelet:
        await kubelet.remove(await kubelet.admit(pod_requesting({TAPE: 1})))
        async with asyncio.timeout(60):
            await log.until("released")
    assert plugin.thread_calls == 1


IDS = st.sampled_from(["st0", "st1", "st2", "st10"])


@given(st.dictionaries(IDS, st.floats(0, 10)), st.sets(IDS), st.floats(0, 10))
def test_what_is_free_was_allocated_long_enough_ago_and_nobody_holds_it(
    allocated: dict[str, float], held: set[str], read: float
) -> None:
    free = free_devices(allocated, held, read)
    assert set(free) == {device_id for device_id in allocated if device_id not in held and allocated[device_id] <= read}
    assert free == [device_id for device_id in ("st0", "st1", "st2", "st10") if device_id in free]
