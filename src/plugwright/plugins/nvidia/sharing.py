"""Units, the devices that the kubelet counts, and how several units share one GPU or MIG device.

A whole device is one unit under its UUID. A shared device is several units, `UUID::0`, `UUID::1` and so on, which the
plugin handles through a `SharingBackend`: `TimeSlicing` here, which limits nothing, `mps.sharing` and `vgpu`. Every
backend calls `check_list_size` before it makes units, because units of one MiB look reasonable in a configuration and
make a list that the kubelet does not accept.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from plugwright.errors import PluginError
from plugwright.model import Mount
from plugwright.plugins.nvidia.config import NvidiaShare
from plugwright.plugins.nvidia.driver import Gpu, MigDevice

__all__ = [
    "NOT_CONFINED",
    "ContainerExtras",
    "GpuUnit",
    "SharingBackend",
    "TimeSlicing",
    "check_list_size",
    "check_request",
    "share_attributes",
    "share_env",
    "split",
    "split_all",
    "units_by_device",
    "whole_device",
]

NOT_CONFINED = "not confined"
_REPLICA = "::"  # as NVIDIA's plugin writes it
_MIB = 2**20

# The kubelet cancels the stream of a plugin whose list is above 4 MiB (2.16).
_MESSAGE_LIMIT = 4 * 2**20
_DEVICE_BYTES = 13 + 2  # beside the id: lengths, tags and the health, at its longest "Unhealthy"
_NUMA_BYTES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUnit:
    """One device as the kubelet counts them: a whole device or a share of one, with the memory and percent it has."""

    id: str
    gpu: Gpu
    mig: MigDevice | None = None
    memory: int = 0  # bytes
    percent: int = 100
    replica: int | None = None  # None for a whole device

    @property
    def uuid(self) -> str:
        """The device that the container sees."""
        return self.mig.uuid if self.mig else self.gpu.uuid

    @property
    def index(self) -> str:
        """As the NVIDIA tools write it: `0`, or `0:1` for a MIG device."""
        return f"{self.gpu.index}:{self.mig.index}" if self.mig else str(self.gpu.index)


@dataclass(frozen=True, slots=True)
class ContainerExtras:
    """A container's settings beside its GPUs. `limits` are environment variables that it must not be able to change.

    `libraries` are files of the host that the container gets in place of the driver's, by soname; the driver's own are
    then in `driver_libraries.ORIGINALS`.
    """

    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    limits: Mapping[str, str] = field(default_factory=dict, hash=False)
    libraries: Mapping[str, str] = field(default_factory=dict, hash=False)
    mounts: tuple[Mount, ...] = ()


class SharingBackend(Protocol):
    def units(self, whole: Sequence[GpuUnit]) -> list[GpuUnit]:
        """All units of these whole devices; PluginError if they are more than the kubelet accepts."""
        ...

    def fault(self, unit: GpuUnit) -> str:
        """Why the unit cannot be used now although its GPU is healthy; empty if it can."""
        ...

    def attributes(self, unit: GpuUnit) -> Mapping[str, object]: ...

    def extras(self, units: Sequence[GpuUnit]) -> ContainerExtras:
        """For the container that gets `units`; PluginError when it cannot have these together."""
        ...

    async def follow(self, changed: Callable[[], object]) -> None:
        """Calls `changed` whenever `fault` or `attributes` may have changed; returns if they never will."""
        ...


class TimeSlicing:
    """Whole devices, and time-slicing: containers take turns, and every one may use all the memory."""

    def __init__(self, resource: str, share: NvidiaShare | None) -> None:
        self._resource, self._share = resource, share

    def units(self, whole: Sequence[GpuUnit]) -> list[GpuUnit]:
        check_list_size(self._resource, whole, self._share)
        return split_all(whole, self._share)

    def fault(self, unit: GpuUnit) -> str:
        return ""

    def attributes(self, unit: GpuUnit) -> Mapping[str, object]:
        return share_attributes(unit, f"time-slicing, {NOT_CONFINED}") if self._share else {}

    def extras(self, units: Sequence[GpuUnit]) -> ContainerExtras:
        if not self._share:
            return ContainerExtras()
        check_request(self._resource, self._share.most, units)
        return ContainerExtras(env=share_env(units))

    async def follow(self, changed: Callable[[], object]) -> None:
        return


def whole_device(gpu: Gpu, mig: MigDevice | None = None) -> GpuUnit:
    return GpuUnit(id=mig.uuid if mig else gpu.uuid, gpu=gpu, mig=mig, memory=mig.memory if mig else gpu.memory)


def split(unit: GpuUnit, share: NvidiaShare) -> list[GpuUnit]:
    """The shares of one whole device."""
    count = _replica_count(unit, share)
    if not count:
        return []
    memory, percent = share.memory_bytes or unit.memory // count, share.percent or 100 // count
    return [
        replace(unit, id=f"{unit.id}{_REPLICA}{number}", memory=memory, percent=percent, replica=number)
        for number in range(count)
    ]


def split_all(units: Iterable[GpuUnit], share: NvidiaShare | None) -> list[GpuUnit]:
    return [part for unit in units for part in (split(unit, share) if share else [unit])]


def units_by_device(units: Sequence[GpuUnit]) -> dict[str, list[GpuUnit]]:
    """The units of each device under its UUID, in the order in which a program in the container counts devices."""
    devices: dict[str, list[GpuUnit]] = {}
    for unit in sorted(units, key=lambda unit: (unit.gpu.index, unit.mig.index if unit.mig else 0)):
        devices.setdefault(unit.uuid, []).append(unit)
    return devices


def share_attributes(unit: GpuUnit, sharing: str) -> dict[str, object]:
    """For `plugwright status`; `memory` is in bytes."""
    return {"memory": unit.memory, "percent": unit.percent, "sharing": sharing}


def share_env(units: Sequence[GpuUnit]) -> dict[str, str]:
    """The size of the container's share of each of its GPUs, for information: it limits nothing."""
    devices = units_by_device(units).values()
    return {
        "PLUGWRIGHT_GPU_MEMORY": ",".join(str(sum(unit.memory for unit in shares)) for shares in devices),
        "PLUGWRIGHT_GPU_PERCENT": ",".join(str(min(100, sum(unit.percent for unit in shares))) for shares in devices),
    }


