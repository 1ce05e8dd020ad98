"""How the tenants of one GPU are kept apart, as the plugin sees it.

The plugin asks an `Isolation` what units there are, what is wrong with them, what people should know of them and what a
container gets beside its GPU. `mps` and `vgpu` have one each; `Unconfined` here keeps nobody apart.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from plugwright.errors import PluginError
from plugwright.model import Mount
from plugwright.plugins.nvidia import listing, sharing
from plugwright.plugins.nvidia.sharing import Share, Unit

__all__ = ["NOT_CONFINED", "Extras", "Isolation", "Unconfined", "by_device", "check_most", "memory_env", "share_facts"]

NOT_CONFINED = "not confined"


@dataclass(frozen=True, slots=True)
class Extras:
    """What a container gets beside its GPUs. `limits` are those of its env that a tenant must not be able to change."""

    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    limits: Mapping[str, str] = field(default_factory=dict, hash=False)
    mounts: tuple[Mount, ...] = ()


class Isolation(Protocol):
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


class Unconfined:
    """Whole devices, and time-slicing: tenants take turns, and each one may use all the memory."""

    def __init__(self, resource: str, share: Share | None) -> None:
        self._resource, self._share = resource, share

    def units(self, whole: Sequence[Unit]) -> list[Unit]:
        listing.check(self._resource, whole, self._share)
        return sharing.shared(whole, self._share)

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
