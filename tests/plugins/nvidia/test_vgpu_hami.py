"""vgpu shares with HAMi's library: containers get the limits as variables and in a read-only file, in HAMi's layout."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.plugins.nvidia.mps.node import gpu

from plugwright.errors import ConfigError, PluginError
from plugwright.model import Allocation, Mount
from plugwright.plugins.nvidia import config, sharing
from plugwright.plugins.nvidia.config import (
    CoreUtilizationPolicy,
    NvidiaConfig,
    NvidiaShare,
    NvidiaVgpu,
    SharingStrategy,
    VgpuLibrary,
)
from plugwright.plugins.nvidia.sharing import GpuUnit
from plugwright.plugins.nvidia.vgpu import VgpuSharing

GIB = 2**30
QUARTERS = NvidiaShare(by=SharingStrategy.VGPU, library=VgpuLibrary.HAMI, replicas=4)
FIRST = gpu(0).uuid


@pytest.fixture
def settings(tmp_path: Path) -> NvidiaVgpu:
    library = tmp_path / "libvgpu.so.v1"
    library.touch()
    link = tmp_path / "libvgpu.so"
    link.symlink_to(library)
    return NvidiaVgpu(library=str(link), root=str(tmp_path / "vgpu"), locks=str(tmp_path / "locks"))


def offered(settings: NvidiaVgpu, share: NvidiaShare = QUARTERS, count: int = 2) -> tuple[VgpuSharing, list[GpuUnit]]:
    vgpu = VgpuSharing("nvidia.com/vgpu", msgspec.structs.replace(share, vgpu=settings))
    return vgpu, vgpu.units([sharing.whole_device(gpu(index)) for index in range(count)])


def mounted(mounts: tuple[Mount, ...]) -> dict[str, Mount]:
    return {mount.container_path: mount for mount in mounts}


def test_unit_ids_have_their_size(settings: NvidiaVgpu) -> None:
    _, units = offered(settings)
    assert [unit.id for unit in units[:2]] == [f"{FIRST}::20480m-25c-0", f"{FIRST}::20480m-25c-1"]
    assert len({unit.id for unit in units}) == 8


def test_a_container_gets_the_sum_of_its_units(settings: NvidiaVgpu) -> None:
    vgpu, units = offered(settings)
    extras = vgpu.extras([units[5], units[0], units[1]])
    cache = extras.limits["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
    assert extras.limits == {
        "CUDA_DEVICE_MEMORY_LIMIT_0": "40960m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "20480m",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": cache,
        "CUDA_DEVICE_SM_LIMIT": "25",
        "CUDA_DEVICE_SM_LIMIT_0": "50",
        "CUDA_DEVICE_SM_LIMIT_1": "25",
    }
    assert cache.startswith("/usr/local/vgpu/")
    assert extras.env["PLUGWRIGHT_GPU_MEMORY"] == f"{40 * GIB},{20 * GIB}"
    Allocation(env={**extras.env, **extras.limits}, mounts=extras.mounts)


def test_mounts_have_hamis_layout(settings: NvidiaVgpu) -> None:
    vgpu, units = offered(settings)
    extras = vgpu.extras(units[:1])
    mounts = mounted(extras.mounts)
    assert {path: mount.read_only for path, mount in mounts.items()} == {
        "/usr/local/vgpu/libvgpu.so": True,
        "/usr/local/vgpu": False,
        "/tmp/vgpulock": False,
        "/overrideEnv": True,
        "/etc/ld.so.preload": True,
    }
    assert Path(mounts["/etc/ld.so.preload"].host_path).read_text() == "/usr/local/vgpu/libvgpu.so\n"
    assert Path(mounts["/usr/local/vgpu"].host_path).stat().st_mode & 0o777 == 0o777
    assert Path(mounts["/tmp/vgpulock"].host_path).stat().st_mode & 0o7777 == 0o1777


def test_the_override_file_has_the_limits_of_the_environment(settings: NvidiaVgpu) -> None:
    vgpu, units = offered(settings)
    extras = vgpu.extras(units[:2])
    lines = Path(mounted(extras.mounts)["/overrideEnv"].host_path).read_text().splitlines()
    assert dict(line.split("=", 1) for line in lines) == extras.limits


def test_the_mounted_library_is_the_file_behind_the_link(settings: NvidiaVgpu) -> None:
    vgpu, units = offered(settings)
    mount = mounted(vgpu.extras(units[:1]).mounts)["/usr/local/vgpu/libvgpu.so"]
    assert mount.host_path == f"{settings.library}.v1"


def test_the_same_units_have_the_same_files_with_an_empty_cache(settings: NvidiaVgpu) -> None:
    vgpu, units = offered(settings)
    first = vgpu.extras(units[:2])
    counted = Path(mounted(first.mounts)["/usr/local/vgpu"].host_path) / "old.cache"
    counted.touch()
    limits = Path(mounted(first.mounts)["/overrideEnv"].host_path)
    inode = limits.stat().st_ino
    assert vgpu.extras(units[1::-1]) == first
    assert not counted.exists()
    assert limits.stat().st_ino == inode
    assert mounted(vgpu.extras(units[2:3]).mounts)["/overrideEnv"] != mounted(first.mounts)["/overrideEnv"]


def test_a_share_without_the_library_is_unhealthy(settings: NvidiaVgpu) -> None:
    vgpu, units = offered(settings)
    assert vgpu.fault(units[0]) == ""
    Path(settings.library).unlink()
    assert "containers would have no limits" in vgpu.fault(units[0])
    with pytest.raises(PluginError, match="cannot prepare a vgpu share"):
        vgpu.extras(units[:1])


def test_a_size_that_means_no_limit_to_the_library_is_unhealthy(settings: NvidiaVgpu) -> None:
    vgpu, units = offered(
        settings, NvidiaShare(by=SharingStrategy.VGPU, library=VgpuLibrary.HAMI, replicas=101, memory=GIB), count=1
    )
    assert "0 means all" in vgpu.fault(units[0])
    partitioned = replace(units[0], gpu=replace(gpu(0), mig_enabled=True))
    assert "MIG is enabled" in vgpu.fault(partitioned)


def test_oversubscribed_memory_sets_the_librarys_variable(settings: NvidiaVgpu) -> None:
    vgpu, units = offered(
        settings, NvidiaShare(by=SharingStrategy.VGPU, library=VgpuLibrary.HAMI, replicas=2, memory=60 * GIB), count=1
    )
    assert vgpu.extras(units[:1]).limits["CUDA_OVERSUBSCRIBE"] == "true"


def test_settings_of_the_library_become_variables(settings: NvidiaVgpu) -> None:
    vgpu, units = offered(msgspec.structs.replace(settings, cores=CoreUtilizationPolicy.FORCE, log=3))
    limits = vgpu.extras(units[:1]).limits
    assert (limits["GPU_CORE_UTILIZATION_POLICY"], limits["LIBCUDA_LOG_LEVEL"]) == ("force", "3")


def test_status_says_that_tenants_are_not_confined(settings: NvidiaVgpu) -> None:
    vgpu, units = offered(settings)
    assert vgpu.note(units[0]).startswith("vgpu, not confined")


def test_a_request_above_most_is_refused(settings: NvidiaVgpu) -> None:
    vgpu, units = offered(settings, msgspec.structs.replace(QUARTERS, most=2))
    with pytest.raises(PluginError, match="a container may request at most 2, got 3"):
        vgpu.extras(units[:3])


def test_relative_paths_are_refused() -> None:
    with pytest.raises(ConfigError, match="absolute"):
        config.check(NvidiaConfig(share=msgspec.structs.replace(QUARTERS, vgpu=NvidiaVgpu(root="vgpu"))))


def test_a_linked_lock_directory_is_refused(settings: NvidiaVgpu, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=0o755)
    Path(settings.locks).symlink_to(other)
    vgpu, units = offered(settings)
    with pytest.raises(PluginError, match="cannot prepare a vgpu share"):
        vgpu.extras(units[:1])
    assert other.stat().st_mode & 0o777 == 0o755
