"""PCI functions: network cards and their virtual functions, what is given to user space (vfio, uio), mediated devices.

Known by their addresses. Which nodes a function has is `pci_nodes`' business, what SR-IOV means `virtual_functions`'.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plugwright.plugins.generic import ids, pci_nodes, virtual_functions
from plugwright.plugins.generic.routes import carriers
from plugwright.plugins.generic.units import PciFilter, Unit, matches
from plugwright.plugins.generic.virtual_functions import Parent
from plugwright.sdk import sysfs
from plugwright.sdk.sysfs import Host, PciFunction
from plugwright.sdk.uevents import Uevent

__all__ = ["FunctionFilter", "PciSelector"]

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
            and (not self.parents or virtual_functions.takes(self.parents, function))
            and (not self.link_type or bool(set(self.link_type) & _link_types(function)))
            and (not self.pkey or _pkey(function) in {_number(each) for each in self.pkey})
            and (not self.rdma or pci_nodes.has_rdma(function))
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
    return function.class_code.startswith("06") or virtual_functions.is_divided(function)


def _units(host: Host, function: PciFunction, wanted: FunctionFilter, routes: set[str]) -> list[Unit]:
    if wanted.mdev:
        return [unit for unit in pci_nodes.mediated(host, function) if matches(wanted.mdev, unit.facts["model"])]
    return [_unit(host, function, wanted, routes)]


def _unit(host: Host, function: PciFunction, wanted: FunctionFilter, routes: set[str]) -> Unit:
    nodes = pci_nodes.of(host, function, wanted.nodes or pci_nodes.called_for(function))
    if wanted.rdma:
        nodes = nodes.joined(pci_nodes.rdma(host, function))
    if wanted.vhost:
        nodes = nodes.joined(pci_nodes.vhost())
    names = virtual_functions.interfaces(function.directory)
    carried = sorted(set(names) & routes)
    partners = pci_nodes.group_partners(host, function) if nodes.by_group else [function.address]
    return Unit(
        id=ids.stable(partners[0]),
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
