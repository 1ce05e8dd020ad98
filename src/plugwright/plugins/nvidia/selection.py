"""The devices of a machine for a resource.

Only one resource can have a whole GPU or MIG device; `overlaps` finds devices selected by several.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec

from plugwright.errors import ConfigError, PluginError
from plugwright.plugins.nvidia import sharing
from plugwright.plugins.nvidia.config import MigStrategy, NvidiaConfig, NvidiaPattern
from plugwright.plugins.nvidia.driver import Gpu
from plugwright.plugins.nvidia.sharing import GpuUnit
from plugwright.sdk.device_family import byte_size

__all__ = [
    "DevicePattern",
    "Selection",
    "from_config",
    "occupied_uuids",
    "overlaps",
    "physical_names",
    "select_devices",
]

# A name in another form would silently match no device.
_INDEX = re.compile(r"[0-9]+(?::[0-9]+)?")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]+")
_PCI = re.compile(r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")


class DevicePattern(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of devices; empty properties are not compared. One matching value of several is sufficient."""

    index: tuple[str, ...] = ()  # 0, or 0:1 for a MIG device
    uuid: tuple[str, ...] = ()
    pci: tuple[str, ...] = ()
    model: tuple[str, ...] = ()  # with * and ?
    profile: tuple[str, ...] = ()  # of a MIG device, with * and ?
    least: int = 0  # bytes of memory
    most: int = 0

    def comparisons(self, unit: GpuUnit) -> list[bool]:
        """For each configured property, whether the device has it."""
        gpu, mig = unit.gpu, unit.mig
        results = [
            (self.index, bool({unit.index, str(gpu.index)} & set(self.index))),
            (self.uuid, bool({unit.uuid, gpu.uuid} & set(self.uuid))),
            (self.pci, _canonical_pci(gpu.pci) in map(_canonical_pci, self.pci)),
            (self.model, _matches(gpu.model, self.model)),
            (self.profile, mig is not None and _matches(mig.profile, self.profile)),
            (self.least, unit.memory >= self.least),
            (self.most, unit.memory <= self.most),
        ]
        return [matches for value, matches in results if value]


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Devices with all properties of `include` and none of `exclude`."""

    include: DevicePattern = DevicePattern()
    exclude: DevicePattern = DevicePattern()
    mig: MigStrategy = MigStrategy.NONE

    def selects(self, unit: GpuUnit) -> bool:
        if self.mig is MigStrategy.MIXED and unit.mig is not None and not self.include.profile:
            return False  # MIG devices belong to the resources of their profiles
        return all(self.include.comparisons(unit)) and not any(self.exclude.comparisons(unit))


def from_config(config: NvidiaConfig) -> Selection:
    """The selection of a configuration; ConfigError for an impossible name."""
    include, exclude = _pattern(config.select), _pattern(config.exclude)
    if (include.profile or exclude.profile) and config.mig is MigStrategy.NONE:
        raise ConfigError("a MIG profile can only be selected with `mig: mixed` or `mig: single`")
    return Selection(include=include, exclude=exclude, mig=config.mig)


def select_devices(gpus: Iterable[Gpu], selection: Selection) -> list[GpuUnit]:
    """The devices of a resource, in order of their indexes."""
    units = [unit for gpu in gpus for unit in _devices(gpu, selection.mig) if selection.selects(unit)]
    if selection.mig is MigStrategy.SINGLE:
        _check_single_profile(units)
    return units


def overlaps(gpus: Sequence[Gpu], selections: Mapping[str, Selection]) -> dict[str, list[str]]:
    """By UUID, the resources selecting the same device; a GPU and its own MIG devices overlap too."""
    resources_by_uuid: dict[str, list[str]] = {}
    for resource, selection in selections.items():
        units = [unit for gpu in gpus for unit in _devices(gpu, selection.mig) if selection.selects(unit)]
        for uuid in sorted({uuid for unit in units for uuid in occupied_uuids(unit)}):
            resources_by_uuid.setdefault(uuid, []).append(resource)
    return {uuid: resources for uuid, resources in resources_by_uuid.items() if len(resources) > 1}


def occupied_uuids(unit: GpuUnit) -> list[str]:
    """The UUID of the device, or of all MIG devices of a whole GPU in MIG mode."""
    return [unit.uuid] if unit.mig or not unit.gpu.mig else [mig.uuid for mig in unit.gpu.mig]


def physical_names(unit: GpuUnit) -> tuple[str, ...]:
    """The hardware behind a unit, by UUID and by PCI address; a MIG device is a part of its GPU."""
    gpu = unit.gpu
    whole = (gpu.uuid, *([_canonical_pci(gpu.pci)] if gpu.pci else []))
    if unit.mig is None:
        return (*whole, *(device.uuid for device in gpu.mig))
    return (unit.mig.uuid, *(f"{name}/{unit.mig.uuid}" for name in whole))


def _pattern(config: NvidiaPattern) -> DevicePattern:
    return DevicePattern(
        index=_names("an index must look like 0, or 0:1 for a MIG device", _INDEX, _texts(config.index)),
        uuid=_names("a UUID must begin with GPU- or MIG-", _UUID, _texts(config.uuid)),
        pci=_names("a PCI address must look like 0000:3b:00.0", _PCI, _texts(config.pci)),
        model=_texts(config.model),
        profile=_texts(config.profile),
        least=byte_size(config.least),
        most=byte_size(config.most),
    )


def _texts(values: int | str | Iterable[int | str]) -> tuple[str, ...]:
    return tuple(map(str, [values] if isinstance(values, int | str) else values))


def _names(rule: str, form: re.Pattern[str], names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not form.fullmatch(name):
            raise ConfigError(f"{rule}, got {name!r}")
    return names


def _devices(gpu: Gpu, mig: MigStrategy) -> list[GpuUnit]:
    if mig is MigStrategy.NONE or not gpu.mig_enabled:
        return [sharing.whole_device(gpu)]
    return [sharing.whole_device(gpu, device) for device in gpu.mig]


def _check_single_profile(units: list[GpuUnit]) -> None:
    kinds = {unit.mig.profile if unit.mig else "whole": unit for unit in reversed(units)}
    if len(kinds) > 1:
        examples = ", ".join(f"{unit.index} is {kind}" for kind, unit in sorted(kinds.items()))
        raise PluginError(f"with `mig: single` all devices must have the same profile, got: {examples}")


def _matches(text: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(text.lower(), pattern.lower()) for pattern in patterns)


def _canonical_pci(address: str) -> str:
    """The canonical address: `00000000:3B:00.0`, as in NVIDIA's tools, and `3b:00.0` are the same as `0000:3b:00.0`."""
    domain, _, bus = address.lower().rpartition(":")[0].rpartition(":")
    device = address.lower().rpartition(":")[2]
    is_hexadecimal = all(letter in "0123456789abcdef" for letter in domain)
    return f"{int(domain or '0', 16):04x}:{bus}:{device}" if is_hexadecimal else address.lower()
