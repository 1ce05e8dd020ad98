"""The metrics of what went wrong: an alert on one of them must be able to fire."""

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from tests.observed_kubelet import ObservedKubelet
from tests.sdk.actors import TAPE
from tests.sdk.test_supervision import Odd, Shelf

from plugwright import Allocation, Device, Plugin, Settings, serving
from plugwright.errors import HardwareMissing, PeerRefused
from plugwright.sdk import prometheus
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.logs import LogWriter
from plugwright.sdk.plugin_calls import MOST_HUNG
from plugwright.sdk.settings import Limits, Timeouts
from plugwright.sdk.status import ConfigState, RefusedConfig

DRIVE = "example.com/drive"


class Hanging(Plugin):
    """Its allocate() hangs until it is released."""

    resource = DRIVE

    def __init__(self) -> None:
        self.released = threading.Event()

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Device("st0"), Device("st1")]

    def allocate(self, devices: object) -> Allocation:
        self.released.wait()
        return Allocation()


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    hanging = Hanging()
    yield hanging
    hanging.released.set()


def scrape(daemon: Daemon) -> dict[tuple[str, ...], float]:
    """Every sample, by its name and the values of its labels."""
    _, page = prometheus.page(daemon)()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


async def test_a_part_that_is_started_again_is_counted(kubelet: ObservedKubelet, settings: Settings) -> None:
    shelf = Shelf(Device("st0"), Device("st1"))
    async with serving(shelf, settings=settings) as daemon:
        await kubelet.endpoint(TAPE, count=2)
        before = scrape(daemon)
        assert before["plugwright_resource_restarts_total", TAPE] == 0
        assert before["plugwright_discover_abandoned_total", TAPE] == 0
        shelf.listed.publish([Odd("st0")])
        await kubelet.health(TAPE, "st0", "Unhealthy")
        assert scrape(daemon)["plugwright_resource_restarts_total", TAPE] >= 1


async def test_threads_that_hang_in_allocate_are_counted_and_their_devices_unhealthy_until_they_end(
    kubelet: ObservedKubelet, settings: Settings, hanging: Hanging
) -> None:
    async with serving(hanging, settings=replace(settings, limits=Limits(allocate=0.05))) as daemon:
        drive = await kubelet.endpoint(DRIVE, count=2)
        for _ in range(MOST_HUNG):
            with pytest.raises(PeerRefused, match="did not end within"):
                await drive.client.allocate(["st0"])
        await kubelet.health(DRIVE, "st1", "Unhealthy")
        assert scrape(daemon)["plugwright_stuck_threads", "allocate", DRIVE] == MOST_HUNG
        refusal = r"allocate\(\) of example.com/drive is not called: 4 earlier calls still hang in "
        with pytest.raises(PeerRefused, match=refusal):
            await drive.client.allocate(["st0"])
        hanging.released.set()
        await kubelet.health(DRIVE, "st1", "Healthy")
        while daemon.resources[DRIVE].stuck:  # the others end a moment later
            await asyncio.sleep(0.001)
        assert ("plugwright_stuck_threads", "allocate", DRIVE) not in scrape(daemon)


class Erring(Plugin):
    """Lists what it is given, and raises exceptions among them."""

    resource = DRIVE

    def __init__(self) -> None:
        self.next = asyncio.Queue[object]()

    async def discover(self) -> AsyncIterator[list[Device]]:
        while True:
            if isinstance(following := await self.next.get(), Exception):
                raise following
            yield following  # type: ignore[misc]  # also invalid ones


