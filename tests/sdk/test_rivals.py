"""A third-party plugin that registers our resource: the kubelet accepts it silently, and the daemon reports it."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.observed_kubelet import QUICK

from plugwright import Device, Settings, Timeouts, serving
from plugwright.kubelet import Kubelet, KubeletSettings
from plugwright.plugins.mock import Mock, MockOptions
from plugwright.protocol import checkpoint, device_plugin, registration
from plugwright.protocol.checkpoint import Checkpoint
from plugwright.protocol.registration import RegisterRequest
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.daemon_status import is_ready, report
from plugwright.sdk.holdings.kubelet_checkpoint import KubeletCheckpoint
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.plugin import supported_options
from plugwright.sdk.plugin_calls import PluginCalls, StallDetector
from plugwright.sdk.prometheus import page
from plugwright.sdk.rivals import RegisteredResource, Rivals
from plugwright.sdk.service import PluginService
from plugwright.testing import pod_requesting

RESOURCE, LIMIT = "mock/gpu", 30.0


@pytest.fixture
def stalls() -> Iterator[StallDetector]:
    detector = StallDetector(1.0)
    yield detector
    detector.close()


@asynccontextmanager
async def rival(kubelet: Kubelet, settings: Settings, stalls: StallDetector, *ids: str) -> AsyncIterator[Inventory]:
    """Another tool's plugin, with a socket name of its own."""
    plugin, inventory = Mock(RESOURCE, MockOptions(count=1)), Inventory(RESOURCE)
    inventory.update([Device(device_id) for device_id in ids])
    service = PluginService(plugin, inventory, PluginCalls(RESOURCE, stalls), settings)
    directory = kubelet.paths.device_plugins
    async with device_plugin.serve(service, directory / "nvidia-gpu.sock") as served:
        request = RegisterRequest(RESOURCE, served.path.name, supported_options(plugin))
        async with registration.connect(directory / "kubelet.sock") as client:
            await client.register(request, timeout=LIMIT)
        yield inventory


async def ours(stack: AsyncExitStack, settings: Settings) -> Daemon:
    daemon = await registered(stack, settings, 0.05)
    async with asyncio.timeout(LIMIT):
        await daemon.rivals.compared.until(lambda: daemon.rivals.compared.count)
    return daemon


async def registered(stack: AsyncExitStack, settings: Settings, settle: float) -> Daemon:
    settings = replace(settings, timeouts=Timeouts(holders=settle))
    daemon = await stack.enter_async_context(serving(Mock(RESOURCE, MockOptions(count=4)), settings=settings))
    async with asyncio.timeout(LIMIT):
        await daemon.changed.until(lambda: is_ready(daemon.resource(RESOURCE)))
    return daemon


def rivals(daemon: Daemon) -> str:
    return report(daemon)["resources"][0]["rival"]


async def test_devices_of_another_plugin_under_our_name_are_reported(
    root: Path, settings: Settings, stalls: StallDetector, caplog: pytest.LogCaptureFixture
) -> None:
    async with Kubelet(root, KubeletSettings(version="1.36", timing=QUICK)) as kubelet, AsyncExitStack() as stack:
        daemon = await ours(stack, settings)
        async with rival(kubelet, settings, stalls, "GPU-1"), asyncio.timeout(LIMIT):
            await daemon.changed.until(lambda: rivals(daemon))
            assert rivals(daemon) == "the kubelet has devices that are not listed here: GPU-1"
            assert 'plugwright_resource_rival{resource="mock/gpu"} 1.0' in page(daemon)()[1].decode()
    assert "another plugin serves the resource" in caplog.text


async def test_a_plugin_that_registers_just_after_us_is_reported_by_the_second_comparison(
    root: Path, settings: Settings, stalls: StallDetector
) -> None:
    async with Kubelet(root, KubeletSettings(version="1.36", timing=QUICK)) as kubelet, AsyncExitStack() as stack:
        daemon = await registered(stack, settings, 0.5)
        async with rival(kubelet, settings, stalls, "GPU-1"), asyncio.timeout(LIMIT):
            await daemon.changed.until(lambda: rivals(daemon))
            assert "not listed here: GPU-1" in rivals(daemon)


