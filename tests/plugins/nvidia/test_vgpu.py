"""vgpu shares with our own library: it stands in for the driver's, and the limits are a file of root's."""

import os
import threading
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.plugins.nvidia.driver_tree import install_driver
from tests.plugins.nvidia.mps.node import gpu

from plugwright.errors import ConfigError, PluginError
from plugwright.model import Mount
from plugwright.plugins.nvidia import config, sharing
from plugwright.plugins.nvidia.allocation import AllocationBuilder
from plugwright.plugins.nvidia.cdi import GpuSpecs
from plugwright.plugins.nvidia.config import (
    DeviceListStrategy,
    MigStrategy,
    NvidiaCdi,
    NvidiaConfig,
    NvidiaDriver,
    NvidiaShare,
    NvidiaVgpu,
    SharingStrategy,
    VgpuLibrary,
)
from plugwright.plugins.nvidia.driver import MigDevice
from plugwright.plugins.nvidia.driver_files import DriverFiles
from plugwright.plugins.nvidia.driver_libraries import ORIGINALS
from plugwright.plugins.nvidia.sharing import GpuUnit
from plugwright.plugins.nvidia.vgpu import VgpuSharing
from plugwright.plugins.nvidia.vgpu_files import TenantFiles
from plugwright.sdk.cdi.resolution import resolve

GIB = 2**30
QUARTERS = NvidiaShare(by=SharingStrategy.VGPU, replicas=4)
SONAMES = ("libcuda.so.1", "libnvidia-ml.so.1")
DIRECTORY = "/usr/local/plugwright/vgpu"


@pytest.fixture
def vgpu(tmp_path: Path) -> NvidiaVgpu:
    for soname in SONAMES:
        (tmp_path / "artefact").mkdir(exist_ok=True)
        (tmp_path / "artefact" / soname).write_text(f"limiter {soname}")
    return NvidiaVgpu(builtin=str(tmp_path / "artefact"), root=str(tmp_path / "vgpu"))


def shared(vgpu: NvidiaVgpu, share: NvidiaShare = QUARTERS) -> tuple[VgpuSharing, list[GpuUnit]]:
    backend = VgpuSharing("nvidia.com/vgpu", msgspec.structs.replace(share, vgpu=vgpu))
    return backend, backend.units([sharing.whole_device(gpu(index)) for index in range(2)])


def by_container_path(mounts: tuple[Mount, ...]) -> dict[str, Mount]:
    return {mount.container_path: mount for mount in mounts}


def test_the_limits_file_has_the_sum_of_the_units_of_each_gpu(vgpu: NvidiaVgpu) -> None:
    backend, units = shared(vgpu)
    extras = backend.extras([units[5], units[0], units[1]])
    limits = by_container_path(extras.mounts)[f"{DIRECTORY}/limits"]
    assert limits.read_only
    assert Path(limits.host_path).read_text() == f"{gpu(0).uuid} {40 * GIB}\n{gpu(1).uuid} {20 * GIB}\n"
    assert extras.limits == {
        "CUDA_DEVICE_MEMORY_LIMIT_0": "40960m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "20480m",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{DIRECTORY}/usage",
    }
    assert extras.env["PLUGWRIGHT_GPU_MEMORY"] == f"{40 * GIB},{20 * GIB}"


def test_each_container_has_an_empty_usage_file_that_every_user_may_write(vgpu: NvidiaVgpu) -> None:
    backend, units = shared(vgpu)
    usage = by_container_path(backend.extras(units[:1]).mounts)[f"{DIRECTORY}/usage"]
    assert not usage.read_only
    path = Path(usage.host_path)
    path.write_text("what an earlier container counted")
    with path.open() as earlier:  # else the next file may have its inode
        assert by_container_path(backend.extras(units[:1]).mounts)[f"{DIRECTORY}/usage"] == usage
        assert (path.stat().st_size, path.stat().st_mode & 0o777) == (0, 0o666)
        assert path.stat().st_ino != os.fstat(earlier.fileno()).st_ino
    assert Path(vgpu.root).stat().st_mode & 0o777 == 0o700


