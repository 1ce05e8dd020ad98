"""The driver's files as mounts: all of this driver's and no other's, by names that outlive an update."""

from pathlib import Path

import pytest
from tests.plugins.nvidia.driver_tree import VERSION, install_driver

from plugwright import Mount, PluginError
from plugwright.plugins.nvidia.config import NvidiaDriver
from plugwright.plugins.nvidia.driver_libraries import ORIGINALS, DriverLibraries

INSIDE = "/usr/local/nvidia/lib64"


def libraries_of(root: Path, host: str = "", directories: tuple[str, ...] = (INSIDE,)) -> DriverLibraries:
    return DriverLibraries(NvidiaDriver(root=str(root), host=host, libraries=list(directories)))


def sources(libraries: DriverLibraries, linked: bool = False) -> dict[str, str]:
    return {mount.container_path: mount.host_path for mount in libraries.mounts(linked)}


def test_all_libraries_of_the_driver_are_mounted_and_no_others(tmp_path: Path) -> None:
    install_driver(tmp_path)
    names = {path.removeprefix(f"{INSIDE}/") for path in sources(libraries_of(tmp_path)) if path.startswith(INSIDE)}
    assert names == {
        "libEGL_nvidia.so.0",
        "libGLX_indirect.so.0",
        "libGLX_nvidia.so.0",
        "libcuda.so",
        "libcuda.so.1",
        "libnvidia-allocator.so.1",
        f"libnvidia-glcore.so.{VERSION}",
        f"libnvidia-gpucomp.so.{VERSION}",
        "libnvidia-ml.so",
        "libnvidia-ml.so.1",
        "libnvidia-nvvm.so.4",
        "libnvidia-ptxjitcompiler.so.1",
        f"libnvidia-rtcore.so.{VERSION}",
        "libnvoptix.so.1",
        "gbm/nvidia-drm_gbm.so",
        "vdpau/libvdpau_nvidia.so.1",
    }


def test_programs_and_settings_are_mounted_where_containers_look_for_them(tmp_path: Path) -> None:
    install_driver(tmp_path)
    found = sources(libraries_of(tmp_path, host="/driver"))
    assert {path: source for path, source in found.items() if not path.startswith(INSIDE)} == {
        "/usr/bin/nvidia-smi": "/driver/usr/bin/nvidia-smi",
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json": "/driver/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "/etc/vulkan/icd.d/nvidia_icd.json": "/driver/usr/share/vulkan/icd.d/nvidia_icd.json",
        "/etc/OpenCL/vendors/nvidia.icd": "/driver/etc/OpenCL/vendors/nvidia.icd",
    }
    [firmware] = libraries_of(tmp_path).tree().firmware
    assert firmware.container_path == f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"


def test_without_directories_libraries_are_where_every_loader_looks(tmp_path: Path) -> None:
    install_driver(tmp_path)
    found = sources(libraries_of(tmp_path, directories=()))
    assert len({path for path in found if path.endswith("/libcuda.so.1")}) == 2
    assert "/usr/lib64/libcuda.so.1" in found


def test_sources_outlive_an_update_of_the_driver(tmp_path: Path) -> None:
    directory = install_driver(tmp_path)
    libraries = libraries_of(tmp_path)
    before = {path: source for path, source in sources(libraries).items() if VERSION not in path}
    for path in [*directory.glob(f"*.so.{VERSION}"), *directory.glob(f"*/*.so.{VERSION}")]:
        path.unlink()
        path.mkdir()  # as runtimes do where an answer has a source that is missing
    install_driver(tmp_path, version="590.48.01")
    assert [source for source in before.values() if not Path(source).is_file()] == []
    after = sources(libraries)
    assert before.items() <= after.items()
    assert {path for path in after if VERSION in path} == set()
    assert f"{INSIDE}/libnvidia-gpucomp.so.590.48.01" in after


def test_a_library_with_its_version_alone_is_mounted_by_a_link_that_outlives_it(tmp_path: Path) -> None:
    directory = install_driver(tmp_path)
    (directory / "libnvidia-glcore.so").symlink_to(f"libnvidia-glcore.so.{VERSION}")
    found = sources(libraries_of(tmp_path))
    names = {path: source for path, source in found.items() if "glcore" in path}
    source = f"{directory}/libnvidia-glcore.so"
    assert names == dict.fromkeys((f"{INSIDE}/libnvidia-glcore.so.{VERSION}", f"{INSIDE}/libnvidia-glcore.so"), source)


