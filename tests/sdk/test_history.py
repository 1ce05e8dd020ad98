"""The history of a node's devices: real allocations, health and cordons, over restarts, and when the disk fails."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from plugwright import Settings, Timeouts
from plugwright.plugins.mock import Mock, MockOptions
from plugwright.sdk.cordons import Cordon
from plugwright.sdk.daemon_status import report
from plugwright.sdk.history import HISTORY_FILE, History
from plugwright.sdk.history_events import HistoryEvent
from plugwright.sdk.holdings.holding import Holdings
from plugwright.sdk.node_reporting import kubelet_report, node_report
from plugwright.testing import pod_requesting, running
from plugwright.testing.harness import PluginKubelet

GPU = "mock/gpu"
HOSTILE = "fan \x1b[31m\u202eoff"


@asynccontextmanager
async def recorded(tmp_path: Path, audit: float = 0.05) -> AsyncIterator[PluginKubelet]:
    """Two mock GPUs; what happens to them is recorded soon, and goes on in a later run."""
    timeouts = Timeouts(audit=audit, holders=0.2)
    settings = Settings(state_dir=tmp_path / "state", timeouts=timeouts)
    run = tmp_path / f"run-{len(list(tmp_path.glob('run-*')))}"
    run.mkdir()
    async with running(Mock(GPU, MockOptions(count=2)), run, served=settings) as kubelet:
        await kubelet.capacity(GPU, 2)
        yield kubelet


def history(kubelet: PluginKubelet) -> History:
    assert isinstance(kubelet.daemon.history, History)
    return kubelet.daemon.history


async def until(kubelet: PluginKubelet, kinds: Sequence[str]) -> list[HistoryEvent]:
    """The events, once they have these kinds."""
    found: list[HistoryEvent] = []
    async with asyncio.timeout(60):
        async for _ in history(kubelet).recorded.notifications():
            found = await history(kubelet).events(0.0)
            if [event.kind for event in found] == list(kinds):
                return found
    raise AssertionError([event.kind for event in found])


async def test_pods_health_and_cordons_are_recorded_and_outlive_the_daemon(tmp_path: Path) -> None:
    async with recorded(tmp_path) as kubelet:
        daemon = kubelet.daemon
        first, second = sorted(device["id"] for device in report(daemon, Holdings())["resources"][0]["devices"])
        pod = await kubelet.admit(pod_requesting({GPU: 1}, name="train"))
        [allocated] = await until(kubelet, ["allocated"])
        named = allocated.namespace, allocated.pod, allocated.container
        assert (allocated.device, allocated.api, named) == (first, "device-plugin", ("default", "train", "main"))
        await daemon.resources[GPU].command("fail", {"id": second, "reason": HOSTILE, "code": "xid-79"})
        failed = (await until(kubelet, ["allocated", "health"]))[-1]
        assert (failed.device, failed.health, failed.code) == (second, "Unhealthy", "xid-79")
        assert failed.reason == "fan \\x1b[31m\\u202eoff"
        await daemon.cordons.add(GPU, first, Cordon("fan", "ops", time.time(), float("inf")))
        cordoned = (await until(kubelet, ["allocated", "health", "cordoned"]))[-1]
        assert (cordoned.device, cordoned.reason, cordoned.by) == (first, "fan", "ops")
        await kubelet.remove(pod)
        async with asyncio.timeout(60):  # the kubelet lists the pod for a moment
            while any(holding.pod for holding in daemon.ledger.latest.value.holdings):
                await daemon.ledger.read()
        released = (await until(kubelet, ["allocated", "health", "cordoned", "released"]))[-1]
        assert (released.device, released.pod) == (first, "train")
        document = node_report(
            daemon, report(daemon, Holdings()), Holdings(), kubelet_report(daemon.settings, tmp_path), []
        )
        listed = document["history"]
        assert isinstance(listed, tuple)
        assert [event["kind"] for event in listed] == ["allocated", "health", "cordoned", "released"]
    async with recorded(tmp_path) as again:
        # The device that failed is healthy in the new run, the cordon is still there.
        found = await until(again, ["allocated", "health", "cordoned", "released", "health"])
        assert (found[-1].device, found[-1].health) == (second, "Healthy")
        assert await history(again).events(time.time() + 60) == []


async def test_a_brief_cordon_and_a_brief_fault_leave_events(tmp_path: Path) -> None:
    """All of it happens between two looks."""
    async with recorded(tmp_path, audit=0.3) as kubelet:
        daemon = kubelet.daemon
        first, second = sorted(device["id"] for device in report(daemon, Holdings())["resources"][0]["devices"])
        command, latest = daemon.resources[GPU].command, daemon.resources[GPU].inventory.latest
        await command("fail", {"id": second})
        await until(kubelet, ["health"])
        await daemon.cordons.add(GPU, first, Cordon("fan", "ops", time.time(), float("inf")))
        await daemon.cordons.remove(GPU, first)
        await command("recover", {"id": second})
        await latest.until(lambda snapshot: snapshot is not None and snapshot.devices[second].healthy)
        await command("fail", {"id": second, "reason": "hot", "code": "hot"})
        found = (await until(kubelet, ["health", "cordoned", "uncordoned", "health", "health"]))[1:]
        assert [(event.device, event.by) for event in found[:2]] == [(first, "ops"), (first, "")]
        assert [(event.health, event.code) for event in found[2:]] == [("Healthy", ""), ("Unhealthy", "hot")]


async def test_a_disk_that_fails_costs_no_event_and_no_allocation(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / HISTORY_FILE).symlink_to(tmp_path / "elsewhere")
    async with recorded(tmp_path) as kubelet:
        kept = history(kubelet)
        await kubelet.admit(pod_requesting({GPU: 1}, name="train"))
        async with asyncio.timeout(60):
            async for _ in kept.noticed.notifications():
                if kept.latest:
                    break
        (tmp_path / "state" / HISTORY_FILE).unlink()
        device = next(iter(kubelet.daemon.resources[GPU].inventory.allocated))
        await kubelet.daemon.resources[GPU].command("fail", {"id": device, "reason": "hot", "code": "hot"})
        await until(kubelet, ["allocated", "health"])
        assert not (tmp_path / "elsewhere").exists()


async def test_an_allocation_is_recorded_off_its_path(tmp_path: Path) -> None:
    """Nothing is written before Allocate has answered."""
    async with recorded(tmp_path) as kubelet:
        kept = history(kubelet)
        counted = kept.recorded.count
        await kubelet.admit(pod_requesting({GPU: 2}, name="train"))
        assert kept.recorded.count == counted
        await until(kubelet, ["allocated", "allocated"])


@pytest.mark.parametrize("text", [b"", b"[]\n", b'{"time": 1}\n', b"\xff\x00\n", b'{"kind": "x"' + b"\n" * 9])
async def test_a_damaged_file_is_read_past(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / HISTORY_FILE).write_bytes(text)
    async with recorded(tmp_path) as kubelet:
        await kubelet.admit(pod_requesting({GPU: 1}, name="train"))
        [event] = await until(kubelet, ["allocated"])
        assert msgspec.to_builtins(event)["pod"] == "train"
