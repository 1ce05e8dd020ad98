"""Whatever goes wrong around the driver makes GPUs Unhealthy, is tried again, and is never silent."""

import asyncio
import logging
import threading
from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from tests.plugins.nvidia.harness import INTERVALS, ManualClock, listing, machine, resource
from tests.system.test_blocking import no_threads

from plugwright.errors import PluginError
from plugwright.plugins.nvidia.config import MigStrategy, NvidiaConfig, NvidiaPattern, NvidiaShare
from plugwright.plugins.nvidia.driver import EventKind, GpuEvent, GpuSnapshot
from plugwright.plugins.nvidia.monitor import GpuMonitor
from plugwright.plugins.nvidia.nvml_events import EventThread
from plugwright.plugins.nvidia.plugin import Nvidia
from plugwright.plugins.nvidia.sharing import ContainerExtras, GpuUnit
from plugwright.plugins.nvidia.simulation import SimulatedDriver, SimulatedEvents
from plugwright.plugins.nvidia.time_slicing import TimeSlicing

NOT_UTF_8 = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


class OddDriver(SimulatedDriver):
    """Raises what a library may raise, as long as `odd` is set; its events as long as `odd_events` is."""

    odd: Exception | None = None
    odd_events: Exception | None = None
    uuid = ""  # of the first GPU, instead of its own

    def read(self) -> GpuSnapshot:
        if self.odd is not None:
            raise self.odd
        snapshot = super().read()
        gpus = [replace(gpu, uuid=self.uuid) if self.uuid and gpu.index == 0 else gpu for gpu in snapshot.gpus]
        return replace(snapshot, gpus=tuple(gpus))

    def events(self, uuids: tuple[str, ...]) -> SimulatedEvents:
        if self.odd_events is not None:
            raise self.odd_events
        return super().events(uuids)


def odd_machine() -> tuple[OddDriver, GpuMonitor]:
    driver = OddDriver("t4")
    return driver, GpuMonitor(driver, INTERVALS, ManualClock())


async def test_a_gpu_that_is_lost_after_a_thread_was_refused_is_unhealthy(caplog: pytest.LogCaptureFixture) -> None:
    monitor = machine("t4")
    plugin = resource(monitor)
    async with listing(plugin) as lists:
        first, *_ = await lists.first()
        with no_threads():
            monitor.read_now()
            async with asyncio.timeout(60):
                view = await monitor.views.until(lambda view: bool(view.problem))
            await lists.reason(first, "reading GPUs failed")  # at once, though the list has no thread either
        await lists.reason(first, "")
        assert view.problem.endswith("read of the GPUs not started: can't start new thread")
        await plugin.command("lose", {"id": first})
        await lists.reason(first, "GPU is lost")
    failures = [record for record in caplog.records if record.message == "reading GPUs failed"]
    assert [bool(record.exc_info) for record in failures] == [True]


@pytest.mark.parametrize("odd", [NOT_UTF_8, KeyError("\x1b[31mcolumn"), RuntimeError("odd")])
async def test_a_gpu_that_is_lost_after_an_odd_exception_is_unhealthy(odd: Exception) -> None:
    driver, monitor = odd_machine()
    plugin = resource(monitor)
    async with listing(plugin) as lists:
        first, *others = await lists.first()
        driver.odd = odd
        monitor.read_now()
        device = await lists.reason(first, f"reading GPUs failed: {type(odd).__name__}: ")
        assert device.reason.isprintable()
        assert not any(lists.devices[other].healthy for other in others)
        driver.odd = None
        await lists.reason(first, "")
        await plugin.command("lose", {"id": first})
        await lists.reason(first, "GPU is lost")


async def test_a_driver_that_never_answers_well_fails_the_discovery_and_is_tried_again() -> None:
    driver, monitor = odd_machine()
    driver.odd = NOT_UTF_8
    plugin = resource(monitor)
    with pytest.raises(PluginError, match="reading GPUs failed: UnicodeDecodeError"):
        async with listing(plugin) as lists:
            await lists.first()
    driver.odd = None
    async with listing(plugin) as lists:
        assert len(await lists.first()) == 4


