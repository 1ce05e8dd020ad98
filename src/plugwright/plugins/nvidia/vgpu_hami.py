"""HAMi's limiter library for vgpu shares: the operator provides it, and its containers have HAMi's layout.

It is preloaded into every program of the container, counts memory there and slows kernels down. Containers get their
limits as environment variables and as a read-only file, which takes precedence.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from plugwright.model import Mount
from plugwright.plugins.nvidia.config import HAMI_LIBRARY, CoreUtilizationPolicy, NvidiaVgpu
from plugwright.plugins.nvidia.sharing import ContainerExtras, GpuUnit
from plugwright.plugins.nvidia.vgpu_files import TenantFiles
from plugwright.plugins.nvidia.vgpu_sizes import ContainerShare
from plugwright.plugins.nvidia.vgpu_watch import CountedContainer

__all__ = ["HamiLibrary"]

_LIBRARY_DIRECTORY = "/usr/local/vgpu"  # the directory of HAMi's libraries and tools, also on the host
_LOCKS = "/tmp/vgpulock"
_OVERRIDE = "/overrideEnv"  # KEY=VALUE lines, which override the environment
_PRELOAD = "/etc/ld.so.preload"


class HamiLibrary:
    """A `LimiterLibrary`."""

    limits_compute = True
    usage_path = ""  # its cache has another layout: its containers' use is not measured
    compute = "kernels are slowed down in the tenant's own process"

    def __init__(self, config: NvidiaVgpu) -> None:
        self._config = config
        self._library = Path(config.library or HAMI_LIBRARY)
        self._files = TenantFiles(Path(config.root))

    def fault(self, unit: GpuUnit) -> str:
        if unit.mig or unit.gpu.mig_enabled:
            return "HAMi's library shares whole GPUs, and MIG is enabled on this one"
        if not unit.percent:
            return "a vgpu share of 0 % has no limit: to HAMi's library 0 means all"
        if not self._library.is_file():
            return f"no limiter library at {self._library}: containers would have no limits"
        return ""

    def extras(self, share: ContainerShare) -> ContainerExtras:
        limits = self._limits(share)
        return ContainerExtras(limits=limits, mounts=self._mounts(share, limits))

    def renew(self, name: str) -> bool:
        if not self._files.has("limits", name) or not self._library.is_file():
            return False
        self._files.writable_directory("containers", name, fresh=True)
        return True

    def containers(self, names: Collection[str] = ()) -> dict[str, CountedContainer]:
        return {}

    def discard(self, name: str) -> None:
        self._files.discard("limits", name)
        self._files.discard("containers", name)

    def _limits(self, share: ContainerShare) -> dict[str, str]:
        limits = {}
        for number, device in enumerate(share.devices):
            limits[f"CUDA_DEVICE_MEMORY_LIMIT_{number}"] = f"{device.mebibytes}m"
            limits[f"CUDA_DEVICE_SM_LIMIT_{number}"] = str(device.percent)
        limits["CUDA_DEVICE_SM_LIMIT"] = str(min(device.percent for device in share.devices))  # for older libraries
        limits["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = f"{_LIBRARY_DIRECTORY}/{share.name}.cache"
        if share.is_oversubscribed:
            limits["CUDA_OVERSUBSCRIBE"] = "true"
        if self._config.cores is not CoreUtilizationPolicy.DEFAULT:
            limits["GPU_CORE_UTILIZATION_POLICY"] = self._config.cores.value
        if self._config.log is not None:
            limits["LIBCUDA_LOG_LEVEL"] = str(self._config.log)
        return limits

    def _mounts(self, share: ContainerShare, limits: Mapping[str, str]) -> tuple[Mount, ...]:
        # The file itself instead of a link to the newest: replacing a library under a running program crashes it.
        library = self._library.resolve(strict=True)
        # The container writes there: usage counted by an earlier container must not count for this one.
        cache = self._files.writable_directory("containers", share.name, fresh=share.is_fresh)
        locks = self._files.directory(Path(self._config.locks or f"{self._config.root}/locks"), 0o1777)
        lines = "".join(f"{key}={limits[key]}\n" for key in sorted(limits))
        override = self._files.fixed("limits", share.name, content=lines.encode())
        preload = self._files.fixed("ld.so.preload", content=f"{_LIBRARY_DIRECTORY}/libvgpu.so\n".encode())
        return (
            Mount(str(library), f"{_LIBRARY_DIRECTORY}/libvgpu.so", read_only=True),
            Mount(str(cache), _LIBRARY_DIRECTORY),
            Mount(str(locks), _LOCKS),
            Mount(str(override), _OVERRIDE, read_only=True),
            Mount(str(preload), _PRELOAD, read_only=True),
        )