async def test_refused_lists_and_failing_discovery_show_until_a_valid_list(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    erring = Erring()
    async with serving(erring, settings=settings) as daemon:
        runtime = daemon.resource(DRIVE)
        erring.next.put_nowait([Device("st0")])
        await kubelet.endpoint(DRIVE, 1)
        erring.next.put_nowait([Device("st0"), Device("st0")])
        await runtime.inventory.refused.until(bool)
        refused = scrape(daemon)
        erring.next.put_nowait(OSError("no answer"))
        await runtime.discovery.failing.until(bool)
        failing = scrape(daemon)
        erring.next.put_nowait([Device("st0"), Device("st1")])
        await kubelet.endpoint(DRIVE, 2)
        after = scrape(daemon)
    names = ("list_refused", "lists_refused_total", "discovery_failing", "discovery_failures_total")
    shown = [[found[f"plugwright_{name}", DRIVE] for name in names] for found in (refused, failing, after)]
    assert shown == [[1, 1, 0, 0], [1, 1, 1, 1], [0, 1, 0, 1]]


async def test_discovery_that_never_lists_shows_as_failing(kubelet: ObservedKubelet, settings: Settings) -> None:
    async with serving(Erring(), settings=replace(settings, timeouts=Timeouts(discovery=0.05))) as daemon:
        assert scrape(daemon)["plugwright_discovery_failing", DRIVE] == 0
        await kubelet.endpoint(DRIVE, 0)
        assert scrape(daemon)["plugwright_discovery_failing", DRIVE] == 1


@contextmanager
def unread_log() -> Iterator[LogWriter]:
    reading, writing = os.pipe()
    os.close(reading)
    writer = LogWriter(writing)
    logging.getLogger().addHandler(writer)
    yield writer
    logging.getLogger().removeHandler(writer)
    os.close(writing)


class Late(Plugin):
    """Its driver is loaded when it is told so, and its first list has two drives, the second one drive."""

    resource = DRIVE

    def __init__(self) -> None:
        self.loaded, self.removed = asyncio.Event(), asyncio.Event()

    async def discover(self) -> AsyncIterator[list[Device]]:
        if not self.loaded.is_set():
            raise HardwareMissing("no driver for drives")
        yield [Device("st0"), Device("st1", "Unhealthy", "no tape")]
        await self.removed.wait()
        yield [Device("st1", "Unhealthy", "no tape")]


async def test_an_idle_resource_raises_no_alert_and_a_removed_device_is_not_unhealthy(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    late = Late()
    async with serving(late, settings=settings) as daemon:
        await daemon.resource(DRIVE).discovery.idle.until(bool)
        before = scrape(daemon)
        assert (before["plugwright_resource_idle", DRIVE], before["plugwright_seconds_without_stream", DRIVE]) == (1, 0)
        late.loaded.set()
        await kubelet.endpoint(DRIVE, 2)
        late.removed.set()
        await kubelet.health(DRIVE, "st0", "Unhealthy")
        after = scrape(daemon)
    assert after["plugwright_resource_idle", DRIVE] == 0
    assert [after["plugwright_devices", health, DRIVE] for health in ("Healthy", "Removed", "Unhealthy")] == [0, 1, 1]
    assert after["process_resident_memory_bytes",] > 2**20


async def test_log_lines_that_nobody_reads_are_counted(settings: Settings) -> None:
    with unread_log() as writer:
        async with serving(settings=settings) as daemon:
            before = scrape(daemon)["plugwright_log_lines_dropped_total",]
            writer.handle(logging.LogRecord("tape", logging.INFO, __file__, 1, "for nobody", (), None))
            writer.flush(60)
            assert scrape(daemon)["plugwright_log_lines_dropped_total",] == before + 1


async def test_the_configuration_is_shown_while_it_is_followed(settings: Settings) -> None:
    async with serving(settings=settings) as daemon:
        assert not any(name.startswith("plugwright_config") for name, *_ in scrape(daemon))
        refused = RefusedConfig("b" * 12, 2.0, "unknown key 'cuont'")
        daemon.config.publish(ConfigState("plugwright.yaml", "a" * 12, 1.0, 3, refused, {"nvidia.com/": "no name"}))
        found = scrape(daemon)
        assert found["plugwright_config_last_reload_successful",] == 0
        assert found["plugwright_config_last_reload_timestamp_seconds",] == 1
        assert found["plugwright_config_reload_failures_total",] == 3
        assert found["plugwright_config_refused_names",] == 1
        assert found["plugwright_config_info", "b" * 12, "a" * 12] == 1
