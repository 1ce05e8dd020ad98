"""What a container is offered of the GPUs: whole ones, MIG devices, or shares of either.

A unit is what the kubelet counts, under an id that says all about it. Shares are one device under several ids; who
keeps the tenants apart depends on how it is shared, and time-slicing keeps nobody apart. MPS and vgpu have modules of
their own.

How the tenants of one GPU are kept apart, as the plugin sees it.

The plugin asks an `SharingBackend` what units there are, what is wrong with them, what people should know of them and
what a container gets beside its GPU. `mps` and `vgpu` have one each; `TimeSlicing` here keeps nobody apart.

How many units fit into what the kubelet takes: worked out before they are made, and refused with what would fit.

Units of a MiB each are tempting, and every one of them is a line in one message of at most 4 MiB.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from plugwright.errors import ConfigError, PluginError
from plugwright.model import Mount
from plugwright.plugins.nvidia.choices import By
from plugwright.plugins.nvidia.driver import Gpu, MigDevice

__all__ = [
    "NOT_CONFINED",
    "By",
    "Extras",
    "Share",
    "SharingBackend",
    "TimeSlicing",
    "Unit",
    "by_device",
    "check",
    "check_most",
    "memory_env",
    "replicas_of",
    "share",
    "share_facts",
    "shared",
    "whole",
]

_REPLICA = "::"  # as NVIDIA's plugin writes it


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How a device is cut. A size that is 0 is worked out from the others; `most` units per container, 0 for any."""

    by: By = By.TIME_SLICING
    replicas: int = 0
    memory: int = 0  # bytes of one unit
    percent: int = 0  # of the processors, for one unit
    most: int = 0

    def __post_init__(self) -> None:
        if not (self.replicas or self.memory or self.percent):
            raise ConfigError("a share says how a GPU is cut: replicas, memory or percent")
        if self.replicas < 0 or self.memory < 0 or not 0 <= self.percent <= 100 or self.most < 0:
            raise ConfigError("replicas, memory and percent of a share are positive, and percent at most 100")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One thing the kubelet counts: a device, or a share of one. `memory` and `percent` are what it stands for."""

    id: str
    gpu: Gpu
    mig: MigDevice | None = None
    memory: int = 0
    percent: int = 100
    replica: int | None = None  # None: nobody else has the device

    @property
    def uuid(self) -> str:
        """The device that the container sees."""
        return self.mig.uuid if self.mig else self.gpu.uuid

    @property
    def index(self) -> str:
        """As the NVIDIA tools write it: `0`, or `0:1` for a MIG device."""
        return f"{self.gpu.index}:{self.mig.index}" if self.mig else str(self.gpu.index)


def whole(gpu: Gpu, mig: MigDevice | None = None) -> Unit:
    """A device that one container has for itself."""
    return Unit(id=mig.uuid if mig else gpu.uuid, gpu=gpu, mig=mig, memory=mig.memory if mig else gpu.memory)


def share(unit: Unit, how: Share) -> list[Unit]:
    """The shares of one whole device."""
    count = replicas_of(unit, how)
    return [
        replace(
            unit,
            id=f"{unit.id}{_REPLICA}{number}",
            memory=how.memory or unit.memory // count,
            percent=how.percent or 100 // count,
            replica=number,
        )
        for number in range(count)
    ]


def replicas_of(unit: Unit, how: Share) -> int:
    """How often the device is offered: as often as told, else as often as the given size fits into it."""
    if how.replicas:
        return how.replicas
    fits = [unit.memory // how.memory] if how.memory else []
    fits += [100 // how.percent] if how.percent else []
    return min(fits)


def shared(units: Iterable[Unit], how: Share | None) -> list[Unit]:
    """Every unit on offer, in order."""
    return [part for unit in units for part in (share(unit, how) if how else [unit])]


_LIMIT = 4 * 2**20  # bytes of one gRPC message, as the kubelet has it
_EACH = 13  # bytes around an id: its lengths and tags, and the word Healthy
_UNHEALTHY = 2  # bytes more, when all are Unhealthy
_NUMA = 6
_MIB = 2**20


def check(resource: str, whole: Sequence[Unit], share: Share | None, suffix: int = 0) -> None:
    """PluginError when the units would not fit; `suffix`: how much longer their ids are than the numbers in them."""
    if share is None:
        return
    counts = [replicas_of(unit, share) for unit in whole]
    size = sum(count * _bytes(unit, count, suffix) for unit, count in zip(whole, counts, strict=True))
    if size > _LIMIT:
        count = sum(counts)
        fitting = _LIMIT * count // size
        raise PluginError(
            f"{resource}: {count:,} units are {size:,} bytes, and the kubelet takes {_LIMIT:,}, about {fitting:,} "
            f"units: {_proposal(share, -(-count // max(1, fitting)), max(counts))}"
        )


def _bytes(unit: Unit, count: int, suffix: int) -> int:
    numa = _NUMA if unit.gpu.numa is not None else 0
    return len(unit.id) + len("::") + len(str(count)) + suffix + _EACH + _UNHEALTHY + numa


def _proposal(share: Share, factor: int, most: int) -> str:
    """What to write instead, so that there are `factor` times fewer."""
    if share.memory and not share.replicas:
        return f"try memory: {-(-share.memory * factor // _MIB)}Mi"
    return f"try replicas: {max(1, most // factor)}"


NOT_CONFINED = "not confined"


@dataclass(frozen=True, slots=True)
class Extras:
    """What a container gets beside its GPUs. `limits` are those of its env that a tenant must not be able to change."""

    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    limits: Mapping[str, str] = field(default_factory=dict, hash=False)
    mounts: tuple[Mount, ...] = ()


class SharingBackend(Protocol):
    def units(self, whole: Sequence[Unit]) -> list[Unit]:
        """Every unit on offer of these devices."""
        ...

    def fault(self, unit: Unit) -> str:
        """Why the unit cannot be used now, apart from what is wrong with its GPU; empty if it can."""
        ...

    def attributes(self, unit: Unit) -> Mapping[str, object]: ...

    def extras(self, units: Sequence[Unit]) -> Extras:
        """For the container that gets `units`; PluginError when it cannot have these together."""
        ...

    async def follow(self, changed: Callable[[], object]) -> None:
        """Calls `changed` whenever `fault` or `attributes` may answer differently; may end when they never will."""
        ...


class TimeSlicing:
    """Whole devices, and time-slicing: tenants take turns, and each one may use all the memory."""

    def __init__(self, resource: str, share: Share | None) -> None:
        self._resource, self._share = resource, share

    def units(self, whole: Sequence[Unit]) -> list[Unit]:
        check(self._resource, whole, self._share)
        return shared(whole, self._share)

    def fault(self, unit: Unit) -> str:
        return ""

    def attributes(self, unit: Unit) -> Mapping[str, object]:
        return share_facts(unit, f"time-slicing, {NOT_CONFINED}") if self._share else {}

    def extras(self, units: Sequence[Unit]) -> Extras:
        if not self._share:
            return Extras()
        check_most(self._resource, self._share.most, units)
        return Extras(env=memory_env(units))

    async def follow(self, changed: Callable[[], object]) -> None:
        return


def share_facts(unit: Unit, sharing_word: str) -> dict[str, object]:
    """What people should know of a share; `memory` is in bytes."""
    return {"memory": unit.memory, "percent": unit.percent, "sharing": sharing_word}


def memory_env(units: Sequence[Unit]) -> dict[str, str]:
    """What the container's share stands for, for each of its GPUs in their order. It binds nobody."""
    held = by_device(units).values()
    return {
        "PLUGWRIGHT_GPU_MEMORY": ",".join(str(sum(unit.memory for unit in each)) for each in held),
        "PLUGWRIGHT_GPU_PERCENT": ",".join(str(min(100, sum(unit.percent for unit in each))) for each in held),
    }


def by_device(units: Sequence[Unit]) -> dict[str, list[Unit]]:
    """The units of each device, under its UUID, in the order in which a program in the container counts them."""
    found: dict[str, list[Unit]] = {}
    for unit in sorted(units, key=lambda unit: (unit.gpu.index, unit.mig.index if unit.mig else 0)):
        found.setdefault(unit.uuid, []).append(unit)
    return found


def check_most(resource: str, most: int, units: Sequence[Unit]) -> None:
    if most and len(units) > most:
        raise PluginError(f"{resource}: a container may ask for {most}, not for {len(units)}")
