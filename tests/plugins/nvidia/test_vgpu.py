"""A vgpu share says its size in its id, and its limits reach the container in env and in a file it cannot change."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plugins.nvidia.mps.node import gpu

from plugwright.errors import ConfigError, PluginError
from plugwright.model import Allocation, Device, Mount
from plugwright.plugins.nvidia import sharing
from plugwright.plugins.nvidia.sharing import By, Share, Unit
from plugwright.plugins.nvidia.vgpu import Cores, Size, Vgpu, VgpuOptions, decode, encode

GIB = 2**30
QUARTERS = Share(by=By.VGPU, replicas=4)
FIRST = gpu(0).uuid


@pytest.fixture
def options(tmp_path: Path) -> VgpuOptions:
    library = tmp_path / "libvgpu.so.v1"
    library.touch()
    link = tmp_path / "libvgpu.so"
    link.symlink_to(library)
    return VgpuOptions(library=link, root=tmp_path / "vgpu", locks=tmp_path / "locks")


def offered(options: VgpuOptions, share: Share = QUARTERS, count: int = 2) -> tuple[Vgpu, list[Unit]]:
    vgpu = Vgpu("nvidia.com/vgpu", share, options)
    return vgpu, vgpu.units([sharing.whole(gpu(index)) for index in range(count)])


def mounted(mounts: tuple[Mount, ...]) -> dict[str, Mount]:
    return {mount.container_path: mount for mount in mounts}


@given(
    size=st.builds(
        Size,
        device=st.sampled_from([FIRST, "MIG-00000000-0000-0000-0000-000000000000"]),
        mebibytes=st.integers(0, 9_999_999),
        percent=st.integers(0, 100),
        number=st.integers(0, 9999),
    )
)
def test_a_size_is_read_from_the_id_that_says_it(size: Size) -> None:
    assert decode(encode(size)) == size
    assert Device(encode(size)).id == encode(size)


@pytest.mark.parametrize("other", ["GPU-1", "GPU-1::3", "GPU-1::m-c-", "GPU-1::1m-2c-x"])
def test_an_id_without_a_size_is_no_share(other: str) -> None:
    with pytest.raises(PluginError, match="has no size"):
        decode(other)


def test_units_are_called_by_their_size(options: VgpuOptions) -> None:
    _, units = offered(options)
    assert [unit.id for unit in units[:2]] == [f"{FIRST}::20480m-25c-0", f"{FIRST}::20480m-25c-1"]
    assert len({unit.id for unit in units}) == 8


def test_a_container_gets_the_sum_of_its_units(options: VgpuOptions) -> None:
    vgpu, units = offered(options)
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


def test_files_are_laid_out_as_hami_has_them(options: VgpuOptions) -> None:
    vgpu, units = offered(options)
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


def test_the_file_says_what_the_environment_says(options: VgpuOptions) -> None:
    vgpu, units = offered(options)
    extras = vgpu.extras(units[:2])
    lines = Path(mounted(extras.mounts)["/overrideEnv"].host_path).read_text().splitlines()
    assert dict(line.split("=", 1) for line in lines) == extras.limits


def test_a_library_that_is_replaced_does_not_change_under_a_program(options: VgpuOptions) -> None:
    vgpu, units = offered(options)
    mount = mounted(vgpu.extras(units[:1]).mounts)["/usr/local/vgpu/libvgpu.so"]
    assert mount.host_path == str(options.library.parent / "libvgpu.so.v1")


def test_the_same_units_have_the_same_files_without_what_was_counted_before(options: VgpuOptions) -> None:
    vgpu, units = offered(options)
    first = vgpu.extras(units[:2])
    counted = Path(mounted(first.mounts)["/usr/local/vgpu"].host_path) / "old.cache"
    counted.touch()
    limits = Path(mounted(first.mounts)["/overrideEnv"].host_path)
    inode = limits.stat().st_ino
    assert vgpu.extras(units[1::-1]) == first
    assert not counted.exists()
    assert limits.stat().st_ino == inode
    assert mounted(vgpu.extras(units[2:3]).mounts)["/overrideEnv"] != mounted(first.mounts)["/overrideEnv"]


def test_without_its_library_a_share_is_unhealthy(options: VgpuOptions) -> None:
    vgpu, units = offered(options)
    assert vgpu.fault(units[0]) == ""
    options.library.unlink()
    assert "containers would have no limits" in vgpu.fault(units[0])
    with pytest.raises(PluginError, match="cannot prepare a vgpu share"):
        vgpu.extras(units[:1])


def test_a_size_that_the_library_takes_for_no_limit_is_unhealthy(options: VgpuOptions) -> None:
    vgpu, units = offered(options, Share(by=By.VGPU, replicas=101, memory=GIB), count=1)
    assert "0 means all" in vgpu.fault(units[0])
    partitioned = replace(units[0], gpu=replace(gpu(0), mig_enabled=True))
    assert "MIG is enabled" in vgpu.fault(partitioned)


def test_memory_promised_twice_is_said_to_libraries_that_ask(options: VgpuOptions) -> None:
    vgpu, units = offered(options, Share(by=By.VGPU, replicas=2, memory=60 * GIB), count=1)
    assert vgpu.extras(units[:1]).limits["CUDA_OVERSUBSCRIBE"] == "true"


def test_settings_of_the_library_are_passed_on(options: VgpuOptions) -> None:
    vgpu, units = offered(replace(options, cores=Cores.FORCE, log_level=3))
    limits = vgpu.extras(units[:1]).limits
    assert (limits["GPU_CORE_UTILIZATION_POLICY"], limits["LIBCUDA_LOG_LEVEL"]) == ("force", "3")


def test_it_is_said_that_nobody_is_confined(options: VgpuOptions) -> None:
    vgpu, units = offered(options)
    facts = vgpu.attributes(units[0])
    assert facts["memory"] == 20 * GIB
    assert str(facts["sharing"]).startswith("vgpu, not confined")


def test_more_than_the_operator_allows_is_refused(options: VgpuOptions) -> None:
    vgpu, units = offered(options, replace(QUARTERS, most=2))
    with pytest.raises(PluginError, match="a container may ask for 2, not for 3"):
        vgpu.extras(units[:3])


def test_paths_are_absolute() -> None:
    with pytest.raises(ConfigError, match="absolute"):
        VgpuOptions(root=Path("vgpu"))


def test_a_link_is_not_followed_to_what_it_would_open_to_everybody(options: VgpuOptions, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=0o755)
    options.locks.symlink_to(other)
    vgpu, units = offered(options)
    with pytest.raises(PluginError, match="cannot prepare a vgpu share"):
        vgpu.extras(units[:1])
    assert other.stat().st_mode & 0o777 == 0o755
