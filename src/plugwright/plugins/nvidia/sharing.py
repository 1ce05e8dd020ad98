"""Units, the devices counted by the kubelet, and how several units share one GPU or MIG device.

A whole device is one unit under its UUID. A shared device is several units, `UUID::0`, `UUID::1` and so on, which the
plugin handles through a `SharingBackend`: `TimeSlicing` in `time_slicing`, which limits nothing, `mps.sharing` and
`vgpu`. Every backend calls `check_list_size` before it makes units, because the kubelet rejects the list of a plausible
configuration with units of one MiB.

Claims share a device differently: it stays one unit, and each claim gets a part of its capacity.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from plugwright.attributes import Capacity
from plugwright.errors import PluginError
from plugwright.model import Device, Mount
from plugwright.plugins.nvidia.config import NvidiaShare, SharingStrategy
from plugwright.plugins.nvidia.driver import Gpu, GpuDriver, MigDevice
from plugwright.sdk.share_usage import ShareUsage

__all__ = [
    "NOT_CONFINED",
    "ContainerExtras",
    "GpuUnit",
    "SharingBackend",
    "check_list_size",
    "check_request",
    "device_env",
    "first_shares",
    "given",
    "kind_of_share",
    "replica_count",
    "share_env",
    "split",
    "split_all",
    "to_share",
    "unit_key",
    "units_by_device",
    "whole_device",
]

NOT_CONFINED = "not confined"
_REPLICA = "::"  # as in NVIDIA's plugin
_MIB = 2**20

# The kubelet cancels the stream of a plugin whose list is above 4 MiB (2.16).
_MESSAGE_LIMIT = 4 * 2**20
_DEVICE_BYTES = 13 + 2  # besides the id: lengths, tags and the longest health, "Unhealthy"
_NUMA_BYTES = 6


class GpuUnit(msgspec.Struct, frozen=True, kw_only=True):
    """One device as counted by the kubelet: a whole device or a share, with its memory and percentage."""

    id: str
    gpu: Gpu
    mig: MigDevice | None = None
    memory: int = 0  # bytes
    percent: int = 100
    replica: int | None = None  # None for a whole device, and for a claim's part of one
    share_id: str = ""  # of a claim's part of a shared device

    @property
    def uuid(self) -> str:
        """The UUID of the device in the container."""
        return self.mig.uuid if self.mig else self.gpu.uuid

    @property
    def key(self) -> str:
        """Identifies the unit of a container; claims of one device have different keys."""
        return unit_key(self.id, self.share_id)

    @property
    def is_part(self) -> bool:
        """Whether it has less memory than its device, in MiB."""
        return self.memory // _MIB < (self.mig.memory if self.mig else self.gpu.usable) // _MIB

    @property
    def index(self) -> str:
        """The index in the notation of NVIDIA's tools: `0`, or `0:1` for a MIG device."""
        return f"{self.gpu.index}:{self.mig.index}" if self.mig else str(self.gpu.index)


class ContainerExtras(msgspec.Struct, frozen=True):
    """A container's settings besides its GPUs. `limits` are environment variables, which it must not be able to change.
    `libraries` are the host's replacements for the driver's files in the container, by soname; the driver's own are
    then in `driver_libraries.ORIGINALS`.
    """

    env: Mapping[str, str] = {}
    limits: Mapping[str, str] = {}
    libraries: Mapping[str, str] = {}
    mounts: tuple[Mount, ...] = ()


class SharingBackend(Protocol):
    is_lasting: bool  # containers need no files of their own: `renew` has nothing to do

    def units(self, whole: Sequence[GpuUnit]) -> list[GpuUnit]:
        """All units of these whole devices; PluginError if they are more than the kubelet accepts."""
        ...

    def claimable(self, whole: Sequence[GpuUnit]) -> list[GpuUnit]:
        """The whole devices large enough for at least one share, for claims."""
        ...

    def capacity(self, unit: GpuUnit) -> Mapping[str, Capacity]:
        """The capacities of a shared device for requests of claims."""
        ...

    def fault(self, unit: GpuUnit) -> str:
        """Why the unit is unusable now although its GPU is healthy; empty if it is usable."""
        ...

    def note(self, unit: GpuUnit) -> str:
        """How containers share the device, and whether their parts are enforced, for `plugwright status`."""
        ...

    def extras(self, units: Sequence[GpuUnit]) -> ContainerExtras:
        """The extras of a container with `units`; PluginError if it cannot have these together."""
        ...

    def restored(self, units: Sequence[GpuUnit]) -> ContainerExtras:
        """Like `extras`, for a possibly running container with these units: does not touch its files."""
        ...

    def renew(self, units: Sequence[GpuUnit]) -> bool:
        """After `restored`, empties the files for a new container. False if files are missing.

        The extras themselves stay the same until the next list.
        """
        ...

    def release(self, keys: Sequence[str]) -> None:
        """Removes the files of the claim with the units of these keys."""
        ...

    def usage(self, keys: Sequence[str]) -> Sequence[ShareUsage]:
        """The last measured use of the container or claim with the units of these keys."""
        ...

    async def follow(self, changed: Callable[[], object], driver: GpuDriver) -> None:
        """Calls `changed` whenever `fault` or `note` could have changed; returns if there is nothing to watch."""
        ...


