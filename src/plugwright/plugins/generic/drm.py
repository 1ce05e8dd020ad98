"""GPUs and accelerators with nodes of the kernel's own kind: /dev/dri, /dev/accel, and AMD's /dev/kfd.

Identified by PCI address: the numbers of cards and render nodes change between boots.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from plugwright.plugins.generic import hardware
from plugwright.plugins.generic.family import SelectorFamily
from plugwright.plugins.generic.hardware import HostPath, PciDriverFilter, Unit, function_behind
from plugwright.sdk import sysfs
from plugwright.sdk.hotplug import Uevent
from plugwright.sdk.sysfs import Host, PciFunction

__all__ = ["FAMILY", "DrmFilter", "DrmSelector"]

_KFD = "/dev/kfd"
_AMD = "1002"
_CLASSES = ("drm", "accel")


class DrmFilter(PciDriverFilter, frozen=True):
    """GPUs and accelerators with nodes under /dev/dri or /dev/accel; AMD's get /dev/kfd too.

    `nodes`: `render`, `card`, `accel`, `kfd`.
    """

    nodes: tuple[Literal["render", "card", "accel", "kfd"], ...] = ("render", "card", "accel", "kfd")


@dataclass(frozen=True, slots=True)
class DrmSelector:
    filters: Sequence[DrmFilter]

    def find(self, host: Host) -> list[Unit]:
        units: dict[str, Unit] = {}
        for wanted in self.filters:
            for device in _devices(host):
                function = function_behind(device)
                if wanted.accepts_function(function) and not _has_virtual_functions(function):
                    unit = _unit(host, device, function, wanted)
                    units.setdefault(unit.id, unit)
        return [units[unit_id] for unit_id in sorted(units)]

    def directories(self, host: Host) -> Iterable[Path]:
        return [host.dev, host.dev / "dri", host.dev / "accel"]

    def concerns(self, event: Uevent) -> bool:
        return event.subsystem in ("drm", "accel", "kfd", "pci")


FAMILY = SelectorFamily(DrmFilter | list[DrmFilter], lambda filters, options: DrmSelector(filters))


def _devices(host: Host) -> list[Path]:
    """The devices that cards, render nodes and accelerators belong to, each once."""
    directories: dict[Path, None] = {}
    for name in _CLASSES:
        for node in sysfs.entries(host.sys / "class" / name):
            if node.joinpath("dev").exists() and node.joinpath("device").exists():
                directories.setdefault(sysfs.real(node.joinpath("device")))
    return list(directories)


def _has_virtual_functions(function: PciFunction | None) -> bool:
    """A physical function with virtual ones is not for containers; the virtual ones are."""
    return function is not None and sysfs.attribute(function.directory, "sriov_numvfs") not in ("", "0")


def _unit(host: Host, device: Path, function: PciFunction | None, wanted: DrmFilter) -> Unit:
    nodes = [node.path for name in _CLASSES for node in sysfs.nodes_below(device / name)]
    paths = sorted(
        (path for path in nodes if _kind(path) in wanted.nodes), key=lambda path: (_kind(path) == "card", path)
    )
    is_amd = (function.vendor == _AMD) if function else device.name.startswith("amdgpu_xcp")
    if is_amd and "kfd" in wanted.nodes and host.has(_KFD):
        paths.append(_KFD)
    pci = function.address if function else ""
    return Unit(
        id=hardware.stable_id(pci if device.name == pci else device.name),
        paths=tuple(map(HostPath, paths)),
        facts={
            "pci": pci,
            "vendor": function.vendor if function else "",
            "device": function.device if function else "",
            "driver": function.driver if function else sysfs.link_name(device, "driver"),
            "name": device.name,
        },
        numa=sysfs.numa_nodes(device),
        fault="" if paths else "no node in /dev",
        directory=device,
    )


def _kind(path: str) -> str:
    name = path.rpartition("/")[2]
    return next((kind for kind in ("render", "card", "accel") if name.startswith(kind)), "")