async def test_events_that_fail_make_gpus_unhealthy_until_they_are_received_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver, monitor = odd_machine()
    driver.odd_events = NOT_UTF_8
    plugin = resource(monitor)
    async with listing(plugin) as lists:
        first, *_ = await lists.first()
        await lists.reason(first, "its events cannot be registered: UnicodeDecodeError")
        driver.odd_events = None
        await lists.reason(first, "")
        assert first in monitor.views.value.watched
        await plugin.command("xid", {"id": first, "xid": "79"})
        await lists.reason(first, "Xid 79")
    failures = [record for record in caplog.records if record.message == "receiving events of GPUs failed"]
    assert [bool(record.exc_info) for record in failures] == [True]


class FailingWaits(SimulatedDriver):
    """Events can be registered, and every wait for them fails at once, as long as `fails` is set."""

    fails, waits = True, 0

    def events(self, uuids: tuple[str, ...]) -> SimulatedEvents:
        events = super().events(uuids)
        if self.fails:
            self.waits += 1
            events.broken = "waiting for events failed"
        return events


class LastThread(SimulatedDriver):
    """After a read no further thread can be started."""

    def read(self) -> GpuSnapshot:
        threading.stack_size(2**47)
        return super().read()


async def test_an_event_thread_that_cannot_be_started_is_a_fault_and_is_started_later() -> None:
    before, monitor = threading.stack_size(), GpuMonitor(LastThread("t4"), INTERVALS)
    try:
        async with asyncio.timeout(60), monitor.running():
            view = await monitor.views.until(lambda view: len(view.unwatched) == 4)
            assert set(view.unwatched.values()) == {"RuntimeError: can't start new thread"}
            monitor.driver = SimulatedDriver("t4")
            threading.stack_size(before)
            await monitor.views.until(lambda view: len(view.watched) == 4 and not view.unwatched and not view.problem)
    finally:
        threading.stack_size(before)


async def test_an_event_that_cannot_be_handled_is_not_the_last_one() -> None:
    monitor = machine("t4")
    plugin = resource(monitor)
    async with listing(plugin) as lists:
        first, *_ = await lists.first()
        await lists.until(lambda _: first in monitor.views.value.watched)
        refusing = [True]

        def refuse() -> None:
            if refusing and monitor.views.value.xids:
                refusing.clear()
                raise ValueError("a subscriber's own mistake")

        unsubscribe = monitor.views.subscribe(refuse)
        await plugin.command("xid", {"id": first, "xid": "79"})
        await lists.reason(first, "its events cannot be registered: ValueError: a subscriber's own mistake")
        await lists.reason(first, "Xid 79")
        unsubscribe()
        await lists.until(lambda _: first in monitor.views.value.watched)
        await plugin.command("xid", {"id": first, "xid": "48"})
        await lists.until(lambda _: len(monitor.views.value.xids[first]) == 2)


async def test_a_monitor_that_ends_fails_the_discovery_and_runs_again_with_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plugin = resource(machine("t4"))
    async with listing(plugin) as lists:
        await lists.first()
        [task] = [task for task in asyncio.all_tasks() if task.get_name() == "watch NVIDIA GPUs"]
        task.cancel()
        with pytest.raises(PluginError, match="reading GPUs failed: CancelledError"):
            await lists.until(lambda _: False)
    assert "reading GPUs failed" in [record.message for record in caplog.records]
    async with listing(plugin) as lists:
        first, *_ = await lists.first()
        await plugin.command("lose", {"id": first})
        await lists.reason(first, "GPU is lost")


@pytest.mark.parametrize(("received", "reason"), [(1005.0, ""), (1015.0, "waiting for a reset")])
async def test_an_xid_that_is_handled_after_the_reset_needs_another_only_if_it_came_after_the_fault(
    received: float, reason: str
) -> None:
    clock = ManualClock()
    monitor = machine("t4", clock)
    plugin = resource(monitor)
    async with listing(plugin) as lists:
        first, *_ = await lists.first()
        clock.now = 1010
        await plugin.command("lose", {"id": first})
        await lists.reason(first, "GPU is lost")
        clock.now = 1020
        await plugin.command("reset", {"id": first})
        await lists.reason(first, "")
        late = EventThread(monitor.driver, (first,), monitor.events, 1)
        monitor.events.on_event(late, GpuEvent(EventKind.XID, first, 79), received)
        await lists.until(lambda devices: bool(monitor.views.value.xids) and reason in devices[first].reason)
        if not reason:
            await lists.until(lambda devices: monitor.views.value.xids[first][0].reset and devices[first].healthy)


