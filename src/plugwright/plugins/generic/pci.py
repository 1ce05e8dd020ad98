"""PCI functions: network cards and their virtual functions, functions for user space (vfio, uio), mediated devices.

Identified by address, mediated devices by UUID. A container gets the nodes of the user-space drivers, of RDMA, or of
any other bound driver.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from plugwright.errors import InvalidValue
from plugwright.plugins.generic import hardware
from plugwright.plugins.generic.family import SelectorFamily
from plugwright.plugins.generic.hardware import HostPath, LinkType, PciDriverFilter, Unit, as_list, matches, pattern
from plugwright.plugins.generic.safety import default_route_interfaces
from plugwright.sdk import sysfs
from plugwright.sdk.device_family import Texts
from plugwright.sdk.hotplug import Uevent
from plugwright.sdk.sysfs import Host, PciFunction

__all__ = ["FAMILY", "PciFunctionFilter", "PciSelector", "PhysicalFunction", "parse_physical_function"]

FunctionNode = Literal["vfio", "iommufd", "uio", "all"]

_VFIO_CONTAINER = "/dev/vfio/vfio"
_RDMA_CM = "/dev/infiniband/rdma_cm"
_VHOST = {"net-mount": "/dev/vhost-net", "tun-mount": "/dev/net/tun"}
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_LINK_CLASSES = {"0200": "ethernet", "0207": "infiniband"}


class PciFunctionFilter(PciDriverFilter, frozen=True):
    """PCI functions. `class` is one to six hexadecimal digits, a prefix as in `lspci -n`: `02` is any network device.

    `pf`: only virtual functions of these physical functions, by interface name or address, optionally limited to some:
    `ens1f0`, `ens1f0#0-3,7`, `0000:3b:00.0#0`. `vf`: only virtual functions, or only others. `mdev`: instead of the
    function its mediated devices of these types. `rdma`: only with RDMA, whose nodes the container gets; `vhost`: also
    /dev/vhost-net and /dev/net/tun. `nodes`: `vfio`, `iommufd`, `uio`, or `all` nodes below the function; by default
    those required by its driver. `pkey` is like 0x8001.
    """

    class_: Texts | None = msgspec.field(name="class", default=None)
    acpi_index: Texts | None = None
    pf: Texts | None = None
    vf: bool | None = None
    mdev: Texts | None = None
    link_type: LinkType | list[LinkType] | None = None
    pkey: Texts | None = None
    rdma: bool = False
    vhost: bool = False
    nodes: list[FunctionNode] | None = None

    def __post_init__(self) -> None:
        PciDriverFilter.__post_init__(self)
        self._physical_functions()

    def accepts(self, function: PciFunction) -> bool:
        classes = tuple(code.lower().removeprefix("0x") for code in as_list(self.class_))
        return (
            self.accepts_function(function)
            and (not classes or function.class_code.startswith(classes))
            and matches(self.acpi_index, sysfs.attribute(function.directory, "acpi_index"))
            and (self.vf is None or self.vf == function.is_virtual)
            and (not self.pf or _is_named(self._physical_functions(), function))
            and (not self.link_type or bool(set(as_list(self.link_type)) & _link_types(function)))
            and (not self.pkey or _pkey(function) in {_number(pkey) for pkey in as_list(self.pkey)})
            and (not self.rdma or bool(_rdma_adapters(function)))
        )

    def _physical_functions(self) -> list["PhysicalFunction"]:
        return [parse_physical_function(text) for text in as_list(self.pf)]


class PciSelector(msgspec.Struct, frozen=True):
    filters: Sequence[PciFunctionFilter]

    def find(self, host: Host) -> list[Unit]:
        functions = [function for function in sysfs.pci_functions(host.sys) if not _is_infrastructure(function)]
        default_route = default_route_interfaces(host)
        units: dict[str, Unit] = {}
        for wanted in self.filters:
            for function in functions:
                if wanted.accepts(function):
                    for unit in _units(host, function, wanted, default_route):
                        units.setdefault(unit.id, unit)
        return [units[unit_id] for unit_id in sorted(units)]

    def directories(self, host: Host) -> Iterable[Path]:
        return [host.dev / "vfio"]

    def concerns(self, event: Uevent) -> bool:
        return event.subsystem in ("pci", "vfio", "vfio-dev", "uio", "mdev", "net", "infiniband_verbs", "iommu")


FAMILY = SelectorFamily(
    PciFunctionFilter | list[PciFunctionFilter], lambda filters, options: PciSelector(filters), takes_info=True
)


class PhysicalFunction(msgspec.Struct, frozen=True):
    """A physical function, by interface name or address, and some of its virtual functions; None for all."""

    name: str
    indexes: frozenset[int] | None = None


def parse_physical_function(text: str) -> PhysicalFunction:
    """Parses `ens1f0`, `ens1f0#0-3,7` or `0000:3b:00.0#0`."""
    name, mark, ranges = text.partition("#")
    if not name:
        raise InvalidValue(f"a physical function must look like ens1f0 or ens1f0#0-3,7, got {text!r}")
    if not mark:
        return PhysicalFunction(name)
    indexes: set[int] = set()
    for part in ranges.split(","):
        matched = _RANGE.fullmatch(part.strip())
        first, last = (int(matched[1]), int(matched[2] or matched[1])) if matched else (1, 0)
        if last < first or last > 65535:
            raise InvalidValue(f"virtual functions must look like 0-3,7, got {ranges!r} in {text!r}")
        indexes.update(range(first, last + 1))
    return PhysicalFunction(name, frozenset(indexes))


def _is_infrastructure(function: PciFunction) -> bool:
    """Whether it is a bridge, or a physical function with virtual functions, which are allocated in its place."""
    has_virtual_functions = sysfs.attribute(function.directory, "sriov_numvfs") not in ("", "0")
    return function.class_code.startswith("06") or has_virtual_functions


def _is_named(parents: Sequence[PhysicalFunction], function: PciFunction) -> bool:
    """Whether the function belongs to one of the parents; the first parent with its physical function decides."""
    physical = sysfs.real(function.directory.joinpath("physfn")) if function.is_virtual else function.directory
    names = [physical.name, *_interfaces(physical)]
    for parent in parents:
        if any(pattern(parent.name.lower())(name.lower()) for name in names):
            return parent.indexes is None or _virtual_index(physical, function) in parent.indexes
    return False


def _virtual_index(physical: Path, function: PciFunction) -> int:
    for link in sysfs.entries(physical):
        if link.name.startswith("virtfn") and sysfs.real(link) == function.directory:
            return int(link.name.removeprefix("virtfn"))
    return -1


def _interfaces(directory: Path) -> list[str]:
    """The interfaces of the function itself, or of its virtio device."""
    entries = (*sysfs.matching(directory, "net/*"), *sysfs.matching(directory, "virtio*/net/*"))
    return sorted(entry.name for entry in entries)


def _rdma_adapters(function: PciFunction) -> list[str]:
    return [adapter.name for adapter in sysfs.entries(function.directory / "infiniband")]


def _link_types(function: PciFunction) -> set[str]:
    """The link types of its interfaces, or by its class if a user-space driver is bound."""
    interfaces = sysfs.entries(function.directory / "net")
    types = {hardware.link_type(interface) for interface in interfaces}
    return types or {_LINK_CLASSES.get(function.class_code[:4], "")}


def _pkey(function: PciFunction) -> int | None:
    for adapter in sysfs.entries(function.directory / "infiniband"):
        return _number(sysfs.attribute(adapter, "ports/1/pkeys/0"))
    return None


def _number(text: str) -> int | None:
    try:
        return int(text, 16)
    except ValueError:
        return None


def _units(host: Host, function: PciFunction, wanted: PciFunctionFilter, default_route: set[str]) -> list[Unit]:
    if wanted.mdev:
        return [unit for unit in _mediated_devices(host, function) if matches(wanted.mdev, unit.facts["model"])]
    return [_unit(host, function, wanted, default_route)]


def _unit(host: Host, function: PciFunction, wanted: PciFunctionFilter, default_route: set[str]) -> Unit:
    nodes = _FunctionNodes()
    for kind in wanted.nodes or _nodes_for_driver(function):
        nodes = nodes.joined(_NODES[kind](host, function))
    if wanted.rdma:
        nodes = nodes.joined(_rdma_nodes(host, function))
    if wanted.vhost:
        nodes = nodes.joined(_FunctionNodes(tuple(map(HostPath, _VHOST.values())), {"vhost": _VHOST}))
    interfaces = _interfaces(function.directory)
    routed = sorted(set(interfaces) & default_route)
    addresses = _group_addresses(host, function) if nodes.by_group else [function.address]
    return Unit(
        id=hardware.stable_id(addresses[0]),
        paths=nodes.paths,
        facts={
            "pci": ",".join(addresses),
            "vendor": function.vendor,
            "device": function.device,
            "class": function.class_code,
            "driver": function.driver,
            "interface": interfaces[0] if interfaces else "",
            "rdma": ",".join(_rdma_adapters(function)),
        },
        numa=sysfs.numa_nodes(function.directory),
        fault=nodes.fault if function.driver else "no driver is bound",
        danger=f"{routed[0]} carries the node's default route" if routed else "",
        directory=function.directory,
        # In exclusive mode the adapter, and thereby the hardware for `rdma`, is invisible while a pod has it.
        anchor=function.directory if wanted.rdma else None,
        details={"generic": {"deviceID": function.address}, **nodes.details},
    )


def _mediated_devices(host: Host, function: PciFunction) -> list[Unit]:
    """The mediated devices of the function."""
    every = [sysfs.real(entry) for entry in sysfs.entries(host.sys / "bus" / "mdev" / "devices")]
    return [_mediated_device(host, function, entry) for entry in every if entry.parent == function.directory]


def _mediated_device(host: Host, function: PciFunction, directory: Path) -> Unit:
    name = sysfs.attribute(directory.joinpath("mdev_type"), "name")
    nodes = _group_nodes(host, sysfs.link_name(directory, "iommu_group"))
    return Unit(
        id=hardware.stable_id(directory.name),
        paths=nodes.paths,
        facts={
            "uuid": directory.name,
            "model": name or sysfs.link_name(directory, "mdev_type"),
            "pci": function.address,
            "vendor": function.vendor,
        },
        numa=sysfs.numa_nodes(directory),
        fault=nodes.fault,
        directory=directory,
        details={"generic": {"deviceID": directory.name}, **nodes.details},
    )


class _FunctionNodes(msgspec.Struct, frozen=True):
    """The nodes of a function; `details` are for PCIDEVICE_…_INFO.

    `by_group`: the kernel gives all functions of an IOMMU group to a single user, so they are one device.
    """

    paths: tuple[HostPath, ...] = ()
    details: Mapping[str, Mapping[str, str]] = {}
    fault: str = ""
    by_group: bool = False

    def joined(self, other: "_FunctionNodes") -> "_FunctionNodes":
        return _FunctionNodes(
            (*self.paths, *other.paths),
            {**self.details, **other.details},
            self.fault or other.fault,
            self.by_group or other.by_group,
        )


def _nodes_for_driver(function: PciFunction) -> Sequence[FunctionNode]:
    """The nodes required by a driver; a network card's own nodes are only for containers with RDMA."""
    if "vfio" in function.driver:
        return ("vfio",)
    if "uio" in function.driver:
        return ("uio",)
    return () if function.class_code.startswith("02") else ("all",)


