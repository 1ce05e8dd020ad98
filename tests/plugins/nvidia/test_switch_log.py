"""Errors of NVSwitches, from the kernel's log to all GPUs; the log is a pipe here, with records as in /dev/kmsg."""

import asyncio
import logging
import os
from pathlib import Path

import pytest
from tests.plugins.nvidia.test_incidents import daemon

from plugwright.plugins.nvidia.driver import EventKind, GpuEvent
from plugwright.plugins.nvidia.nvml import KernelPaths, Nvml
from plugwright.plugins.nvidia.switch_log import SwitchLog

FATAL = "4,1217,98765,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n"
MENDED = "4,1218,98766,-;nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO\n"
OTHER = "6,1219,98767,-;usb 1-1: new high-speed USB device number 2\n SUBSYSTEM=usb\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "kmsg")
    return tmp_path / "kmsg"


async def test_fatal_errors_are_events_and_others_are_logged(log: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    events = asyncio.Queue[GpuEvent]()
    switches = SwitchLog(events.put_nowait)
    switches.follow(log)
    switches.follow(log)  # with every reading of the driver
    try:
        with log.open("w") as kernel:
            kernel.write(OTHER + MENDED + FATAL)
            kernel.flush()
            async with asyncio.timeout(60):
                assert await events.get() == GpuEvent(EventKind.SXID, "nvswitch 0000:c1:00.0", 20034)
        assert events.empty()
    finally:
        switches.stop()
    assert [vars(record)["sxid"] for record in caplog.records] == [28006, 20034]


async def test_a_log_that_may_not_be_read_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    switches = SwitchLog(lambda event: None)
    for _ in range(2):
        switches.follow(tmp_path / "none")
    switches.follow(None)
    switches.stop()
    assert caplog.messages == ["errors of NVSwitches are not seen"]


async def test_a_log_that_ends_is_followed_again(log: Path) -> None:
    events = asyncio.Queue[GpuEvent]()
    switches = SwitchLog(events.put_nowait)
    async with asyncio.timeout(60):
        for _ in range(2):
            switches.follow(log)
            with log.open("w") as kernel:
                kernel.write(FATAL)
            await events.get()
            while switches._descriptor is not None:
                await asyncio.sleep(0.001)


def test_a_machine_without_switches_has_no_such_log(tmp_path: Path) -> None:
    driver = Nvml(paths=KernelPaths(tmp_path, tmp_path, tmp_path / "kmsg"))
    assert driver.switch_log() is None
    (tmp_path / "driver/nvidia-nvswitch").mkdir(parents=True)
    assert driver.switch_log() == tmp_path / "kmsg"


async def test_all_gpus_are_unhealthy_until_they_were_reset_over_a_restart_too(tmp_path: Path) -> None:
    reason = "SXid 20034 of nvswitch 0000:06:00.0, waiting for a reset of all GPUs and switches"
    async with daemon(tmp_path) as (monitor, lists):
        first, *others = await lists.first()
        await lists.until(lambda _: first in monitor.views.value.watched)
        assert monitor.driver.inject is not None
        monitor.driver.inject("sxid", {"sxid": "20034"})
        for gpu in (first, *others):
            await lists.reason(gpu, reason)
    async with daemon(tmp_path) as (monitor, lists):
        await lists.first()
        await lists.reason(first, reason)
        monitor.clear_xids(first)
        for gpu in (first, *others):
            await lists.reason(gpu, "")
