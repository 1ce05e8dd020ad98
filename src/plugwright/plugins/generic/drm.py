"""GPUs and accelerators with nodes of the kernel's own kind: /dev/dri, /dev/accel, and AMD's /dev/kfd.

Known by PCI address: the numbers of cards and render nodes change between boots.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plugwright.plugins.generic import hardware
from plugwright.plugins.generic.hardware import Member, PciFilter, Unit, function_behind
from plugwright.sdk import sysfs
from plugwright.sdk.hotplug import Uevent
from plugwright.sdk.sysfs import Host, PciFunction

__all__ = ["DrmFilter", "DrmSelector"]

_KFD = "/dev/kfd"
_AMD = "1002"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrmFilter:
    pci: PciFilter = field(default_factory=PciFilter)
    nodes: Sequence[str] = ("render", "card", "accel", "kfd")


@dataclass(frozen=True, slots=True)
class DrmSelector:
    filters: Sequence[DrmFilter]

    def find(self, host: Host) -> list[Unit]:
        found: dict[str, Unit] = {}
        for wanted in self.filters:
            for device in _devices(host):
                function = function_behind(device)
                if wanted.pci.accepts(function) and not _has_virtual_functions(function):
                    unit = _unit(host, device, function, wanted)
                    found.setdefault(unit.id, unit)
        return [found[name] for name in sorted(found)]

    def directories(self, host: Host) -> Iterable[Path]:
        return [host.dev, host.dev / "dri", host.dev / "accel"]

    def concerns(self, event: Uevent) -> bool:
        return event.subsystem in ("drm", "accel", "kfd", "pci")


def _devices(host: Host) -> Iterator[Path]:
    """What cards, render nodes and accelerators are nodes of, each once."""
    seen: dict[Path, None] = {}
    for kind in ("drm", "accel"):
        for node in sysfs.entries(host.sys / "class" / kind):
            if node.joinpath("dev").exists() and node.joinpath("device").exists():
                seen.setdefault(sysfs.real(node.joinpath("device")))
    yield from seen


def _has_virtual_functions(function: PciFunction | None) -> bool:
    """A physical function that has been divided is not for containers; its parts are."""
    return function is not None and sysfs.attribute(function.directory, "sriov_numvfs") not in ("", "0")


def _unit(host: Host, device: Path, function: PciFunction | None, wanted: DrmFilter) -> Unit:
    nodes = [node.path for kind in ("drm", "accel") for node in sysfs.nodes_below(device / kind)]
    kept = sorted(
        (path for path in nodes if _kind(path) in wanted.nodes), key=lambda path: (_kind(path) == "card", path)
    )
    amd = (function.vendor == _AMD) if function else device.name.startswith("amdgpu_xcp")
    if amd and "kfd" in wanted.nodes and host.has(_KFD):
        kept.append(_KFD)
    pci = function.address if function else ""
    return Unit(
        id=hardware.stable(pci if device.name == pci else device.name),
        members=tuple(Member(path) for path in kept),
        facts={
            "pci": pci,
            "vendor": function.vendor if function else "",
            "device": function.device if function else "",
            "driver": function.driver if function else sysfs.link_name(device, "driver"),
            "name": device.name,
        },
        numa=sysfs.numa_nodes(device),
        fault="" if kept else "no node in /dev",
        directory=device,
    )


def _kind(path: str) -> str:
    name = path.rpartition("/")[2]
    return next((kind for kind in ("render", "card", "accel") if name.startswith(kind)), "")