async def test_the_list_of_an_earlier_plugin_is_no_rival(tmp_path: Path) -> None:
    """A slow kubelet has not written our list yet: its checkpoint is older than our socket."""
    path, socket = tmp_path / "kubelet_internal_checkpoint", tmp_path / "ours.sock"
    path.write_bytes(checkpoint.encode(Checkpoint((), {RESOURCE: ("GPU-1",)})))
    socket.touch()
    served = {RESOURCE: RegisteredResource(["mock-0"], [], socket.name)}
    found = Rivals(KubeletCheckpoint(path, 1.0), tmp_path, lambda: served, 0.0, lambda: False)
    os.utime(path, (1.0, 1.0))
    for _ in range(3):
        await found.compare()
    assert found.found.value == {}
    os.utime(socket, (0.5, 0.5))
    await found.compare()
    assert list(found.found.value) == [RESOURCE]


async def test_foreign_devices_are_compared_again_before_they_are_reported(tmp_path: Path) -> None:
    """The kubelet could be about to write our first list."""
    path, socket = tmp_path / "kubelet_internal_checkpoint", tmp_path / "ours.sock"
    socket.touch()
    os.utime(socket, (1.0, 1.0))
    path.write_bytes(checkpoint.encode(Checkpoint((), {RESOURCE: ("GPU-1",)})))
    served = {RESOURCE: RegisteredResource(["mock-0"], [], socket.name)}
    found = Rivals(KubeletCheckpoint(path, 1.0), tmp_path, lambda: served, 0.0, lambda: False)
    await found.compare()
    assert found.found.value == {}
    running = asyncio.create_task(found.run())
    async with asyncio.timeout(LIMIT):
        await found.found.until(bool)
    running.cancel()
    await asyncio.wait([running])
    path.write_bytes(checkpoint.encode(Checkpoint((), {RESOURCE: ("mock-0",)})))
    await found.compare()
    assert found.found.value == {}


async def test_an_allocation_that_another_plugin_answers_is_reported(
    root: Path, settings: Settings, stalls: StallDetector
) -> None:
    """It may list the very same devices, as two plugins for one kind of GPU do."""
    async with Kubelet(root, KubeletSettings(version="1.36", timing=QUICK)) as kubelet, AsyncExitStack() as stack:
        daemon = await ours(stack, settings)
        snapshot = daemon.resource(RESOURCE).inventory.latest.value
        assert snapshot is not None
        async with rival(kubelet, settings, stalls, *snapshot.devices), asyncio.timeout(LIMIT):
            await kubelet.admit(pod_requesting({RESOURCE: 1}, name="other"))
            await daemon.changed.until(lambda: rivals(daemon))
            assert rivals(daemon) == "the kubelet has allocated devices without asking this daemon"


async def test_a_daemon_of_ours_with_another_node_directory_is_reported(
    root: Path, settings: Settings, tmp_path: Path
) -> None:
    async with Kubelet(root, KubeletSettings(timing=QUICK)) as kubelet, AsyncExitStack() as stack:
        daemon = await ours(stack, replace(settings, release="fleet/first", state_dir=tmp_path / "first"))
        await kubelet.allocatable(RESOURCE, 4)
        other = replace(settings, release="fleet/second", state_dir=tmp_path / "second")
        await stack.enter_async_context(serving(Mock(RESOURCE, MockOptions(count=2, seed="other")), settings=other))
        async with asyncio.timeout(LIMIT):
            await daemon.changed.until(lambda: "not listed here" in rivals(daemon))


async def test_a_daemon_alone_has_no_rival(root: Path, settings: Settings) -> None:
    async with Kubelet(root, KubeletSettings(timing=QUICK)) as kubelet, AsyncExitStack() as stack:
        daemon = await ours(stack, settings)
        seen = daemon.rivals.compared.count
        await kubelet.admit(pod_requesting({RESOURCE: 2}, name="first"))
        async with asyncio.timeout(LIMIT):
            await daemon.rivals.compared.wait(seen)
        assert rivals(daemon) == ""
