"""The files of an installed driver, as a distribution's packages lay them out: names and links, without content."""

from pathlib import Path

__all__ = ["VERSION", "install_driver"]

VERSION = "580.159.04"
_SONAMES = {  # the libraries that have a soname beside their version
    "libcuda": ".1",
    "libnvidia-ml": ".1",
    "libnvidia-ptxjitcompiler": ".1",
    "libnvidia-nvvm": ".4",
    "libnvidia-allocator": ".1",
    "libEGL_nvidia": ".0",
    "libGLX_nvidia": ".0",
    "libnvoptix": ".1",
}
_ONLY_VERSIONED = ("libnvidia-gpucomp", "libnvidia-glcore", "libnvidia-rtcore")
_OTHERS = ("libc.so.6", "libnvidia-container.so.1", "libcudart.so.13")  # not the driver's
_FILES = (
    "usr/bin/nvidia-smi",
    "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "usr/share/vulkan/icd.d/nvidia_icd.json",
    "etc/OpenCL/vendors/nvidia.icd",
)


def install_driver(root: Path, version: str = VERSION, directory: str = "usr/lib64") -> Path:
    """Returns the directory of the libraries; of a driver that is installed already, the links are moved."""
    libraries = root / directory
    (libraries / "vdpau").mkdir(parents=True, exist_ok=True)
    (libraries / "gbm").mkdir(exist_ok=True)
    for stem, number in _SONAMES.items():
        (libraries / f"{stem}.so.{version}").touch()
        _link(libraries / f"{stem}.so{number}", f"{stem}.so.{version}")
    for name in (*(f"{stem}.so.{version}" for stem in _ONLY_VERSIONED), *_OTHERS):
        (libraries / name).touch()
    _link(libraries / "libnvidia-ml.so", "libnvidia-ml.so.1")
    (libraries / f"vdpau/libvdpau_nvidia.so.{version}").touch()
    _link(libraries / "vdpau/libvdpau_nvidia.so.1", f"libvdpau_nvidia.so.{version}")
    _link(libraries / "gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1")
    for name in (*_FILES, f"lib/firmware/nvidia/{version}/gsp_ga10x.bin"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return libraries


def _link(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)
