"""PCI functions: network cards and their virtual functions, what is given to user space (vfio, uio), mediated devices.

Known by their addresses. Which nodes a function has is `pci_nodes`' business, what SR-IOV means `virtual_functions`'.

The nodes of a PCI function: those of the user-space drivers (vfio, uio), of RDMA, and of whatever drives it.

SR-IOV: which physical function a virtual one belongs to, and which of them an operator means. Mostly pure.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plugwright.errors import InvalidValue
from plugwright.plugins.generic import hardware
from plugwright.plugins.generic.hardware import Member, PciFilter, Unit, matches, pattern
from plugwright.plugins.generic.safety import carriers
from plugwright.sdk import sysfs
from plugwright.sdk.hotplug import Uevent
from plugwright.sdk.sysfs import Host, PciFunction

__all__ = [
    "FunctionFilter",
    "Nodes",
    "Parent",
    "PciSelector",
    "called_for",
    "group_partners",
    "has_rdma",
    "interfaces",
    "is_divided",
    "mediated",
    "of",
    "parse",
    "rdma",
    "takes",
    "vhost",
]

_CONTAINER = "/dev/vfio/vfio"
_RDMA_CM = "/dev/infiniband/rdma_cm"
_VHOST = {"net-mount": "/dev/vhost-net", "tun-mount": "/dev/net/tun"}


@dataclass(frozen=True, slots=True)
class Nodes:
    """What a container gets; `details` are told to it; `by_group`: all functions of an IOMMU group go together."""

    members: tuple[Member, ...] = ()
    details: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    fault: str = ""
    by_group: bool = False

    def joined(self, other: "Nodes") -> "Nodes":
        return Nodes(
            (*self.members, *other.members),
            {**self.details, **other.details},
            self.fault or other.fault,
            self.by_group or other.by_group,
        )


def called_for(function: PciFunction) -> Sequence[str]:
    """What the driver calls for; a network card's own nodes are for those who ask for RDMA."""
    if "vfio" in function.driver:
        return ("vfio",)
    if "uio" in function.driver:
        return ("uio",)
    return () if function.class_code.startswith("02") else ("all",)


def of(host: Host, function: PciFunction, kinds: Sequence[str]) -> Nodes:
    makers = {"vfio": _vfio, "iommufd": _iommufd, "uio": _uio, "all": _every}
    found = Nodes()
    for kind in kinds:
        found = found.joined(makers[kind](host, function))
    return found


def has_rdma(function: PciFunction) -> bool:
    return bool(sysfs.entries(function.directory / "infiniband"))


def rdma(host: Host, function: PciFunction) -> Nodes:
    paths = [node.path for node in sysfs.nodes_below(function.directory) if node.subsystem.startswith("infiniband")]
    if host.has(_RDMA_CM):
        paths.append(_RDMA_CM)
    named = {name: path for path in paths for name in ("uverbs", "umad", "issm", "rdma_cm") if f"/{name}" in path}
    adapters = [each.name for each in sysfs.entries(function.directory / "infiniband")]
    details = {"rdma": {**named, "rdma_dev": ",".join(adapters)}}
    return Nodes(tuple(map(Member, paths)), details, "" if "uverbs" in named else "no uverbs node")


def vhost() -> Nodes:
    return Nodes(tuple(map(Member, _VHOST.values())), {"vhost": _VHOST})


def group_partners(host: Host, function: PciFunction) -> list[str]:
    """All functions of the IOMMU group, ours among them: the kernel gives them to one user only."""
    group = host.sys / "kernel" / "iommu_groups" / function.iommu_group / "devices"
    partners = [each for each in sysfs.entries(group) if sysfs.link_name(each, "driver") == function.driver]
    return sorted(each.name for each in partners) or [function.address]


def mediated(host: Host, function: PciFunction) -> list[Unit]:
    """The mediated devices that the function carries, known by their UUIDs."""
    every = [sysfs.real(each) for each in sysfs.entries(host.sys / "bus" / "mdev" / "devices")]
    return [_mediated(host, function, each) for each in every if each.parent == function.directory]


def _mediated(host: Host, function: PciFunction, directory: Path) -> Unit:
    kind = directory.joinpath("mdev_type")
    model = sysfs.attribute(kind, "name") or sysfs.link_name(directory, "mdev_type")
    nodes = _group_nodes(host, sysfs.link_name(directory, "iommu_group"))
    return Unit(
        id=hardware.stable(directory.name),
        members=nodes.members,
        facts={"uuid": directory.name, "model": model, "pci": function.address, "vendor": function.vendor},
        numa=sysfs.numa_nodes(directory),
        fault=nodes.fault,
        directory=directory,
        details={"generic": {"deviceID": directory.name}, **nodes.details},
    )


