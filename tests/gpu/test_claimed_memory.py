"""On a real GPU: claims of 60, 60 and 40 GiB of one card, each held to what the scheduler gave it.

The three do not fit together into a card of 139 GiB, so the third one waits: here it comes when the first has ended.
"""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.gpu.test_vgpu_limits import LIBRARIES, Container, artefact, driver_root, gpu, used
from tests.plugins.nvidia.harness import listing

from plugwright import Allocation
from plugwright.attributes import Capacity
from plugwright.plugins.nvidia.config import NvidiaConfig, NvidiaDriver, NvidiaShare, NvidiaVgpu, SharingStrategy
from plugwright.plugins.nvidia.driver import Gpu
from plugwright.plugins.nvidia.monitor import GpuMonitor, PollIntervals
from plugwright.plugins.nvidia.nvml import Nvml
from plugwright.plugins.nvidia.plugin import Nvidia
from plugwright.plugins.nvidia.vgpu import VgpuSharing
from plugwright.sdk.serve_settings import ServeMode, ServeSettings

__all__ = ["artefact", "driver_root", "gpu"]  # fixtures

MIB, GIB = 2**20, 2**30
SIZES = (60, 60, 40)  # GiB
PIECE = 256  # MiB
CONTEXT = 1024  # MiB that a program may need beside what it allocates


@pytest.fixture
def claims(gpu: Gpu, artefact: Path, driver_root: str, tmp_path: Path) -> list[Container]:
    """A container of each claim."""
    if not sum(SIZES[:2]) * GIB < gpu.memory < sum(SIZES) * GIB:
        pytest.skip(f"needs a card of 120 to 160 GiB, this one has {gpu.memory // GIB}")
    share = NvidiaShare(
        by=SharingStrategy.VGPU, replicas=2, vgpu=NvidiaVgpu(builtin=str(artefact), root=str(tmp_path / "vgpu"))
    )
    config = NvidiaConfig(share=share, driver=NvidiaDriver(root=driver_root, dev="/", libraries=[LIBRARIES]))

    async def allocate() -> list[Allocation]:
        monitor = GpuMonitor(Nvml(), PollIntervals(event_wait=1))
        plugin = Nvidia("nvidia.com/gpu", config, monitor, VgpuSharing("nvidia.com/gpu", share))
        plugin.serve = ServeSettings(api=ServeMode.DRA)
        async with listing(plugin) as lists:
            device = (await lists.first())[gpu.uuid]
            assert not device.reason, device.reason
            given = [
                device.replace(capacity={"memory": Capacity(size * GIB)}, share_id=f"share-{number}")
                for number, size in enumerate(SIZES)
            ]
            return [await plugin.allocate([part]) for part in given]

    allocations = asyncio.run(allocate())
    return [Container(allocation, size * 1024) for allocation, size in zip(allocations, SIZES, strict=True)]


def test_each_process_is_stopped_at_the_memory_of_its_claim(
    claims: list[Container], gpu: Gpu, seen: Callable[[str], None]
) -> None:
    idle = used(gpu)
    with ExitStack() as stack:
        programs = [stack.enter_context(container.program()).ready() for container in claims[:2]]
        got = [PIECE * program("fill", PIECE) for program in programs]
        taken = used(gpu) - idle
        programs[0].kill()
        third = stack.enter_context(claims[2].program()).ready()
        got.append(PIECE * third("fill", PIECE))
        refused = [program("allocate", "plain", PIECE + CONTEXT)[0] for program in (programs[1], third)]
        totals = [program("memory")[1] for program in (programs[1], third)]
    seen(f"vgpu, claims of {SIZES} GiB: {got} MiB each, {taken} MiB of the first two by the driver's count")
    for container, size in zip(claims, got, strict=True):
        assert container.limit - CONTEXT <= size <= container.limit
    assert taken <= sum(container.limit for container in claims[:2])
    assert refused == [2, 2]
    assert totals == [container.limit for container in claims[1:]]
