"""A tenant is a client of the daemon of its size; its share is as healthy as that daemon."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.plugins.nvidia.mps.node import RESOURCE, MpsNode, becomes, gpu

from plugwright.errors import PluginError
from plugwright.model import Allocation, Mount
from plugwright.plugins.nvidia import sharing
from plugwright.plugins.nvidia.driver import ComputeMode, Gpu
from plugwright.plugins.nvidia.mps import state
from plugwright.plugins.nvidia.mps.plan import Mode, MpsOptions, daemons
from plugwright.plugins.nvidia.mps.sharing import Mps
from plugwright.plugins.nvidia.mps.state import Condition
from plugwright.plugins.nvidia.sharing import By, Share, Unit
from plugwright.system.concurrency import Latest

QUARTERS = Share(by=By.MPS, replicas=4)
FIRST, SECOND = gpu(0).uuid, gpu(1).uuid


@pytest.fixture
def node(root: Path) -> MpsNode:
    return MpsNode(root)


def offered(node: MpsNode, share: Share, mode: Mode = Mode.LEAVE, gpus: tuple[Gpu, ...] = (gpu(0), gpu(1))) -> "Offer":
    options = MpsOptions(root=node.place.root, shm=Path("/dev/shm/tenants"), mode=mode)
    return Offer(Mps(RESOURCE, share, options), options, share, gpus)


class Offer:
    """What the plugin would offer of these GPUs."""

    def __init__(self, mps: Mps, options: MpsOptions, share: Share, gpus: tuple[Gpu, ...]) -> None:
        self.mps = mps
        self.units = mps.units([sharing.whole(each) for each in gpus])
        self.plans = daemons(share, options, self.units)

    def of(self, *places: tuple[int, int]) -> list[Unit]:
        """Units by the index of their GPU and their number."""
        return [unit for place in places for unit in self.units if (unit.gpu.index, unit.replica) == place]


def test_a_tenant_gets_the_pipe_and_sees_its_limits(node: MpsNode) -> None:
    offer = offered(node, QUARTERS)
    extras = offer.mps.extras(offer.of((1, 2)))
    assert extras.limits == {
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",
        "CUDA_VISIBLE_DEVICES": SECOND,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20480M",
    }
    assert extras.env == {"PLUGWRIGHT_GPU_MEMORY": str(20 * 2**30), "PLUGWRIGHT_GPU_PERCENT": "25"}
    assert extras.mounts == (Mount(str(node.place.pipe(1)), "/tmp/nvidia-mps"), Mount("/dev/shm/tenants", "/dev/shm"))
    Allocation(env={**extras.env, **extras.limits}, mounts=extras.mounts)


def test_several_units_of_one_gpu_are_a_larger_share(node: MpsNode) -> None:
    offer = offered(node, replace(QUARTERS, most=3))
    extras = offer.mps.extras(offer.of((0, 1), (0, 3)))
    assert extras.limits["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert extras.limits["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=40960M"
    assert extras.mounts[0].host_path == str(node.place.pipe(2))


def test_as_much_of_each_of_several_gpus_is_one_size(node: MpsNode) -> None:
    offer = offered(node, replace(QUARTERS, most=4))
    extras = offer.mps.extras(offer.of((0, 1), (1, 3), (0, 0), (1, 2)))
    assert extras.limits["CUDA_VISIBLE_DEVICES"] == f"{FIRST},{SECOND}"
    assert extras.limits["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=40960M,1=40960M"
    assert extras.mounts[0].host_path == str(node.place.pipe(2))


def test_what_no_daemon_could_limit_is_refused(node: MpsNode) -> None:
    offer = offered(node, replace(QUARTERS, most=3))
    with pytest.raises(PluginError, match=f"not 2 of {FIRST} and 1 of {SECOND}"):
        offer.mps.extras(offer.of((0, 0), (0, 1), (1, 0)))
    with pytest.raises(PluginError, match="a container may ask for 3, not for 4"):
        offer.mps.extras(offer.of((0, 0), (0, 1), (0, 2), (0, 3)))
    one = offered(node, QUARTERS)
    with pytest.raises(PluginError, match="a container may ask for 1, not for 2"):
        one.mps.extras(one.of((0, 0), (0, 1)))


def test_in_exclusive_mode_the_environment_tightens_what_one_daemon_allows(node: MpsNode) -> None:
    offer = offered(node, replace(QUARTERS, most=3), Mode.EXCLUSIVE)
    extras = offer.mps.extras(offer.of((0, 0)))
    assert extras.mounts[0].host_path == str(node.place.pipe(3))
    assert extras.limits["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert extras.limits["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=20480M"


@pytest.mark.parametrize(
    ("mode", "most", "said"),
    [
        (ComputeMode.DEFAULT, 1, "mps, not confined: the compute mode is Default"),
        (ComputeMode.UNKNOWN, 1, "mps, not confined: the compute mode is not known"),
        (ComputeMode.EXCLUSIVE_PROCESS, 2, "mps, not confined: every process may take as much as 2 shares"),
        (ComputeMode.EXCLUSIVE_PROCESS, 1, "mps, confined; "),
    ],
)
def test_confinement_is_claimed_only_where_it_holds(node: MpsNode, mode: ComputeMode, most: int, said: str) -> None:
    offer = offered(node, replace(QUARTERS, most=most), Mode.EXCLUSIVE, (gpu(0, mode=mode),))
    facts = offer.mps.attributes(offer.units[0])
    assert str(facts["sharing"]).startswith(said)
    assert "limits are for each process, and a tenant's GPU fault ends all" in str(facts["sharing"])
    assert (facts["memory"], facts["percent"]) == (20 * 2**30, 25)


def test_the_shm_of_tenants_may_be_left_alone(node: MpsNode) -> None:
    mps = Mps(RESOURCE, QUARTERS, MpsOptions(root=node.place.root, shm=None))
    units = mps.units([sharing.whole(gpu(0))])
    assert [mount.container_path for mount in mps.extras(units[:1]).mounts] == ["/tmp/nvidia-mps"]


@asynccontextmanager
async def followed(mps: Mps) -> AsyncIterator[Latest[int]]:
    """Counts how often the plugin is told to look again."""
    told = Latest(0)
    task = asyncio.create_task(mps.follow(lambda: told.publish(told.value + 1)))
    try:
        yield told
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_health_follows_the_daemon_both_ways(node: MpsNode) -> None:
    offer = offered(node, QUARTERS)
    unit = offer.units[0]

    async def says(told: Latest[int], what: str) -> None:
        async with asyncio.timeout(30):
            await told.until(lambda _: what in offer.mps.fault(unit) if what else not offer.mps.fault(unit))

    async with followed(offer.mps) as told:
        await says(told, "no MPS daemon: `plugwright mps run` has not started one here")
        async with node.supervised(offer.plans) as supervisor:
            await says(told, "")
            node.fault(1, "refuse").touch()
            node.kill(1)
            await says(told, "MPS daemon down: the control daemon ended with")
            node.fault(1, "refuse").unlink()
            await says(told, "")
            await becomes(supervisor, Condition.READY)
        await says(told, "MPS daemon stopped")


async def test_a_probe_that_finds_nothing_new_disturbs_nobody(node: MpsNode) -> None:
    offer = offered(node, QUARTERS)
    async with node.supervised(offer.plans) as supervisor, followed(offer.mps) as told:
        async with asyncio.timeout(30):
            await told.until(lambda _: not offer.mps.fault(offer.units[0]))
            before, beat = told.value, supervisor.state.value.beat
            await supervisor.state.until(lambda each: each.beat > beat + 0.2)
        assert told.value == before


async def test_a_state_that_nobody_renews_is_not_believed_until_somebody_does(node: MpsNode) -> None:
    offer = offered(node, QUARTERS)
    unit = offer.units[0]
    async with node.supervised(offer.plans) as supervisor:
        ready = await becomes(supervisor, Condition.READY)
    async with followed(offer.mps) as told:
        async with asyncio.timeout(30):
            state.write(node.place.state, replace(ready, lasting=0.5))
            await told.until(lambda _: "nobody has looked after the MPS daemon" in offer.mps.fault(unit))
            state.write(node.place.state, replace(ready, lasting=1e6))
            await told.until(lambda _: not offer.mps.fault(unit))


async def test_a_state_that_cannot_be_read_is_a_reason(node: MpsNode) -> None:
    node.place.directory.mkdir(parents=True)
    node.place.state.write_text("{")
    offer = offered(node, QUARTERS)
    assert "state.json cannot be read" in offer.mps.fault(offer.units[0])
