"""GPUs that claims share: one device for each, limits from what each claim was given, and files of its own."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.plugins.nvidia.harness import Lists, listing, machine

from plugwright.attributes import Capacity
from plugwright.errors import ConfigError, PluginError
from plugwright.model import Allocation, Device
from plugwright.plugins.nvidia.config import (
    NvidiaConfig,
    NvidiaMps,
    NvidiaPattern,
    NvidiaShare,
    NvidiaVgpu,
    SharingStrategy,
    VgpuLibrary,
)
from plugwright.plugins.nvidia.family import FAMILY
from plugwright.plugins.nvidia.monitor import GpuMonitor
from plugwright.plugins.nvidia.mps.plan import MpsPaths
from plugwright.plugins.nvidia.mps.sharing import MpsSharing
from plugwright.plugins.nvidia.plugin import ClaimedNvidia, Nvidia
from plugwright.plugins.nvidia.sharing import SharingBackend
from plugwright.plugins.nvidia.vgpu import VgpuSharing
from plugwright.sdk.device_family import FamilyContext, ResourceEntry
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.serve_settings import ServeMode, ServeSettings

GIB = 2**30
RESOURCE = "nvidia.com/gpu"
QUARTERS = NvidiaShare(replicas=4)
DIRECTORY = "/usr/local/plugwright/vgpu"
SHARES = ("0c5b3cf0-0000-0000-0000-000000000001", "0c5b3cf0-0000-0000-0000-000000000002")


@pytest.fixture
def vgpu(tmp_path: Path) -> NvidiaVgpu:
    (tmp_path / "artefact").mkdir()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libvgpu.so"):
        (tmp_path / "artefact" / name).write_text(name)
    return NvidiaVgpu(builtin=str(tmp_path / "artefact"), root=str(tmp_path / "vgpu"))


def plugin(config: NvidiaConfig, monitor: GpuMonitor | None = None, api: ServeMode = ServeMode.DRA) -> Nvidia:
    share = config.share
    backends = {SharingStrategy.MPS: MpsSharing, SharingStrategy.VGPU: VgpuSharing}
    backend: SharingBackend | None = backends[share.by](RESOURCE, share) if share and share.by in backends else None
    kind = ClaimedNvidia if api is ServeMode.DRA else Nvidia
    made = kind(RESOURCE, config, monitor or machine("hgx-h200"), backend)
    made.serve = ServeSettings(api=api)
    return made


@asynccontextmanager
async def offered(share: NvidiaShare) -> AsyncIterator[tuple[Nvidia, list[Device]]]:
    shared = plugin(NvidiaConfig(share=share))
    async with listing(shared) as lists:
        yield shared, list((await lists.first()).values())


def claimed(device: Device, capacity: Mapping[str, int], share_id: str = SHARES[0]) -> Device:
    """As the driver hands a device to allocate() for a claim: with what it consumes."""
    given = {**device.capacity, **{name: Capacity(amount) for name, amount in capacity.items()}}
    return device.replace(capacity=given, share_id=share_id)


def mounted(allocation: Allocation) -> dict[str, Path]:
    return {mount.container_path: Path(mount.host_path) for mount in allocation.mounts}


@pytest.mark.parametrize("by", SharingStrategy)
async def test_each_gpu_is_one_device_that_claims_share(by: SharingStrategy) -> None:
    async with offered(NvidiaShare(by=by, replicas=4)) as (_, devices):
        assert len(devices) == 8
        assert all(device.allow_multiple and device.capacity["memory"].default is not None for device in devices)
        assert {device.attributes["sharing"] for device in devices} == {by.value}
        assert {device.sharing for device in devices} == {f"nvidia.com/gpu {by} by claims"}


async def test_whole_and_shared_gpus_stand_side_by_side() -> None:
    monitor = machine("hgx-h200")
    whole = plugin(NvidiaConfig(exclude=NvidiaPattern(index=[6, 7])), monitor)
    shares = NvidiaConfig(select=NvidiaPattern(index=[6, 7]), share=NvidiaShare(replicas=4))
    shared = Nvidia("nvidia.com/gpu-shared", shares, monitor)
    shared.serve = ServeSettings(api=ServeMode.DRA)

    async def first(lists: Lists) -> list[Device]:
        return list((await lists.first()).values())

    async with listing(whole) as one, listing(shared) as other:
        alone, together = await first(one), await first(other)
    assert [device.allow_multiple for device in (*alone, *together)] == [False] * 6 + [True] * 2
    assert not any(device.reason for device in (*alone, *together))
    assert not {device.id for device in alone} & {device.id for device in together}


async def test_the_vgpu_library_holds_a_claim_to_the_memory_it_was_given(vgpu: NvidiaVgpu) -> None:
    async with offered(NvidiaShare(by=SharingStrategy.VGPU, replicas=4, vgpu=vgpu)) as (shared, devices):
        allocation = await shared.allocate([claimed(devices[0], {"memory": 60 * GIB})])
    assert mounted(allocation)[f"{DIRECTORY}/limits"].read_text() == f"{devices[0].id} {60 * GIB}\n"
    assert allocation.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "61440m"
    assert allocation.env["PLUGWRIGHT_GPU_MEMORY"] == str(60 * GIB)


async def test_claims_of_one_size_on_one_gpu_are_counted_apart(vgpu: NvidiaVgpu) -> None:
    async with offered(NvidiaShare(by=SharingStrategy.VGPU, replicas=2, vgpu=vgpu)) as (shared, devices):
        usage = [
            mounted(await shared.allocate([claimed(devices[0], {"memory": 60 * GIB}, share)]))[f"{DIRECTORY}/usage"]
            for share in SHARES
        ]
    assert usage[0] != usage[1]


async def test_a_claim_that_is_prepared_again_keeps_its_count(vgpu: NvidiaVgpu) -> None:
    async with offered(NvidiaShare(by=SharingStrategy.VGPU, replicas=2, vgpu=vgpu)) as (shared, devices):
        given = claimed(devices[0], {"memory": 60 * GIB})
        first = await shared.allocate([given])
        usage = mounted(first)[f"{DIRECTORY}/usage"]
        usage.write_text("what it has counted")
        assert await shared.allocate([given]) == first
        assert usage.read_text() == "what it has counted"


@pytest.mark.parametrize("library", VgpuLibrary)
async def test_a_released_claim_leaves_no_files(vgpu: NvidiaVgpu, library: VgpuLibrary) -> None:
    settings = NvidiaVgpu(builtin=vgpu.builtin, root=vgpu.root, library=f"{vgpu.builtin}/libvgpu.so")
    share = NvidiaShare(by=SharingStrategy.VGPU, replicas=2, vgpu=settings, library=library)

    def files() -> list[Path]:
        folders = [Path(vgpu.root, name) for name in ("limits", "usage", "containers")]
        return [path for folder in folders if folder.exists() for path in folder.iterdir()]

    async with offered(share) as (shared, devices):
        kept, gone = (claimed(devices[0], {"memory": 60 * GIB}, share) for share in SHARES)
        await shared.allocate([kept])
        before = files()
        await shared.allocate([gone])
        assert len(files()) > len(before)
        assert isinstance(shared, ClaimedNvidia)
        await shared.release([gone])
        await shared.release([gone])
        assert files() == before


@pytest.mark.parametrize(
    ("share", "api", "looked_for"),
    [(None, ServeMode.DRA, False), (QUARTERS, ServeMode.DEVICE_PLUGIN, False), (QUARTERS, ServeMode.DRA, True)],
)
def test_the_end_of_a_claim_is_looked_for_only_where_it_leaves_files(
    share: NvidiaShare | None, api: ServeMode, looked_for: bool
) -> None:
    settings = NvidiaConfig(share=share, simulate="h200")
    entry = ResourceEntry(RESOURCE, "nvidia", FAMILY, settings, serve=ServeSettings(api=api))
    assert (type(FAMILY.plugin(entry, FamilyContext())).release is not Plugin.release) is looked_for


async def test_hamis_library_holds_a_claim_to_its_percentage(vgpu: NvidiaVgpu) -> None:
    settings = NvidiaVgpu(root=vgpu.root, library=f"{vgpu.builtin}/libvgpu.so")
    share = NvidiaShare(by=SharingStrategy.VGPU, replicas=4, library=VgpuLibrary.HAMI, vgpu=settings)
    async with offered(share) as (shared, devices):
        allocation = await shared.allocate([claimed(devices[3], {"memory": 20 * GIB, "percent": 40})])
    assert allocation.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "20480m"
    assert allocation.env["CUDA_DEVICE_SM_LIMIT_0"] == "40"


def mps(root: Path, share: NvidiaShare) -> NvidiaShare:
    settings = NvidiaMps(root=str(root / "mps"))
    return NvidiaShare(by=SharingStrategy.MPS, memory=share.memory, percent=share.percent, most=3, mps=settings)


@pytest.mark.parametrize(
    ("memory", "percent", "size"), [(20, 14, 1), (40, 14, 2), (60, 14, 3), (20, 28, 2), (60, 42, 3)]
)
async def test_the_mps_daemon_of_its_size_holds_a_claim(root: Path, memory: int, percent: int, size: int) -> None:
    share = mps(root, NvidiaShare(memory=20 * GIB, percent=14))
    async with offered(share) as (shared, devices):
        allocation = await shared.allocate([claimed(devices[1], {"memory": memory * GIB, "percent": percent})])
    paths = MpsPaths(root / "mps", RESOURCE)
    assert mounted(allocation)["/tmp/nvidia-mps"] == paths.pipe(devices[1].id, size)
    assert allocation.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={memory * 1024}M"
    assert allocation.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == str(percent)
    assert allocation.env["PLUGWRIGHT_GPU_MEMORY"] == str(memory * GIB)


async def test_a_claim_whose_part_is_not_said_has_one_share(root: Path, vgpu: NvidiaVgpu) -> None:
    async with offered(mps(root, NvidiaShare(memory=20 * GIB, percent=14))) as (shared, devices):
        allocation = await shared.allocate([claimed(devices[0], {"memory": 40 * GIB})])
    assert allocation.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "14"
    async with offered(NvidiaShare(by=SharingStrategy.VGPU, memory=20 * GIB, vgpu=vgpu)) as (shared, devices):
        allocation = await shared.allocate([claimed(devices[0], {})])
    assert allocation.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "20480m"


async def test_a_claim_that_no_mps_daemon_can_hold_is_refused(root: Path) -> None:
    async with offered(mps(root, NvidiaShare(memory=20 * GIB, percent=14))) as (shared, devices):
        with pytest.raises(PluginError, match="no MPS daemon is planned for claims with 81920 MiB and 56 %"):
            await shared.allocate([claimed(devices[0], {"memory": 80 * GIB, "percent": 56})])
        two = [claimed(device, {"memory": 20 * GIB, "percent": 14}) for device in devices[:2]]
        with pytest.raises(PluginError, match="the shares of a container must be of one GPU"):
            await shared.allocate(two)


async def test_a_time_sliced_claim_is_told_its_gpu_and_no_limits() -> None:
    async with offered(NvidiaShare(replicas=4)) as (shared, devices):
        allocation = await shared.allocate([claimed(devices[0], {"memory": 0, "slots": 1})])
    assert allocation.env["PLUGWRIGHT_GPU_UUID"] == devices[0].id
    assert "PLUGWRIGHT_GPU_MEMORY" not in allocation.env


@pytest.mark.parametrize("by", SharingStrategy)
async def test_admin_access_has_the_whole_gpus_without_limits(root: Path, by: SharingStrategy) -> None:
    async with offered(NvidiaShare(by=by, replicas=4)) as (shared, devices):
        allocation = await shared.allocate(devices)  # their capacity is what they have: nothing was given
    assert allocation.env["PLUGWRIGHT_GPU_UUID"].count(",") == 7
    assert not [name for name in allocation.env if "LIMIT" in name or "MPS" in name]
    assert "/tmp/nvidia-mps" not in mounted(allocation)


def test_shares_are_not_offered_through_both_apis() -> None:
    with pytest.raises(ConfigError, match="share needs one API"):
        plugin(NvidiaConfig(share=NvidiaShare(replicas=2)), api=ServeMode.BOTH)
    assert plugin(NvidiaConfig(), api=ServeMode.BOTH).serve.api is ServeMode.BOTH
    settings = NvidiaConfig(share=QUARTERS, simulate="h200")
    entry = ResourceEntry(RESOURCE, "nvidia", FAMILY, settings, serve=ServeSettings(api=ServeMode.BOTH))
    with pytest.raises(ConfigError, match="share needs one API"):  # also by `plugwright run --check`
        FAMILY.plugin(entry, FamilyContext())