def _vfio(host: Host, function: PciFunction) -> Nodes:
    return _group_nodes(host, function.iommu_group)


def _group_nodes(host: Host, group: str) -> Nodes:
    if not group:
        return Nodes(fault="in no IOMMU group")
    inside = f"/dev/vfio/{group}"
    unprotected = sysfs.attribute(host.sys / "kernel" / "iommu_groups" / group, "name") == "vfio-noiommu"
    outside = f"/dev/vfio/noiommu-{group}" if unprotected else inside
    members = (Member(_CONTAINER), Member(outside, container_path=inside))
    return Nodes(members, {"vfio": {"mount": _CONTAINER, "dev-mount": inside}}, by_group=True)


def _iommufd(host: Host, function: PciFunction) -> Nodes:
    names = [each.name for each in sysfs.entries(function.directory / "vfio-dev")]
    if not names:
        return Nodes(fault="no vfio device: is vfio-pci bound, with IOMMUFD?")
    path = f"/dev/vfio/devices/{names[0]}"
    return Nodes((Member("/dev/iommu"), Member(path)), {"vfio": {"mount": "/dev/iommu", "dev-mount": path}}, "", True)


def _uio(host: Host, function: PciFunction) -> Nodes:
    paths = [f"/dev/{each.name}" for each in sysfs.entries(function.directory / "uio")]
    if not paths:
        return Nodes(fault="no uio node")
    return Nodes(tuple(map(Member, paths)), {"uio": {"mount": paths[0]}})


def _every(host: Host, function: PciFunction) -> Nodes:
    paths = [node.path for node in sysfs.nodes_below(function.directory)]
    return Nodes(tuple(map(Member, paths)), fault="" if paths else "no node in /dev")


_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True, slots=True)
class Parent:
    """A physical function, by interface name or address, and which of its virtual ones; None for all."""

    name: str
    indexes: frozenset[int] | None = None


def parse(text: str) -> Parent:
    """`ens1f0`, `ens1f0#0-3,7`, `0000:3b:00.0#0`."""
    name, mark, ranges = text.partition("#")
    if not name:
        raise InvalidValue(f"a physical function looks like ens1f0 or ens1f0#0-3,7, not {text!r}")
    return Parent(name, _indexes(text, ranges) if mark else None)


def takes(parents: Sequence[Parent], function: PciFunction) -> bool:
    """Whether the function is one of those meant; the first that names its parent decides."""
    physical = function.directory.joinpath("physfn")
    above = sysfs.real(physical) if function.is_virtual else function.directory
    names = [above.name, *interfaces(above)]
    for parent in parents:
        if any(pattern(parent.name.lower())(name.lower()) for name in names):
            return parent.indexes is None or _index(above, function) in parent.indexes
    return False


def is_divided(function: PciFunction) -> bool:
    """A physical function with virtual ones; it is theirs now."""
    return sysfs.attribute(function.directory, "sriov_numvfs") not in ("", "0")


def interfaces(directory: Path) -> list[str]:
    """Of the function itself, or of the virtio device that it carries."""
    return sorted(
        each.name for each in (*sysfs.matching(directory, "net/*"), *sysfs.matching(directory, "virtio*/net/*"))
    )


def _index(above: Path, function: PciFunction) -> int:
    for link in sysfs.entries(above):
        if link.name.startswith("virtfn") and sysfs.real(link) == function.directory:
            return int(link.name.removeprefix("virtfn"))
    return -1


def _indexes(text: str, ranges: str) -> frozenset[int]:
    found: set[int] = set()
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or last > 65535:
            raise InvalidValue(f"virtual functions look like 0-3,7, not {ranges!r} in {text!r}")
        found.update(range(first, last + 1))
    return frozenset(found)