def test_a_container_that_may_be_running_keeps_its_count(vgpu: NvidiaVgpu) -> None:
    backend, units = shared(vgpu)
    given = backend.extras(units[:1])
    path = Path(by_container_path(given.mounts)[f"{DIRECTORY}/usage"].host_path)
    path.write_text("what it has counted")
    assert backend.restored(units[:1]) == given
    assert path.read_text() == "what it has counted"
    path.unlink()
    assert backend.restored(units[:1]) == given
    assert path.read_text() == ""


def test_an_upgrade_leaves_the_library_of_running_containers_alone(vgpu: NvidiaVgpu) -> None:
    backend, units = shared(vgpu)
    before = backend.extras(units[:1]).libraries
    assert backend.extras(units[:1]).libraries == before
    (Path(vgpu.builtin) / "libcuda.so.1").write_text("the next version")
    after = backend.extras(units[:1]).libraries
    assert Path(before["libcuda.so.1"]).read_text() == "limiter libcuda.so.1"
    assert Path(after["libcuda.so.1"]).read_text() == "the next version"
    assert after["libnvidia-ml.so.1"] == before["libnvidia-ml.so.1"]


@pytest.fixture
def driver(tmp_path: Path) -> NvidiaDriver:
    install_driver(tmp_path / "driver")
    return NvidiaDriver(root=str(tmp_path / "driver"), dev=str(tmp_path / "driver"), libraries=["/usr/lib64"])


@pytest.mark.parametrize("strategy", [DeviceListStrategy.DEVICE_NODES, DeviceListStrategy.CDI_CRI])
def test_a_container_loads_the_limiter_and_the_limiter_the_driver(
    vgpu: NvidiaVgpu, driver: NvidiaDriver, tmp_path: Path, strategy: DeviceListStrategy
) -> None:
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0"):
        (tmp_path / "driver/dev").mkdir(exist_ok=True)
        (tmp_path / "driver/dev" / name).touch()
    share = msgspec.structs.replace(QUARTERS, vgpu=vgpu)
    cdi = NvidiaCdi(dir=str(tmp_path / "cdi"), hooks="none")
    settings = NvidiaConfig(share=share, driver=driver, strategy=strategy, cdi=cdi)
    config.check(settings)
    files = DriverFiles(settings)
    specs = GpuSpecs(settings, files)
    first = replace(gpu(0), minor=0)
    backend = VgpuSharing("nvidia.com/vgpu", share)
    units = backend.units([sharing.whole_device(first)])[:1]
    extras = backend.extras(units)
    specs.write([first])
    allocation = AllocationBuilder(settings, files, specs).build(units, extras)
    mounts = {mount.container_path: mount.host_path for mount in allocation.mounts}
    for name in allocation.cdi:  # in the order of the runtime: the last mount at a path is the one
        device = resolve([tmp_path / "cdi"])[name]
        mounts |= {mount.container_path: mount.host_path for mount in device.edits.mounts}
    for soname in SONAMES:
        assert mounts[f"/usr/lib64/{soname}"] == extras.libraries[soname]
        assert mounts[f"{ORIGINALS}/{soname}"] == f"{driver.root}/usr/lib64/{soname}"
    assert mounts["/usr/lib64/libcuda.so"] == extras.libraries["libcuda.so.1"]


def test_a_share_without_the_artefact_is_unhealthy(vgpu: NvidiaVgpu) -> None:
    backend, units = shared(vgpu)
    assert backend.fault(units[0]) == ""
    (Path(vgpu.builtin) / "libnvidia-ml.so.1").unlink()
    assert "no libnvidia-ml.so.1 of the limiter" in backend.fault(units[0])
    with pytest.raises(PluginError, match="cannot prepare a vgpu share"):
        backend.extras(units[:1])


