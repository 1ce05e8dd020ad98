"""Two daemons of one resource at once, as `updateStrategy.overlap` of the chart has them on kubelets from 1.37 on."""

import asyncio
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

from tests.observed_kubelet import QUICK

from plugwright import Settings, serving
from plugwright.kubelet import Kubelet, KubeletSettings, Phase
from plugwright.plugins.mock import Mock, MockOptions
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.daemon_status import is_ready
from plugwright.system.concurrency import cancel
from plugwright.testing import pod_requesting

RESOURCE = "mock/gpu"


async def test_the_newer_daemon_takes_over_without_a_moment_without_devices(root: Path, settings: Settings) -> None:
    async with Kubelet(root, KubeletSettings(version="1.37", timing=QUICK)) as kubelet:
        older = await _started(settings)
        await kubelet.allocatable(RESOURCE, 4)
        held = await kubelet.admit(pod_requesting({RESOURCE: 1}, name="held"))
        counts: set[int] = set()
        watching = asyncio.create_task(_watch(kubelet, counts))
        for number in range(3):
            newer = await _started(settings)
            await older.aclose()
            pod = await kubelet.admit(pod_requesting({RESOURCE: 1}, name=f"pod-{number}"))
            assert pod.phase is Phase.RUNNING
            await kubelet.remove(pod)
            older = newer
        await cancel(watching)
        await older.aclose()
        assert held.phase is Phase.RUNNING
        assert not kubelet.findings  # the emulated kubelet reports what a real one would have torn down
    assert counts == {4}


async def _started(settings: Settings) -> AsyncExitStack:
    """A daemon that is ready, to be ended by closing it: as a DaemonSet ends an older pod."""
    stack = AsyncExitStack()
    daemon: Daemon = await stack.enter_async_context(serving(Mock(RESOURCE, MockOptions(count=4)), settings=settings))
    await daemon.changed.until(lambda: is_ready(daemon.resource(RESOURCE)))
    return stack


async def _watch(kubelet: Kubelet, counts: set[int]) -> None:
    """How many devices are allocatable, after each event."""
    async with aclosing(kubelet.events(new=True)) as events:
        async for _ in events:
            counts.add(kubelet.node()[RESOURCE].allocatable)
