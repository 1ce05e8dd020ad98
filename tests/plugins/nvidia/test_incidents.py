"""An Xid that needs a reset is remembered by the next daemon, until the GPU was reset."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.plugins.nvidia.harness import INTERVALS, Lists, ManualClock, listing, resource

from plugwright.plugins.nvidia.driver import DriverLoad
from plugwright.plugins.nvidia.health import XidRecord
from plugwright.plugins.nvidia.incidents import Incidents
from plugwright.plugins.nvidia.monitor import GpuMonitor
from plugwright.plugins.nvidia.simulation import SimulatedDriver


class LoadedDriver(SimulatedDriver):
    """Of the load `now`."""

    now = DriverLoad("boot 1", "load 1")

    def load(self) -> DriverLoad:
        return self.now


@asynccontextmanager
async def daemon(directory: Path, load: DriverLoad = LoadedDriver.now) -> AsyncIterator[tuple[GpuMonitor, Lists]]:
    driver = LoadedDriver("t4")
    driver.now = load
    monitor = GpuMonitor(driver, INTERVALS, ManualClock(), Incidents(directory, "t4"))
    async with listing(resource(monitor)) as lists:
        yield monitor, lists
    async with asyncio.timeout(30):
        while monitor._saving is not None and not monitor._saving.done():
            await asyncio.wait([monitor._saving])


async def report(monitor: GpuMonitor, lists: Lists, xid: int) -> str:
    first, *_ = await lists.first()
    await lists.until(lambda _: first in monitor.views.value.watched)
    assert monitor.driver.inject is not None
    monitor.driver.inject("xid", {"id": first, "xid": str(xid)})
    await lists.reason(first, f"Xid {xid}")
    return first


def stored(directory: Path) -> dict[str, object]:
    [path] = directory.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    content: dict[str, object] = json.loads(path.read_text())
    return content


def test_the_file_is_that_of_earlier_releases(tmp_path: Path) -> None:
    load, incidents = DriverLoad("boot 1", "load 1"), Incidents(tmp_path, "t4")
    records = {"GPU-1": (XidRecord(95, 3.5, 2, True),)}
    incidents.save(load, records)
    xid = {"xid": 95, "at": 3.5, "times": 2, "impaired": True, "reset": False}
    content = {"version": 1, "boot": "boot 1", "driver": "load 1", "gpus": {"GPU-1": [xid]}}
    assert incidents.path is not None
    assert incidents.path.read_text() == json.dumps(content, indent=2) + "\n"
    incidents.path.write_text(json.dumps(content))
    assert Incidents(tmp_path, "t4").recall(load) == records


async def test_a_restart_of_the_daemon_forgives_nothing(tmp_path: Path) -> None:
    async with daemon(tmp_path) as (monitor, lists):
        first = await report(monitor, lists, 95)
    assert {"version": 1, "boot": "boot 1", "driver": "load 1"}.items() <= stored(tmp_path).items()
    async with daemon(tmp_path) as (monitor, lists):
        await lists.first()
        assert (lists.devices[first].health, lists.devices[first].code) == ("Unhealthy", "xid-95")
        monitor.clear_xids(first)
        await lists.reason(first, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("load", [DriverLoad("boot 2", "load 1"), DriverLoad("boot 1", "load 2")])
async def test_a_boot_and_a_load_of_the_driver_are_resets(tmp_path: Path, load: DriverLoad) -> None:
    async with daemon(tmp_path) as (monitor, lists):
        first = await report(monitor, lists, 79)
        assert isinstance(monitor.driver, LoadedDriver)
    async with daemon(tmp_path, load) as (_, lists):
        await lists.first()
        assert lists.devices[first].healthy
    async with daemon(tmp_path) as (monitor, lists):
        await lists.first()
        await lists.reason(first, "Xid 79")  # of the first daemon, whose load this is again
        monitor.driver.now = load  # type: ignore[attr-defined]
        monitor.read_now()
        await lists.reason(first, "")


async def test_a_reset_while_the_daemon_is_stopped_is_seen_where_the_driver_recommended_it(tmp_path: Path) -> None:
    async with daemon(tmp_path) as (monitor, lists):
        first = await report(monitor, lists, 79)
        assert monitor.driver.inject is not None
        monitor.driver.inject("lose", {"id": first})
        monitor.read_now()
        await lists.reason(first, "GPU is lost")
    assert stored(tmp_path)["gpus"]
    async with daemon(tmp_path) as (_, lists):
        await lists.first()
        await lists.reason(first, "")
    assert list(tmp_path.iterdir()) == []


async def test_what_is_not_known_of_a_load_is_no_reset(tmp_path: Path) -> None:
    async with daemon(tmp_path) as (monitor, lists):
        first = await report(monitor, lists, 79)
    async with daemon(tmp_path, DriverLoad("boot 1", "")) as (_, lists):
        await lists.first()
        assert not lists.devices[first].healthy


@pytest.mark.parametrize("content", ["", "[]", '{"version": 2}', '{"version": 1, "gpus": {}}'])
async def test_gpus_are_unhealthy_while_the_file_cannot_be_read(tmp_path: Path, content: str) -> None:
    path = Incidents(tmp_path, "t4").path
    assert path is not None
    path.write_text(content)
    async with daemon(tmp_path) as (monitor, lists):
        await lists.first()
        assert {device.code for device in lists.devices.values()} == {"incidents"}
        assert path.read_text() == content
        path.unlink()
        monitor.read_now()
        await lists.until(lambda devices: all(device.healthy for device in devices.values()))


async def test_a_monitor_that_was_read_before_it_has_a_file_knows_no_health_until_it_has_read_it(
    tmp_path: Path,
) -> None:
    async with daemon(tmp_path) as (monitor, lists):
        first = await report(monitor, lists, 95)
    driver = LoadedDriver("t4")
    monitor = GpuMonitor(driver, INTERVALS, ManualClock())
    async with listing(resource(monitor)) as lists:
        await lists.first()
        monitor.keep_xids(tmp_path)
        await lists.reason(first, "Xids of an earlier run have not been read yet")
        await lists.reason(first, "Xid 95")