def test_mig_devices_can_be_shared_and_a_gpu_in_mig_mode_cannot(vgpu: NvidiaVgpu) -> None:
    backend, _ = shared(vgpu)
    partitioned = replace(gpu(0), mig_enabled=True)
    mig = MigDevice(
        uuid="MIG-00000000-1111-2222-3333-444444444444",
        index=0,
        memory=20 * GIB,
        profile="2g.20gb",
        gpu_instance=3,
        compute_instance=0,
    )
    [unit, *_] = backend.units([sharing.whole_device(partitioned, mig)])
    assert backend.fault(unit) == ""
    limits = by_container_path(backend.extras([unit]).mounts)[f"{DIRECTORY}/limits"]
    assert Path(limits.host_path).read_text() == f"{mig.uuid} {5 * GIB}\n"
    assert "MIG is enabled" in backend.fault(replace(unit, mig=None))


def test_status_says_that_processor_time_is_not_limited(vgpu: NvidiaVgpu) -> None:
    backend, units = shared(vgpu)
    text = backend.note(units[0])
    assert text.startswith("vgpu, not confined")
    assert "CUDA_DEVICE_SM_LIMIT is not enforced" in text


def test_a_share_below_one_mebibyte_is_unhealthy(vgpu: NvidiaVgpu) -> None:
    backend, units = shared(vgpu)
    assert "less than 1 MiB" in backend.fault(replace(units[0], memory=1))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (NvidiaConfig(strategy=DeviceListStrategy.ENVVAR), "set `strategy` to device-nodes"),
        (
            NvidiaConfig(strategy=[DeviceListStrategy.DEVICE_NODES, DeviceListStrategy.VOLUME_MOUNTS]),
            "set `strategy` to device-nodes",
        ),
        (NvidiaConfig(strategy=DeviceListStrategy.CDI_CRI, cdi=NvidiaCdi(write=False)), "set `strategy`"),
        (
            NvidiaConfig(share=msgspec.structs.replace(QUARTERS, vgpu=NvidiaVgpu(library="/libvgpu.so"))),
            "set `share.library: hami`",
        ),
        (
            NvidiaConfig(share=msgspec.structs.replace(QUARTERS, library=VgpuLibrary.HAMI), mig=MigStrategy.SINGLE),
            "needs whole GPUs",
        ),
    ],
)
def test_what_the_library_cannot_do_is_refused(settings: NvidiaConfig, problem: str) -> None:
    share = settings.share or QUARTERS
    with pytest.raises(ConfigError, match=problem):
        config.check(msgspec.structs.replace(settings, share=share))
    config.check(
        msgspec.structs.replace(
            settings, share=msgspec.structs.replace(share, by=SharingStrategy.TIME_SLICING, vgpu=None)
        )
    )


def test_a_directory_that_is_a_link_or_another_users_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=0o755)
    root = tmp_path / "root"
    root.symlink_to(other)
    with pytest.raises(OSError, match="Not a directory"):
        TenantFiles(root).writable_file("usage", "a", fresh=True)
    assert other.stat().st_mode & 0o777 == 0o755
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory to another user")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    with pytest.raises(PluginError, match="must belong to root, got user 65534"):
        TenantFiles(theirs).writable_directory("containers", "a", fresh=True)


def test_what_a_tenant_left_is_deleted_beside_the_allocation(tmp_path: Path) -> None:
    files = TenantFiles(tmp_path / "root")
    directory = files.writable_directory("containers", "a", fresh=True)
    (directory / "deep").mkdir()
    (directory / "deep" / "file").touch()
    (directory / "link").symlink_to(tmp_path)
    assert list(files.writable_directory("containers", "a", fresh=True).iterdir()) == []
    for thread in threading.enumerate():
        if thread.name == "vgpu files":
            thread.join()
    assert list((tmp_path / "root/deleted").iterdir()) == []
    assert tmp_path.exists()
