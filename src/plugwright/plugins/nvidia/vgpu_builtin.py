"""Our own limiter for vgpu shares: two libraries in place of the driver's libcuda.so.1 and libnvidia-ml.so.1.

They are built from `native/vgpu` and are not part of this package. Containers mount a copy named after its content, so
an upgrade never changes a library under a running program.
"""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from plugwright.model import Mount
from plugwright.plugins.nvidia.config import NvidiaVgpu
from plugwright.plugins.nvidia.driver import digest
from plugwright.plugins.nvidia.sharing import ContainerExtras, GpuUnit
from plugwright.plugins.nvidia.vgpu_files import TenantFiles
from plugwright.plugins.nvidia.vgpu_sizes import ContainerShare
from plugwright.plugins.nvidia.vgpu_usage import read_limits, read_usage
from plugwright.plugins.nvidia.vgpu_watch import CountedContainer

__all__ = ["BuiltinLibrary"]

_SONAMES = ("libcuda.so.1", "libnvidia-ml.so.1")
_CONTAINER_DIRECTORY = "/usr/local/plugwright/vgpu"  # compiled into the libraries
_MIB = 2**20


class BuiltinLibrary:
    """A `LimiterLibrary`."""

    limits_compute = False
    usage_path = f"{_CONTAINER_DIRECTORY}/usage"
    compute = "processor time is not limited, CUDA_DEVICE_SM_LIMIT is not enforced"

    def __init__(self, config: NvidiaVgpu) -> None:
        self._source = Path(config.builtin)
        self._files = TenantFiles(Path(config.root))
        self._installed_as: dict[str, tuple[tuple[int, ...], Path]] = {}  # by soname: the source's status, and the copy

    def fault(self, unit: GpuUnit) -> str:
        if unit.gpu.mig_enabled and not unit.mig:
            return "MIG is enabled on this GPU: its MIG devices can be shared, it cannot"
        missing = [soname for soname in _SONAMES if not (self._source / soname).is_file()]
        if missing:
            return f"no {missing[0]} of the limiter in {self._source}: containers would have no limits"
        return ""

    def extras(self, share: ContainerShare) -> ContainerExtras:
        """The extras. The read-only file is decisive; of HAMi's variables, tighter values apply."""
        memory = enumerate(device.mebibytes for device in share.devices)
        limits = {f"CUDA_DEVICE_MEMORY_LIMIT_{number}": f"{mebibytes}m" for number, mebibytes in memory}
        limits["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = f"{_CONTAINER_DIRECTORY}/usage"
        lines = "".join(f"{device.uuid} {device.mebibytes * _MIB}\n" for device in share.devices)
        file = self._files.fixed("limits", f"{share.name}.builtin", content=lines.encode())
        usage = self._files.writable_file("usage", share.name, fresh=share.is_fresh)
        return ContainerExtras(
            limits=limits,
            libraries={soname: str(self._installed(soname)) for soname in _SONAMES},
            mounts=(
                Mount(str(file), f"{_CONTAINER_DIRECTORY}/limits", read_only=True),
                Mount(str(usage), f"{_CONTAINER_DIRECTORY}/usage"),
            ),
        )

    def renew(self, name: str) -> bool:
        if not self._files.has("limits", f"{name}.builtin"):
            return False
        if not all(copy.is_file() for _, copy in self._installed_as.values()):
            return False
        self._files.writable_file("usage", name, fresh=True)
        return True

    def containers(self, names: Collection[str] = ()) -> dict[str, CountedContainer]:
        return dict(self._counted({*self._files.opened("usage"), *names}))

    def _counted(self, names: Iterable[str]) -> Iterator[tuple[str, CountedContainer]]:
        for name in names:
            try:
                limits = read_limits(self._files.path("limits", f"{name}.builtin"))
                yield name, CountedContainer(limits, read_usage(self._files.path("usage", name), len(limits)))
            except (OSError, ValueError):  # deleted in the meantime
                continue

    def discard(self, name: str) -> None:
        self._files.discard("limits", f"{name}.builtin")
        self._files.discard("usage", name)

    def _installed(self, soname: str) -> Path:
        """The copy of a library; the source is read again only after changes."""
        source = self._source / soname
        status = source.stat()
        stamp = status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
        known = self._installed_as.get(soname)
        if known is None or known[0] != stamp or not known[1].is_file():
            content = source.read_bytes()
            known = stamp, self._files.fixed("lib", digest([content.hex()]), soname, content=content)
            self._installed_as[soname] = known
        return known[1]
