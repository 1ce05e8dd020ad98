"""Which of a machine's devices a resource offers.

A whole GPU or a MIG device is in at most one resource: `overlaps` finds those that two ask for.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from plugwright.errors import PluginError
from plugwright.plugins.nvidia import sharing
from plugwright.plugins.nvidia.choices import Mig
from plugwright.plugins.nvidia.driver import Gpu
from plugwright.plugins.nvidia.sharing import Unit

__all__ = ["Mig", "Pattern", "Selection", "chosen", "occupied", "overlaps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """What devices look like; what is empty is not asked. One of several values is enough."""

    index: tuple[str, ...] = ()  # 0, or 0:1 for a MIG device
    uuid: tuple[str, ...] = ()
    pci: tuple[str, ...] = ()
    model: tuple[str, ...] = ()  # with * and ?
    profile: tuple[str, ...] = ()  # of a MIG device, with * and ?
    least: int = 0  # bytes of memory
    most: int = 0

    def answers(self, unit: Unit) -> list[bool]:
        """Whether the device is as each thing that is asked says."""
        gpu, mig = unit.gpu, unit.mig
        asked = [
            (self.index, bool({unit.index, str(gpu.index)} & set(self.index))),
            (self.uuid, bool({unit.uuid, gpu.uuid} & set(self.uuid))),
            (self.pci, _pci(gpu.pci) in map(_pci, self.pci)),
            (self.model, _matches(gpu.model, self.model)),
            (self.profile, mig is not None and _matches(mig.profile, self.profile)),
            (self.least, unit.memory >= self.least),
            (self.most, unit.memory <= self.most),
        ]
        return [answer for thing, answer in asked if thing]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Devices that are all that `include` asks, and nothing that `exclude` names."""

    include: Pattern = Pattern()
    exclude: Pattern = Pattern()
    mig: Mig = Mig.NONE

    def takes(self, unit: Unit) -> bool:
        if self.mig is Mig.MIXED and unit.mig is not None and not self.include.profile:
            return False  # they are other resources' by their profiles
        return all(self.include.answers(unit)) and not any(self.exclude.answers(unit))


def chosen(gpus: Iterable[Gpu], selection: Selection) -> list[Unit]:
    """The devices that a resource offers, in order of their indexes."""
    found = [unit for gpu in gpus for unit in _parts(gpu, selection.mig) if selection.takes(unit)]
    if selection.mig is Mig.SINGLE:
        _check_alike(found)
    return found


def overlaps(gpus: Sequence[Gpu], selections: Mapping[str, Selection]) -> dict[str, list[str]]:
    """The devices that more than one resource asks for, and which; a part of a GPU counts as the GPU does."""
    askers: dict[str, list[str]] = {}
    for resource, selection in selections.items():
        taken = [unit for gpu in gpus for unit in _parts(gpu, selection.mig) if selection.takes(unit)]
        for uuid in sorted({each for unit in taken for each in occupied(unit)}):
            askers.setdefault(uuid, []).append(resource)
    return {uuid: resources for uuid, resources in askers.items() if len(resources) > 1}


def occupied(unit: Unit) -> list[str]:
    """A whole GPU in MIG mode is all of its parts."""
    return [unit.uuid] if unit.mig or not unit.gpu.mig else [mig.uuid for mig in unit.gpu.mig]


def _parts(gpu: Gpu, mig: Mig) -> list[Unit]:
    if mig is Mig.NONE or not gpu.mig_enabled:
        return [sharing.whole(gpu)]
    return [sharing.whole(gpu, each) for each in gpu.mig]


def _check_alike(units: list[Unit]) -> None:
    kinds = {unit.mig.profile if unit.mig else "whole": unit for unit in reversed(units)}
    if len(kinds) > 1:
        named = ", ".join(f"{unit.index} is {kind}" for kind, unit in sorted(kinds.items()))
        raise PluginError(f"with `mig: single` all devices are alike, and these are not: {named}")


def _matches(text: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(text.lower(), pattern.lower()) for pattern in patterns)


def _pci(address: str) -> str:
    """`00000000:3B:00.0`, as NVIDIA's tools write it, and `3b:00.0` are the same as `0000:3b:00.0`."""
    domain, _, rest = address.lower().rpartition(":")[0].rpartition(":")
    device = address.lower().rpartition(":")[2]
    return f"{int(domain or '0', 16):04x}:{rest}:{device}" if _is_hex(domain) else address.lower()


def _is_hex(text: str) -> bool:
    return all(letter in "0123456789abcdef" for letter in text)
