"""GPUs and accelerators with standard kernel nodes: /dev/dri, /dev/accel, and AMD's /dev/kfd.

Identified by PCI address: the numbers of cards and render nodes change between boots.

An AMD GPU in a partition mode is one PCI function, which is its first partition, plus a platform device `amdgpu_xcp_…`
for each further partition. The kernel's compute driver (KFD) knows the GPU and the number of each partition.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from plugwright.plugins.generic import hardware
from plugwright.plugins.generic.family import SelectorFamily
from plugwright.plugins.generic.hardware import HostPath, PciDriverFilter, Unit, function_behind
from plugwright.sdk import sysfs
from plugwright.sdk.hotplug import Uevent
from plugwright.sdk.sysfs import Host, PciFunction

__all__ = ["FAMILY", "DrmFilter", "DrmSelector"]

_KFD = "/dev/kfd"
_AMD, _AMD_DRIVER = "1002", "amdgpu"
_PARTITION = "amdgpu_xcp"
_CLASSES = ("drm", "accel")


class DrmFilter(PciDriverFilter, frozen=True):
    """GPUs and accelerators with nodes in /dev/dri or /dev/accel; AMD GPUs also get /dev/kfd.

    `nodes`: `render`, `card`, `accel`, `kfd`.
    """

    nodes: tuple[Literal["render", "card", "accel", "kfd"], ...] = ("render", "card", "accel", "kfd")


class DrmSelector(msgspec.Struct, frozen=True):
    filters: Sequence[DrmFilter]

    def find(self, host: Host) -> list[Unit]:
        units: dict[str, Unit] = {}
        devices = _devices(host)
        partitions = _partitions(host) if any(map(_is_partition, devices)) else {}
        for wanted in self.filters:
            for device in devices:
                function, number = function_behind(device), ""
                if function is None and _is_partition(device):
                    function, number = _parent(device, partitions)
                if wanted.accepts_function(function) and not _has_virtual_functions(function):
                    unit = _unit(host, device, function, wanted, number)
                    units.setdefault(unit.id, unit)
        return [units[unit_id] for unit_id in sorted(units)]

    def directories(self, host: Host) -> Iterable[Path]:
        return [host.dev, host.dev / "dri", host.dev / "accel"]

    def concerns(self, event: Uevent) -> bool:
        return event.subsystem in ("drm", "accel", "kfd", "pci")


FAMILY = SelectorFamily(DrmFilter | list[DrmFilter], lambda filters, options: DrmSelector(filters))


def _devices(host: Host) -> list[Path]:
    """The devices behind cards, render nodes and accelerators, each once."""
    directories: dict[Path, None] = {}
    for name in _CLASSES:
        for node in sysfs.entries(host.sys / "class" / name):
            if node.joinpath("dev").exists() and node.joinpath("device").exists():
                directories.setdefault(sysfs.real(node.joinpath("device")))
    return list(directories)


def _has_virtual_functions(function: PciFunction | None) -> bool:
    """Whether a physical function has virtual functions, which are allocated in its place."""
    return function is not None and sysfs.attribute(function.directory, "sriov_numvfs") not in ("", "0")


def _is_partition(device: Path) -> bool:
    return device.name.startswith(_PARTITION)


def _partitions(host: Host) -> dict[str, tuple[PciFunction, str]]:
    """By the name of a partition's render node, its GPU and its number there."""
    nodes: list[tuple[str, int, int]] = []  # address, partition, render minor
    for node in sysfs.entries(host.sys / "class/kfd/kfd/topology/nodes"):
        pairs = (line.split() for line in sysfs.attribute(node, "properties").splitlines())
        values = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
        location, minor = values.get("location_id", 0), values.get("drm_render_minor", 0)
        if location and minor:
            # The low 16 bits are bus, device and function; the highest 4 are the partition.
            bus, slot, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7
            nodes.append((f"{values.get('domain', 0):04x}:{bus:02x}:{slot:02x}.{function}", location >> 28, minor))
    found: dict[str, tuple[PciFunction, str]] = {}
    counts: Counter[str] = Counter()
    for address, partition, minor in sorted(nodes):
        directory = host.sys / "bus/pci/devices" / address
        if directory.exists():  # a kernel that does not number partitions lists them in the order of their nodes
            found[f"renderD{minor}"] = sysfs.pci_function(directory), str(partition or counts[address])
        counts[address] += 1
    return found


def _parent(device: Path, partitions: Mapping[str, tuple[PciFunction, str]]) -> tuple[PciFunction, str]:
    """The GPU and number of a partition; if KFD does not know it, at least its vendor and driver."""
    for node in sysfs.entries(device / "drm"):
        if node.name in partitions:
            return partitions[node.name]
    return PciFunction("", device, _AMD, "", "", _AMD_DRIVER), ""


def _unit(host: Host, device: Path, function: PciFunction | None, wanted: DrmFilter, number: str = "") -> Unit:
    """The unit of a device; `number` is the partition's number in its GPU."""
    nodes = [node.path for name in _CLASSES for node in sysfs.nodes_below(device / name)]
    paths = sorted(
        (path for path in nodes if _kind(path) in wanted.nodes), key=lambda path: (_kind(path) == "card", path)
    )
    if function is not None and function.vendor == _AMD and "kfd" in wanted.nodes and host.has(_KFD):
        paths.append(_KFD)
    pci = function.address if function else ""
    return Unit(
        id=hardware.stable_id(pci, number) if device.name == pci or number else hardware.stable_id(device.name),
        paths=tuple(map(HostPath, paths)),
        facts={
            "pci": pci,
            "vendor": function.vendor if function else "",
            "device": function.device if function else "",
            "driver": function.driver if function else sysfs.link_name(device, "driver"),
            "name": device.name,
            "partition": number,
        },
        numa=sysfs.numa_nodes(function.directory if number and function else device),
        fault="" if paths else "no node in /dev",
        directory=device,
    )


def _kind(path: str) -> str:
    name = path.rpartition("/")[2]
    return next((kind for kind in ("render", "card", "accel") if name.startswith(kind)), "")
