"""MPS shares: containers are clients of the daemon of their size, and healthy while that daemon is."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.plugins.nvidia.mps.node import RESOURCE, MpsNode, becomes, gpu

from plugwright.errors import PluginError
from plugwright.model import Allocation, Mount
from plugwright.plugins.nvidia import sharing
from plugwright.plugins.nvidia.config import ComputeModePolicy, NvidiaMps, NvidiaShare, SharingStrategy
from plugwright.plugins.nvidia.driver import ComputeMode, Gpu
from plugwright.plugins.nvidia.mps import state
from plugwright.plugins.nvidia.mps.plan import plan_daemons
from plugwright.plugins.nvidia.mps.sharing import MpsSharing
from plugwright.plugins.nvidia.mps.state import Condition
from plugwright.plugins.nvidia.sharing import GpuUnit
from plugwright.system.latest import Latest

QUARTERS = NvidiaShare(by=SharingStrategy.MPS, replicas=4)
FIRST, SECOND = gpu(0).uuid, gpu(1).uuid


@pytest.fixture
def node(root: Path) -> MpsNode:
    return MpsNode(root)


def offered(
    node: MpsNode,
    share: NvidiaShare,
    mode: ComputeModePolicy = ComputeModePolicy.LEAVE,
    gpus: tuple[Gpu, ...] = (gpu(0), gpu(1)),
) -> "Offer":
    mps = NvidiaMps(root=str(node.paths.root), shm="/dev/shm/tenants", mode=mode)
    return Offer(msgspec.structs.replace(share, mps=mps), gpus)


class Offer:
    """The shares of these GPUs."""

    def __init__(self, share: NvidiaShare, gpus: tuple[Gpu, ...]) -> None:
        self.mps = MpsSharing(RESOURCE, share)
        self.units = self.mps.units([sharing.whole_device(gpu) for gpu in gpus])
        self.plans = plan_daemons(share, self.units)

    def of(self, *names: tuple[int, int]) -> list[GpuUnit]:
        """Units by the index of their GPU and their number."""
        return [unit for name in names for unit in self.units if (unit.gpu.index, unit.replica) == name]


def test_a_container_gets_the_pipe_and_its_limits(node: MpsNode) -> None:
    offer = offered(node, QUARTERS)
    extras = offer.mps.extras(offer.of((1, 2)))
    assert extras.limits == {
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20480M",
    }
    assert extras.env == {
        "PLUGWRIGHT_GPU_UUID": SECOND,
        "PLUGWRIGHT_GPU_MEMORY": str(20 * 2**30),
        "PLUGWRIGHT_GPU_PERCENT": "25",
    }
    assert extras.mounts == (
        Mount(str(node.paths.pipe(SECOND, 1)), "/tmp/nvidia-mps"),
        Mount("/dev/shm/tenants", "/dev/shm"),
    )
    Allocation(env={**extras.env, **extras.limits}, mounts=extras.mounts)


def test_several_units_of_one_gpu_are_a_larger_share(node: MpsNode) -> None:
    offer = offered(node, msgspec.structs.replace(QUARTERS, most=3))
    extras = offer.mps.extras(offer.of((0, 1), (0, 3)))
    assert extras.limits["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert extras.limits["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=40960M"
    assert extras.mounts[0].host_path == str(node.paths.pipe(FIRST, 2))


def test_a_request_that_no_daemon_can_limit_is_refused(node: MpsNode) -> None:
    offer = offered(node, msgspec.structs.replace(QUARTERS, most=3))
    with pytest.raises(PluginError, match=f"must be of one GPU, got 2 of {FIRST} and 1 of {SECOND}: no GPU had 3 left"):
        offer.mps.extras(offer.of((0, 0), (0, 1), (1, 0)))
    with pytest.raises(PluginError, match="a container may request at most 3, got 4"):
        offer.mps.extras(offer.of((0, 0), (0, 1), (0, 2), (0, 3)))
    one = offered(node, QUARTERS)
    with pytest.raises(PluginError, match="a container may request at most 1, got 2"):
        one.mps.extras(one.of((0, 0), (0, 1)))


def test_in_exclusive_mode_the_environment_lowers_the_daemons_limits(node: MpsNode) -> None:
    offer = offered(node, msgspec.structs.replace(QUARTERS, most=3), ComputeModePolicy.EXCLUSIVE)
    extras = offer.mps.extras(offer.of((0, 0)))
    assert extras.mounts[0].host_path == str(node.paths.pipe(FIRST, 3))
    assert extras.limits["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert extras.limits["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=20480M"


@pytest.mark.parametrize(
    ("mode", "most", "text"),
    [
        (ComputeMode.DEFAULT, 1, "mps, not confined: the compute mode is Default"),
        (ComputeMode.UNKNOWN, 1, "mps, not confined: the compute mode is not known"),
        (ComputeMode.EXCLUSIVE_PROCESS, 2, "mps, not confined: every process may take as much as 2 shares"),
        (ComputeMode.EXCLUSIVE_PROCESS, 1, "mps, confined; "),
    ],
)
def test_status_says_confined_only_where_that_holds(node: MpsNode, mode: ComputeMode, most: int, text: str) -> None:
    offer = offered(
        node, msgspec.structs.replace(QUARTERS, most=most), ComputeModePolicy.EXCLUSIVE, (gpu(0, mode=mode),)
    )
    note = offer.mps.note(offer.units[0])
    assert note.startswith(text)
    assert "limits are for each process, and a tenant's GPU fault ends all" in note


def test_an_empty_shm_mounts_no_shared_memory(node: MpsNode) -> None:
    share = msgspec.structs.replace(QUARTERS, mps=NvidiaMps(root=str(node.paths.root), shm=""))
    mps = MpsSharing(RESOURCE, share)
    units = mps.units([sharing.whole_device(gpu(0))])
    assert [mount.container_path for mount in mps.extras(units[:1]).mounts] == ["/tmp/nvidia-mps"]


@asynccontextmanager
async def followed(mps: MpsSharing) -> AsyncIterator[Latest[int]]:
    """The number of changes that were reported."""
    changes = Latest(0)
    task = asyncio.create_task(mps.follow(lambda: changes.publish(changes.value + 1)))
    try:
        yield changes
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_health_follows_the_daemon_both_ways(node: MpsNode) -> None:
    offer = offered(node, QUARTERS)
    unit = offer.units[0]

    async def fault_is(changes: Latest[int], text: str) -> None:
        async with asyncio.timeout(60):
            await changes.until(lambda _: text in offer.mps.fault(unit) if text else not offer.mps.fault(unit))

    async with followed(offer.mps) as changes:
        await fault_is(changes, "no MPS daemon: `plugwright mps run` has not started one here")
        async with node.supervised(offer.plans) as supervisor:
            await fault_is(changes, "")
            node.fault(offer.plans[0], "refuse").touch()
            node.kill(offer.plans[0])
            await fault_is(changes, "MPS daemon down: the control daemon ended with")
            node.fault(offer.plans[0], "refuse").unlink()
            await fault_is(changes, "")
            await becomes(supervisor, Condition.READY)
        await fault_is(changes, "MPS daemon stopped")


async def test_a_probe_without_a_change_is_not_reported(node: MpsNode) -> None:
    offer = offered(node, QUARTERS)
    async with node.supervised(offer.plans) as supervisor, followed(offer.mps) as changes:
        async with asyncio.timeout(60):
            await changes.until(lambda _: not any(map(offer.mps.fault, offer.units)))
            before, beat = changes.value, supervisor.state.value.beat
            await supervisor.state.until(lambda current: current.beat > beat + 0.2)
        assert changes.value == before


async def test_an_outdated_state_makes_shares_unhealthy_until_it_is_renewed(node: MpsNode) -> None:
    offer = offered(node, QUARTERS)
    unit = offer.units[0]
    async with node.supervised(offer.plans) as supervisor:
        ready = await becomes(supervisor, Condition.READY)
    async with followed(offer.mps) as changes:
        async with asyncio.timeout(60):
            state.write(node.paths.state, replace(ready, lasting=0.5))
            await changes.until(lambda _: "no MPS supervisor has reported" in offer.mps.fault(unit))
            state.write(node.paths.state, replace(ready, lasting=1e6))
            await changes.until(lambda _: not offer.mps.fault(unit))


async def test_an_unreadable_state_makes_shares_unhealthy(node: MpsNode) -> None:
    node.paths.directory.mkdir(parents=True)
    node.paths.state.write_text("{")
    offer = offered(node, QUARTERS)
    assert f"cannot read {node.paths.state}" in offer.mps.fault(offer.units[0])