async def test_a_device_that_no_list_can_have_is_left_out_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    driver, monitor = odd_machine()
    driver.uuid = "GPU with spaces\x1b"
    caplog.set_level(logging.INFO)
    async with listing(resource(monitor)) as lists:
        assert len(await lists.first()) == 3
        monitor.republish()
        lists.devices = {}
        assert len(await lists.first()) == 3
    assert [record.message for record in caplog.records].count("device left out of the list") == 1


class RecordingSharing(TimeSlicing):
    """Records the threads in which it is asked."""

    def __init__(self, share: NvidiaShare) -> None:
        super().__init__("nvidia.com/gpu", share)
        self.threads: set[threading.Thread] = set()

    def units(self, whole: Sequence[GpuUnit]) -> list[GpuUnit]:
        self.threads.add(threading.current_thread())
        return super().units(whole)

    def extras(self, units: Sequence[GpuUnit]) -> ContainerExtras:
        self.threads.add(threading.current_thread())
        return super().extras(units)


async def test_lists_and_allocations_are_made_off_the_event_loop() -> None:
    share = NvidiaShare(replicas=7000)
    sharing = RecordingSharing(share)
    plugin = Nvidia("nvidia.com/gpu", NvidiaConfig(share=share), machine("hgx-h100"), sharing)
    async with listing(plugin) as lists:
        devices = await lists.first()
        assert len(devices) == 56_000
        await plugin.allocate([next(iter(devices.values()))])
    assert sharing.threads
    assert threading.current_thread() not in sharing.threads


async def test_events_that_can_never_be_received_make_gpus_unhealthy_and_not_by_turns() -> None:
    monitor = machine("t4")
    plugin = resource(monitor)
    async with listing(plugin) as lists:
        first, *_ = await lists.first()
        await lists.until(lambda _: first in monitor.views.value.watched)
        await plugin.command("events", {"state": "failing"})
        device = await lists.reason(first, "its events cannot be registered: events cannot be received (simulated)")
        assert device.code == "events"
        seen: list[bool] = []
        unsubscribe = monitor.views.subscribe(lambda: seen.append(first in monitor.views.value.unwatched))
        await plugin.command("events", {"state": "back"})
        await lists.reason(first, "")
        unsubscribe()
        assert sorted(seen, reverse=True) == seen, "Unhealthy until they are received, and Healthy from then on"


async def test_a_wait_that_fails_at_once_for_ever_makes_gpus_unhealthy_for_good() -> None:
    driver = FailingWaits("t4")
    monitor = GpuMonitor(driver, INTERVALS, ManualClock())
    async with listing(resource(monitor)) as lists:
        first, *_ = await lists.first()
        await lists.reason(first, "its events cannot be registered: waiting for events failed")
        healthy: list[bool] = []
        unsubscribe = monitor.views.subscribe(lambda: healthy.append(first not in monitor.views.value.unwatched))
        enough = driver.waits + 4
        async with asyncio.timeout(60):
            while driver.waits < enough:
                await asyncio.sleep(INTERVALS.retry)
        unsubscribe()
        assert not any(healthy)
        driver.fails = False
        await lists.reason(first, "")


async def test_a_gpu_without_its_fabric_and_a_whole_gpu_in_mig_mode_are_unhealthy() -> None:
    plugin = resource(machine("hgx-h100"))
    async with listing(plugin) as lists:
        first, second, *_ = await lists.first()
        await plugin.command("fabric", {"state": "gone"})
        assert (await lists.reason(first, "fabric manager")).code == "fabric"
        await plugin.command("fabric", {"state": "back"})
        await lists.reason(first, "")
        await plugin.command("mig", {"id": second, "profiles": ""})
        assert (await lists.reason(second, "in MIG mode")).code == "mig-mode"
        assert lists.devices[first].healthy


async def test_a_gpu_in_mig_mode_without_mig_devices_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    plugin = resource(machine("dgx-a100-mig"), NvidiaConfig(mig=MigStrategy.SINGLE, select=NvidiaPattern(index=[4, 5])))
    async with listing(plugin) as lists:
        assert len(await lists.first()) == 1
        plugin.monitor.read_now()
        await plugin.command("lose", {"id": "5"})
        await lists.until(lambda devices: not any(device.healthy for device in devices.values()))
    assert [record.message for record in caplog.records].count("GPU in MIG mode has no MIG devices") == 1