def test_files_left_over_from_another_version_are_not_mounted(tmp_path: Path) -> None:
    directory = install_driver(tmp_path)
    (directory / "libnvidia-ml.so.535.1").touch()
    (directory / "libnvidia-tls.so.535.1").touch()
    assert not [path for path in sources(libraries_of(tmp_path)) if "535" in path]


def test_a_library_without_a_version_is_a_driver_too(tmp_path: Path) -> None:
    (tmp_path / "lib64").mkdir()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-gpucomp.so.580.1", "libc.so.6"):
        (tmp_path / "lib64" / name).touch()
    found = sources(libraries_of(tmp_path))
    assert {Path(path).name for path in found} == {
        "libcuda.so",
        "libcuda.so.1",
        "libnvidia-ml.so.1",
        "libnvidia-gpucomp.so.580.1",
    }


def test_a_link_to_the_drivers_own_directory_is_followed(tmp_path: Path) -> None:
    """Debian's packages link from the loader's directory by way of /etc/alternatives."""
    install_driver(tmp_path, directory="usr/lib/nvidia/current")
    (tmp_path / "usr/lib64").mkdir()
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    (tmp_path / "usr/lib64/libcuda.so.1").symlink_to("/etc/alternatives/libcuda.so.1")
    (tmp_path / "etc/alternatives/libcuda.so.1").symlink_to("/usr/lib/nvidia/current/libcuda.so.1")
    found = sources(libraries_of(tmp_path, host="/run/nvidia/driver"))
    assert found[f"{INSIDE}/libcuda.so.1"] == "/run/nvidia/driver/usr/lib/nvidia/current/libcuda.so.1"
    assert f"{INSIDE}/libnvidia-ml.so.1" in found


def test_an_absolute_link_in_a_root_that_is_not_the_hosts_is_resolved(tmp_path: Path) -> None:
    directory = install_driver(tmp_path)
    (directory / "libnvidia-ml.so.1").unlink()
    (directory / "libnvidia-ml.so.1").symlink_to(f"/usr/lib64/libnvidia-ml.so.{VERSION}")
    elsewhere = sources(libraries_of(tmp_path, host="/run/nvidia/driver"))
    assert elsewhere[f"{INSIDE}/libnvidia-ml.so.1"] == f"/run/nvidia/driver/usr/lib64/libnvidia-ml.so.{VERSION}"
    of_the_host = sources(libraries_of(tmp_path, host="/"))
    assert of_the_host[f"{INSIDE}/libnvidia-ml.so.1"] == "/usr/lib64/libnvidia-ml.so.1"


def test_with_hooks_other_names_are_links_in_one_directory(tmp_path: Path) -> None:
    install_driver(tmp_path)
    libraries = libraries_of(tmp_path, directories=(INSIDE, "/usr/lib64"))
    linked = sources(libraries, linked=True)
    assert f"{INSIDE}/libcuda.so.1" in linked
    assert not {f"{INSIDE}/libcuda.so", "/usr/lib64/libcuda.so.1"} & set(linked)
    assert libraries.links() == [
        ("libGLX_nvidia.so.0", f"{INSIDE}/libGLX_indirect.so.0"),
        ("libcuda.so.1", f"{INSIDE}/libcuda.so"),
        ("libnvidia-ml.so.1", f"{INSIDE}/libnvidia-ml.so"),
    ]


def test_another_library_takes_every_name_of_the_drivers(tmp_path: Path) -> None:
    install_driver(tmp_path)
    libraries = libraries_of(tmp_path)
    limiter = {"libcuda.so.1": "/opt/limiter.so"}
    original = Mount(f"{tmp_path}/usr/lib64/libcuda.so.1", f"{ORIGINALS}/libcuda.so.1", read_only=True)
    names = [f"{INSIDE}/libcuda.so.1", f"{INSIDE}/libcuda.so"]
    assert libraries.replacements(limiter) == [
        *(Mount("/opt/limiter.so", name, read_only=True) for name in names),
        original,
    ]
    assert libraries.replacements(limiter, linked=True) == [
        Mount("/opt/limiter.so", names[0], read_only=True),
        original,
    ]
    with pytest.raises(PluginError, match="has no libfoo"):
        libraries.replacements({"libfoo.so.1": "/opt/limiter.so"})