def _rdma_nodes(host: Host, function: PciFunction) -> _FunctionNodes:
    paths = [node.path for node in sysfs.nodes_below(function.directory) if node.subsystem.startswith("infiniband")]
    if host.has(_RDMA_CM):
        paths.append(_RDMA_CM)
    named = {name: path for path in paths for name in ("uverbs", "umad", "issm", "rdma_cm") if f"/{name}" in path}
    details = {"rdma": {**named, "rdma_dev": ",".join(_rdma_adapters(function))}}
    return _FunctionNodes(tuple(map(HostPath, paths)), details, "" if "uverbs" in named else "no uverbs node")


def _group_addresses(host: Host, function: PciFunction) -> list[str]:
    """The functions of the IOMMU group with the same driver, including this function."""
    group = host.sys / "kernel" / "iommu_groups" / function.iommu_group / "devices"
    entries = [entry for entry in sysfs.entries(group) if sysfs.link_name(entry, "driver") == function.driver]
    return sorted(entry.name for entry in entries) or [function.address]


def _vfio_nodes(host: Host, function: PciFunction) -> _FunctionNodes:
    return _group_nodes(host, function.iommu_group)


def _group_nodes(host: Host, group: str) -> _FunctionNodes:
    if not group:
        return _FunctionNodes(fault="in no IOMMU group")
    inside = f"/dev/vfio/{group}"
    no_iommu = sysfs.attribute(host.sys / "kernel" / "iommu_groups" / group, "name") == "vfio-noiommu"
    outside = f"/dev/vfio/noiommu-{group}" if no_iommu else inside
    paths = (HostPath(_VFIO_CONTAINER), HostPath(outside, container_path=inside))
    return _FunctionNodes(paths, {"vfio": {"mount": _VFIO_CONTAINER, "dev-mount": inside}}, by_group=True)