def unit_key(unit_id: str, share_id: str) -> str:
    return f"{unit_id}/{share_id}" if share_id else unit_id


def whole_device(gpu: Gpu, mig: MigDevice | None = None) -> GpuUnit:
    return GpuUnit(id=mig.uuid if mig else gpu.uuid, gpu=gpu, mig=mig, memory=mig.memory if mig else gpu.memory)


def to_share(unit: GpuUnit) -> GpuUnit:
    """The whole device with the memory available for shares: the driver reserves some of a GPU's memory."""
    return unit if unit.mig else replace(unit, memory=unit.gpu.usable)


def given(unit: GpuUnit, device: Device) -> GpuUnit:
    """A claim's part of a device shared by claims; the unit itself for other devices."""
    if not device.allow_multiple:
        return unit
    return replace(
        unit,
        memory=_amount(device, "memory", unit.memory),
        percent=_amount(device, "percent", unit.percent),
        share_id=device.share_id,
    )


def split(unit: GpuUnit, share: NvidiaShare) -> list[GpuUnit]:
    """The shares of one whole device."""
    count = replica_count(unit, share)
    return [_share(unit, share, number, count) for number in range(count)]


def first_shares(units: Iterable[GpuUnit], share: NvidiaShare) -> list[GpuUnit]:
    """One share of each sufficiently large device."""
    counts = [(unit, replica_count(unit, share)) for unit in units]
    return [_share(unit, share, 0, count) for unit, count in counts if count]


def split_all(units: Iterable[GpuUnit], share: NvidiaShare | None) -> list[GpuUnit]:
    return [part for unit in units for part in (split(unit, share) if share else [unit])]


def units_by_device(units: Sequence[GpuUnit]) -> dict[str, list[GpuUnit]]:
    """The units of each device under its UUID, in the order in which a program in the container counts devices."""
    devices: dict[str, list[GpuUnit]] = {}
    for unit in sorted(units, key=lambda unit: (unit.gpu.index, unit.mig.index if unit.mig else 0)):
        devices.setdefault(unit.uuid, []).append(unit)
    return devices


def device_env(units: Sequence[GpuUnit]) -> dict[str, str]:
    """The UUIDs of the container's GPUs, for information, in a variable of our own."""
    return {"PLUGWRIGHT_GPU_UUID": ",".join(units_by_device(units))}


def share_env(units: Sequence[GpuUnit]) -> dict[str, str]:
    """The container's GPUs and the size of its share of each, for information only: it limits nothing."""
    devices = units_by_device(units).values()
    return {
        **device_env(units),
        "PLUGWRIGHT_GPU_MEMORY": ",".join(str(sum(unit.memory for unit in shares)) for shares in devices),
        "PLUGWRIGHT_GPU_PERCENT": ",".join(str(min(100, sum(unit.percent for unit in shares))) for shares in devices),
    }


def kind_of_share(resource: str, share: NvidiaShare | None, unit: GpuUnit) -> str:
    """Equal for units held together; empty for a whole device.

    It contains the limits: after a reload with other limits, the shares of both sizes together would exceed the GPU.
    Claims have their own limits, which are added up.
    """
    if share is None:
        return ""
    if unit.replica is None:
        return f"{resource} {share.by} by claims"
    limits = "" if share.by is SharingStrategy.TIME_SLICING else f" {unit.memory} bytes {unit.percent} %"
    return f"{resource} {share.by}{limits}"


def check_request(resource: str, most: int, units: Sequence[GpuUnit]) -> None:
    if most and len(units) > most:
        raise PluginError(f"{resource}: a container may request at most {most}, got {len(units)}")


def check_list_size(resource: str, whole: Sequence[GpuUnit], share: NvidiaShare | None, suffix: int = 0) -> None:
    """PluginError if the list would be too long for the kubelet; ids are `suffix` bytes longer than `split`'s."""
    if share is None:
        return
    counts = [replica_count(unit, share) for unit in whole]
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


def _amount(device: Device, name: str, whole: int) -> int:
    """A claim's amount of a capacity; while it still has its policy, the amount for a claim without a request."""
    capacity = device.capacity.get(name)
    if capacity is None:
        return whole
    return capacity.default if capacity.default is not None and device.share_id else capacity.value


def _share(unit: GpuUnit, share: NvidiaShare, number: int, count: int) -> GpuUnit:
    memory, percent = share.memory_bytes or unit.memory // count, share.percent or 100 // count
    return replace(unit, id=f"{unit.id}{_REPLICA}{number}", memory=memory, percent=percent, replica=number)


def replica_count(unit: GpuUnit, share: NvidiaShare) -> int:
    """The number of replicas: as configured, otherwise as many shares as fit into the device."""
    if share.replicas:
        return share.replicas
    counts = [unit.memory // share.memory_bytes] if share.memory_bytes else []
    counts += [100 // share.percent] if share.percent else []
    return min(counts)


def _wire_size(unit: GpuUnit, count: int) -> int:
    numa = _NUMA_BYTES if unit.gpu.numa is not None else 0
    return len(unit.id) + len(_REPLICA) + len(str(count)) + _DEVICE_BYTES + numa
