"""What a container is offered of the GPUs: whole ones, MIG devices, or shares of either.

A unit is what the kubelet counts, under an id that says all about it. Shares are one device under several ids; who
keeps the tenants apart depends on how it is shared, and time-slicing keeps nobody apart. MPS and vgpu have modules of
their own.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from plugwright.errors import ConfigError
from plugwright.plugins.nvidia.gpus import Gpu, MigDevice
from plugwright.plugins.nvidia.words import By

__all__ = ["By", "Share", "Unit", "replicas_of", "share", "shared", "whole"]

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