def _iommufd_nodes(host: Host, function: PciFunction) -> _FunctionNodes:
    names = [entry.name for entry in sysfs.entries(function.directory / "vfio-dev")]
    if not names:
        return _FunctionNodes(fault="no vfio device: is vfio-pci bound, with IOMMUFD?")
    path = f"/dev/vfio/devices/{names[0]}"
    details = {"vfio": {"mount": "/dev/iommu", "dev-mount": path}}
    return _FunctionNodes((HostPath("/dev/iommu"), HostPath(path)), details, by_group=True)


def _uio_nodes(host: Host, function: PciFunction) -> _FunctionNodes:
    paths = [f"/dev/{entry.name}" for entry in sysfs.entries(function.directory / "uio")]
    if not paths:
        return _FunctionNodes(fault="no uio node")
    return _FunctionNodes(tuple(map(HostPath, paths)), {"uio": {"mount": paths[0]}})


def _all_nodes(host: Host, function: PciFunction) -> _FunctionNodes:
    paths = [node.path for node in sysfs.nodes_below(function.directory)]
    return _FunctionNodes(tuple(map(HostPath, paths)), fault="" if paths else "no node in /dev")


_NODES = {"vfio": _vfio_nodes, "iommufd": _iommufd_nodes, "uio": _uio_nodes, "all": _all_nodes}