_LINKS = {"1": "ethernet", "32": "infiniband"}  # ARPHRD_…
_LINK_CLASSES = {"0200": "ethernet", "0207": "infiniband"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionFilter:
    """`nodes`: `vfio`, `iommufd`, `uio` or `all`; empty for what the driver calls for. The rest: empty means any."""

    pci: PciFilter = field(default_factory=PciFilter)
    class_code: Sequence[str] = ()
    acpi_index: Sequence[str] = ()
    parents: Sequence[Parent] = ()
    virtual: bool | None = None
    mdev: Sequence[str] = ()
    link_type: Sequence[str] = ()
    pkey: Sequence[str] = ()
    rdma: bool = False
    vhost: bool = False
    nodes: Sequence[str] = ()

    def accepts(self, function: PciFunction) -> bool:
        return (
            self.pci.accepts(function)
            and (not self.class_code or function.class_code.startswith(tuple(_digits(self.class_code))))
            and matches(self.acpi_index, sysfs.attribute(function.directory, "acpi_index"))
            and (self.virtual is None or self.virtual == function.is_virtual)
            and (not self.parents or takes(self.parents, function))
            and (not self.link_type or bool(set(self.link_type) & _link_types(function)))
            and (not self.pkey or _pkey(function) in {_number(each) for each in self.pkey})
            and (not self.rdma or has_rdma(function))
        )


@dataclass(frozen=True, slots=True)
class PciSelector:
    filters: Sequence[FunctionFilter]

    def find(self, host: Host) -> list[Unit]:
        functions = [each for each in sysfs.pci_functions(host.sys) if not _is_left_out(each)]
        routes = carriers(host)
        found: dict[str, Unit] = {}
        for wanted in self.filters:
            for function in functions:
                if wanted.accepts(function):
                    for unit in _units(host, function, wanted, routes):
                        found.setdefault(unit.id, unit)
        return [found[name] for name in sorted(found)]

    def directories(self, host: Host) -> Iterable[Path]:
        return [host.dev / "vfio"]

    def concerns(self, event: Uevent) -> bool:
        return event.subsystem in ("pci", "vfio", "vfio-dev", "uio", "mdev", "net", "infiniband_verbs", "iommu")


def _is_left_out(function: PciFunction) -> bool:
    """What nobody means: bridges, and network cards whose virtual functions are what is handed out."""
    return function.class_code.startswith("06") or is_divided(function)


def _units(host: Host, function: PciFunction, wanted: FunctionFilter, routes: set[str]) -> list[Unit]:
    if wanted.mdev:
        return [unit for unit in mediated(host, function) if matches(wanted.mdev, unit.facts["model"])]
    return [_unit(host, function, wanted, routes)]


def _unit(host: Host, function: PciFunction, wanted: FunctionFilter, routes: set[str]) -> Unit:
    nodes = of(host, function, wanted.nodes or called_for(function))
    if wanted.rdma:
        nodes = nodes.joined(rdma(host, function))
    if wanted.vhost:
        nodes = nodes.joined(vhost())
    names = interfaces(function.directory)
    carried = sorted(set(names) & routes)
    partners = group_partners(host, function) if nodes.by_group else [function.address]
    return Unit(
        id=hardware.stable(partners[0]),
        members=nodes.members,
        facts={
            "pci": ",".join(partners),
            "vendor": function.vendor,
            "device": function.device,
            "class": function.class_code,
            "driver": function.driver,
            "interface": names[0] if names else "",
            "rdma": ",".join(each.name for each in sysfs.entries(function.directory / "infiniband")),
        },
        numa=sysfs.numa_nodes(function.directory),
        fault=nodes.fault if function.driver else "no driver is bound",
        danger=f"{carried[0]} carries the node's default route" if carried else "",
        directory=function.directory,
        # In exclusive mode the adapter, and with it what is asked for here, is not seen while a pod has it.
        anchor=function.directory if wanted.rdma else None,
        details={"generic": {"deviceID": function.address}, **nodes.details},
    )


def _digits(codes: Sequence[str]) -> list[str]:
    return [each.lower().removeprefix("0x") for each in codes]


def _link_types(function: PciFunction) -> set[str]:
    """By its interfaces; by its class where a user-space driver has it."""
    kinds = {_LINKS.get(sysfs.attribute(each, "type"), "") for each in sysfs.entries(function.directory / "net")}
    return kinds or {_LINK_CLASSES.get(function.class_code[:4], "")}


def _pkey(function: PciFunction) -> int | None:
    for adapter in sysfs.entries(function.directory / "infiniband"):
        return _number(sysfs.attribute(adapter, "ports/1/pkeys/0"))
    return None


def _number(text: str) -> int | None:
    try:
        return int(text, 16)
    except ValueError:
        return None