def check_request(resource: str, most: int, units: Sequence[GpuUnit]) -> None:
    if most and len(units) > most:
        raise PluginError(f"{resource}: a container may request at most {most}, got {len(units)}")


def check_list_size(resource: str, whole: Sequence[GpuUnit], share: NvidiaShare | None, suffix: int = 0) -> None:
    """PluginError when the list would be too long for the kubelet; ids are `suffix` bytes longer than `split`'s."""
    if share is None:
        return
    counts = [_replica_count(unit, share) for unit in whole]
    size = sum(count * (_wire_size(unit, count) + suffix) for unit, count in zip(whole, counts, strict=True))
    if size <= _MESSAGE_LIMIT:
        return
    count = sum(counts)
    fitting = _MESSAGE_LIMIT * count // size
    factor = -(-count // max(1, fitting))
    if share.memory_bytes and not share.replicas:
        proposal = f"memory: {-(-share.memory_bytes * factor // _MIB)}Mi"
    else:
        proposal = f"replicas: {max(1, max(counts) // factor)}"
    raise PluginError(
        f"{resource}: a list of {count:,} units has {size:,} bytes, the kubelet accepts {_MESSAGE_LIMIT:,}, about "
        f"{fitting:,} units: try {proposal}"
    )


def _replica_count(unit: GpuUnit, share: NvidiaShare) -> int:
    """As configured, else as often as the configured sizes fit into the device."""
    if share.replicas:
        return share.replicas
    counts = [unit.memory // share.memory_bytes] if share.memory_bytes else []
    counts += [100 // share.percent] if share.percent else []
    return min(counts)


def _wire_size(unit: GpuUnit, count: int) -> int:
    numa = _NUMA_BYTES if unit.gpu.numa is not None else 0
    return len(unit.id) + len(_REPLICA) + len(str(count)) + _DEVICE_BYTES + numa
