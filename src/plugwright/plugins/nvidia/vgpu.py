"""vgpu: a limiter library that is loaded into every program of the container, in HAMi's layout.

The library is the operator's; it counts memory and slows kernels down inside the tenant's own process, so it holds
those who do not try to get past it. Sizes are part of a unit's id: `GPU-…::20480m-25c-3` is 20480 MiB and 25 %, share
3. The limits go to the container as env and as a read-only file that the library puts above the env.
"""

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from plugwright.errors import ConfigError, PluginError
from plugwright.model import Mount
from plugwright.plugins.nvidia import sharing
from plugwright.plugins.nvidia.choices import Cores
from plugwright.plugins.nvidia.driver import digest
from plugwright.plugins.nvidia.sharing import (
    NOT_CONFINED,
    Extras,
    Share,
    Unit,
    by_device,
    check_most,
    memory_env,
    share_facts,
)
from plugwright.system import files

__all__ = ["Cores", "Size", "Vgpu", "VgpuOptions", "decode", "encode"]

_MIB = 2**20
_INSIDE = "/usr/local/vgpu"  # where HAMi's libraries and tools look, inside the container
_LOCKS = "/tmp/vgpulock"
_OVERRIDE = "/overrideEnv"  # KEY=VALUE lines that the library puts above the environment
_PRELOAD = "/etc/ld.so.preload"
_ID = re.compile(r"(?P<device>.+)::(?P<memory>[0-9]+)m-(?P<percent>[0-9]+)c-(?P<number>[0-9]+)")
_LONGEST_SIZE = len("9999999m-100c-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    device: str
    mebibytes: int
    percent: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VgpuOptions:
    """Paths of the host, which we see at the same places. `library` is the operator's, `root` is ours."""

    library: Path = Path("/usr/local/vgpu/libvgpu.so")
    root: Path = Path("/var/lib/plugwright/vgpu")
    locks: Path = Path(_LOCKS)
    cores: Cores = Cores.DEFAULT
    log_level: int | None = None

    def __post_init__(self) -> None:
        for path in (self.library, self.root, self.locks):
            if not path.is_absolute():
                raise ConfigError(f"the paths of vgpu are absolute, not {str(path)!r}")


def encode(size: Size) -> str:
    return f"{size.device}::{size.mebibytes}m-{size.percent}c-{size.number}"


def decode(unit_id: str) -> Size:
    found = _ID.fullmatch(unit_id)
    if not found:
        raise PluginError(f"{unit_id!r} is no vgpu share: it has no size")
    return Size(
        device=found["device"],
        mebibytes=int(found["memory"]),
        percent=int(found["percent"]),
        number=int(found["number"]),
    )


class Vgpu:
    """An `Isolation`."""

    def __init__(self, resource: str, share: Share, options: VgpuOptions) -> None:
        self._resource, self._share, self._options = resource, share, options
        self._oversubscribed: set[str] = set()

    def units(self, whole: Sequence[Unit]) -> list[Unit]:
        sharing.check(self._resource, whole, self._share, _LONGEST_SIZE)
        cut = {unit.uuid: sharing.share(unit, self._share) for unit in whole}
        self._oversubscribed = {
            unit.uuid for unit in whole if sum(part.memory for part in cut[unit.uuid]) > unit.memory
        }
        return [replace(part, id=_id(part)) for parts in cut.values() for part in parts]

    def fault(self, unit: Unit) -> str:
        size = decode(unit.id)
        if unit.mig or unit.gpu.mig_enabled:
            return "vgpu shares whole GPUs, and MIG is enabled on this one"
        if not size.mebibytes or not size.percent:
            return f"a share of {size.mebibytes} MiB and {size.percent} % is no limit to vgpu: 0 means all"
        if not self._options.library.is_file():
            return f"no limiter library at {self._options.library}: containers would have no limits"
        return ""

    def attributes(self, unit: Unit) -> Mapping[str, object]:
        return share_facts(unit, f"vgpu, {NOT_CONFINED}: the limiter runs in the tenant's own process")

    def extras(self, units: Sequence[Unit]) -> Extras:
        check_most(self._resource, self._share.most, units)
        name = _name(units)
        limits = self._limits(units, name)
        return Extras(env=memory_env(units), limits=limits, mounts=self._files(name, limits))

    async def follow(self, changed: Callable[[], object]) -> None:
        """The library is looked for whenever the plugin looks at its GPUs."""

    def _limits(self, units: Sequence[Unit], name: str) -> dict[str, str]:
        held = by_device(units)
        sizes = [[decode(unit.id) for unit in each] for each in held.values()]
        memory = [sum(size.mebibytes for size in each) for each in sizes]
        percent = [min(100, sum(size.percent for size in each)) for each in sizes]
        limits = {f"CUDA_DEVICE_MEMORY_LIMIT_{place}": f"{each}m" for place, each in enumerate(memory)}
        limits |= {f"CUDA_DEVICE_SM_LIMIT_{place}": str(each) for place, each in enumerate(percent)}
        limits["CUDA_DEVICE_SM_LIMIT"] = str(min(percent))  # libraries before the one for each GPU
        limits["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = f"{_INSIDE}/{name}.cache"
        if self._oversubscribed & set(held):
            limits["CUDA_OVERSUBSCRIBE"] = "true"
        if self._options.cores is not Cores.DEFAULT:
            limits["GPU_CORE_UTILIZATION_POLICY"] = self._options.cores.value
        if self._options.log_level is not None:
            limits["LIBCUDA_LOG_LEVEL"] = str(self._options.log_level)
        return limits

    def _files(self, name: str, limits: Mapping[str, str]) -> tuple[Mount, ...]:
        """They stay when we end: the kubelet mounts them again when a container restarts."""
        root = self._options.root
        cache, override, preload = root / "containers" / name, root / "limits" / name, root / "ld.so.preload"
        try:
            # What a container before this one counted is not this one's; the directory is the tenant's to write to.
            with suppress(FileNotFoundError):
                shutil.rmtree(cache)
            _shared_directory(cache, 0o777)
            _shared_directory(self._options.locks, 0o1777)
            _write(override, "".join(f"{key}={text}\n" for key, text in sorted(limits.items())))
            _write(preload, f"{_INSIDE}/libvgpu.so\n")
            # The file itself, not a link to the newest: a library replaced under a running program ends it.
            library = self._options.library.resolve(strict=True)
        except OSError as error:
            raise PluginError(f"{self._resource}: cannot prepare a vgpu share: {error}") from error
        return (
            Mount(str(library), f"{_INSIDE}/libvgpu.so", read_only=True),
            Mount(str(cache), _INSIDE),
            Mount(str(self._options.locks), _LOCKS),
            Mount(str(override), _OVERRIDE, read_only=True),
            Mount(str(preload), _PRELOAD, read_only=True),
        )


def _id(part: Unit) -> str:
    return encode(Size(device=part.uuid, mebibytes=part.memory // _MIB, percent=part.percent, number=part.replica or 0))


def _name(units: Sequence[Unit]) -> str:
    """The same for the same units, since the kubelet may ask for them again."""
    return digest((unit.id for unit in units), 24)


def _shared_directory(path: Path, mode: int) -> None:
    """One in /tmp may have been made by anybody: a link is not followed to what it would open to everybody."""
    path.mkdir(parents=True, exist_ok=True)
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchmod(directory, mode)
    finally:
        os.close(directory)


def _write(path: Path, text: str) -> None:
    with suppress(OSError):
        if path.read_text() == text:
            return  # containers that have it mounted keep seeing the one they have
    files.write_atomically(path, text, sync=False)
