"""vgpu: shares whose limits a library enforces inside every process of the container, in HAMi's layout.

The operator brings the library. It counts memory and slows kernels down inside the container's own processes, so it
stops only those that do not try to evade it. A unit's id has its size: `GPU-…::20480m-25c-3` is share 3, with 20480 MiB
and 25 %. The container gets its limits as environment variables and as a read-only file, which takes precedence.
"""

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from plugwright.errors import PluginError
from plugwright.model import Mount
from plugwright.plugins.nvidia import sharing
from plugwright.plugins.nvidia.config import CoreUtilizationPolicy, NvidiaShare, NvidiaVgpu
from plugwright.plugins.nvidia.driver import digest
from plugwright.plugins.nvidia.sharing import NOT_CONFINED, ContainerExtras, GpuUnit
from plugwright.system import files

__all__ = ["VgpuSharing", "VgpuSize", "decode", "encode"]

_MIB = 2**20
_LIBRARY_DIRECTORY = "/usr/local/vgpu"  # where HAMi's libraries and tools look, inside the container
_LOCKS = "/tmp/vgpulock"
_OVERRIDE = "/overrideEnv"  # KEY=VALUE lines, which the library prefers to the environment
_PRELOAD = "/etc/ld.so.preload"
_ID = re.compile(r"(?P<device>.+)::(?P<memory>[0-9]+)m-(?P<percent>[0-9]+)c-(?P<number>[0-9]+)")
_LONGEST_SIZE = len("9999999m-100c-")


@dataclass(frozen=True, slots=True, kw_only=True)
class VgpuSize:
    """The parts of a unit's id."""

    device: str
    mebibytes: int
    percent: int
    number: int


def encode(size: VgpuSize) -> str:
    return f"{size.device}::{size.mebibytes}m-{size.percent}c-{size.number}"


def decode(unit_id: str) -> VgpuSize:
    match = _ID.fullmatch(unit_id)
    if not match:
        raise PluginError(f"the id of a vgpu share must end in its size, got {unit_id!r}")
    return VgpuSize(
        device=match["device"],
        mebibytes=int(match["memory"]),
        percent=int(match["percent"]),
        number=int(match["number"]),
    )


class VgpuSharing:
    """A `SharingBackend`."""

    def __init__(self, resource: str, share: NvidiaShare) -> None:
        self._resource, self._share = resource, share
        self._config = share.vgpu or NvidiaVgpu()
        self._oversubscribed: set[str] = set()

    def units(self, whole: Sequence[GpuUnit]) -> list[GpuUnit]:
        sharing.check_list_size(self._resource, whole, self._share, _LONGEST_SIZE)
        shares = {unit.uuid: sharing.split(unit, self._share) for unit in whole}
        self._oversubscribed = {
            unit.uuid for unit in whole if sum(part.memory for part in shares[unit.uuid]) > unit.memory
        }
        return [replace(part, id=encode(_size(part))) for parts in shares.values() for part in parts]

    def fault(self, unit: GpuUnit) -> str:
        size = decode(unit.id)
        if unit.mig or unit.gpu.mig_enabled:
            return "vgpu shares whole GPUs, and MIG is enabled on this one"
        if not size.mebibytes or not size.percent:
            return f"a vgpu share of {size.mebibytes} MiB and {size.percent} % has no limit: to the library 0 means all"
        if not Path(self._config.library).is_file():
            return f"no limiter library at {self._config.library}: containers would have no limits"
        return ""

    def attributes(self, unit: GpuUnit) -> Mapping[str, object]:
        return sharing.share_attributes(unit, f"vgpu, {NOT_CONFINED}: the limiter runs in the tenant's own process")

    def extras(self, units: Sequence[GpuUnit], fresh: bool = True) -> ContainerExtras:
        sharing.check_request(self._resource, self._share.most, units)
        # The kubelet may allocate the same devices again: the same units have the same files.
        name = digest((unit.id for unit in units), 24)
        limits = self._limits(units, name)
        mounts = self._mounts(name, limits, fresh)
        return ContainerExtras(env=sharing.share_env(units), limits=limits, mounts=mounts)

    def restored(self, units: Sequence[GpuUnit]) -> ContainerExtras:
        return self.extras(units, fresh=False)

    async def follow(self, changed: Callable[[], object]) -> None:
        """Returns: the plugin asks for `fault` with every list, and the library is looked up then."""

    def _limits(self, units: Sequence[GpuUnit], name: str) -> dict[str, str]:
        devices = sharing.units_by_device(units)
        sizes = [[decode(unit.id) for unit in shares] for shares in devices.values()]
        memory = [sum(size.mebibytes for size in shares) for shares in sizes]
        percent = [min(100, sum(size.percent for size in shares)) for shares in sizes]
        limits = {f"CUDA_DEVICE_MEMORY_LIMIT_{number}": f"{mebibytes}m" for number, mebibytes in enumerate(memory)}
        limits |= {f"CUDA_DEVICE_SM_LIMIT_{number}": str(value) for number, value in enumerate(percent)}
        limits["CUDA_DEVICE_SM_LIMIT"] = str(min(percent))  # for libraries without a limit per GPU
        limits["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = f"{_LIBRARY_DIRECTORY}/{name}.cache"
        if self._oversubscribed & set(devices):
            limits["CUDA_OVERSUBSCRIBE"] = "true"
        if self._config.cores is not CoreUtilizationPolicy.DEFAULT:
            limits["GPU_CORE_UTILIZATION_POLICY"] = self._config.cores.value
        if self._config.log is not None:
            limits["LIBCUDA_LOG_LEVEL"] = str(self._config.log)
        return limits

    def _mounts(self, name: str, limits: Mapping[str, str], fresh: bool) -> tuple[Mount, ...]:
        """The files stay when the daemon ends: the kubelet mounts them again when a container restarts."""
        root, locks = Path(self._config.root), Path(self._config.locks)
        cache, override, preload = root / "containers" / name, root / "limits" / name, root / "ld.so.preload"
        try:
            # The container writes there: usage that an earlier container counted must not count for this one.
            if fresh and cache.exists():
                shutil.rmtree(cache)
            _make_directory(cache, 0o777)
            _make_directory(locks, 0o1777)
            _write(override, "".join(f"{key}={text}\n" for key, text in sorted(limits.items())))
            _write(preload, f"{_LIBRARY_DIRECTORY}/libvgpu.so\n")
            # The file itself instead of a link to the newest: replacing a library under a running program crashes it.
            library = Path(self._config.library).resolve(strict=True)
        except OSError as error:
            raise PluginError(f"{self._resource}: cannot prepare a vgpu share: {error}") from error
        return (
            Mount(str(library), f"{_LIBRARY_DIRECTORY}/libvgpu.so", read_only=True),
            Mount(str(cache), _LIBRARY_DIRECTORY),
            Mount(str(locks), _LOCKS),
            Mount(str(override), _OVERRIDE, read_only=True),
            Mount(str(preload), _PRELOAD, read_only=True),
        )


def _size(part: GpuUnit) -> VgpuSize:
    return VgpuSize(device=part.uuid, mebibytes=part.memory // _MIB, percent=part.percent, number=part.replica or 0)


def _make_directory(path: Path, mode: int) -> None:
    """Does not follow links: any user can create one in /tmp, and the mode would apply to its target."""
    path.mkdir(parents=True, exist_ok=True)
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchmod(directory, mode)
    finally:
        os.close(directory)


def _write(path: Path, text: str) -> None:
    with suppress(OSError):
        if path.read_text() == text:
            return  # running containers have this file mounted
    files.write_atomically(path, text, sync=False)
