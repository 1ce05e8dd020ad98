"""RDMA adapters (InfiniBand, RoCE, iWARP), each with all its required nodes.

Identified by PCI address, otherwise by name. In exclusive mode an adapter is invisible while a pod has it: its PCI
function is its anchor.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from plugwright.plugins.generic import hardware
from plugwright.plugins.generic.family import SelectorFamily
from plugwright.plugins.generic.hardware import (
    HostPath,
    LinkType,
    PciDriverFilter,
    Unit,
    as_list,
    function_behind,
    matches,
)
from plugwright.sdk import sysfs
from plugwright.sdk.device_family import Texts
from plugwright.sdk.hotplug import Uevent
from plugwright.sdk.sysfs import Host

__all__ = ["FAMILY", "RdmaFilter", "RdmaSelector"]

RdmaNode = Literal["uverbs", "umad", "issm", "ucm", "rdma_cm"]

_CLASSES = {"uverbs": "infiniband_verbs", "umad": "infiniband_mad", "issm": "infiniband_mad", "ucm": "infiniband_cm"}
_LINK_LAYERS = {"Ethernet": "ethernet", "InfiniBand": "infiniband"}
_SHARED = "rdma_cm"  # one for the whole node


class RdmaFilter(PciDriverFilter, frozen=True):
    """RDMA adapters (HCAs), by their names in /sys/class/infiniband, the names of their interfaces, or their PCI ids.

    `nodes`: nodes for a container; `required`: an adapter without these is not offered.
    """

    name: Texts | None = None
    interface: Texts | None = None
    link_type: LinkType | list[LinkType] | None = None
    nodes: tuple[RdmaNode, ...] = ("uverbs", "umad", "issm", "ucm", "rdma_cm")
    required: tuple[RdmaNode, ...] = ("uverbs",)

    def accepts(self, adapter: Path) -> bool:
        layers = {_LINK_LAYERS.get(sysfs.attribute(port, "link_layer"), "") for port in _ports(adapter)}
        return (
            matches(self.name, adapter.name)
            and (not self.interface or any(matches(self.interface, name) for name in _interfaces(adapter)))
            and self.accepts_function(function_behind(adapter))
            and (not self.link_type or bool(layers & set(as_list(self.link_type))))
        )


class RdmaSelector(msgspec.Struct, frozen=True):
    filters: Sequence[RdmaFilter]

    def find(self, host: Host) -> list[Unit]:
        units: dict[str, Unit] = {}
        for wanted in self.filters:
            for adapter in sysfs.entries(host.sys / "class" / "infiniband"):
                if wanted.accepts(adapter):
                    units.setdefault(adapter.name, _unit(host, adapter, wanted))
        return hardware.distinct(list(units.values()))

    def directories(self, host: Host) -> Iterable[Path]:
        return [host.dev / "infiniband"]

    def concerns(self, event: Uevent) -> bool:
        return event.subsystem.startswith("infiniband") or event.subsystem in ("pci", "misc")


FAMILY = SelectorFamily(RdmaFilter | list[RdmaFilter], lambda filters, options: RdmaSelector(filters))


def _ports(adapter: Path) -> list[Path]:
    return sysfs.entries(adapter / "ports")


def _interfaces(adapter: Path) -> list[str]:
    """The interfaces of the same function (RoCE and IPoIB), and those named by the ports."""
    named = {
        sysfs.attribute(gid.parent, gid.name)
        for port in _ports(adapter)
        for gid in sysfs.entries(port / "gid_attrs" / "ndevs")
    }
    own = {interface.name for interface in sysfs.entries(sysfs.real(adapter).parents[1] / "net")}
    return sorted((named | own) - {""})


def _unit(host: Host, adapter: Path, wanted: RdmaFilter) -> Unit:
    paths = [path for kind in wanted.nodes for path in _nodes(host, adapter.name, kind)]
    missing = [kind for kind in wanted.required if not _nodes(host, adapter.name, kind)]
    function = function_behind(adapter)
    interfaces = _interfaces(adapter)
    return Unit(
        id=hardware.stable_id("rdma", function.address if function else adapter.name, *_guid(adapter)),
        paths=tuple(map(HostPath, paths)),
        facts={
            "name": adapter.name,
            "rdma": adapter.name,
            "pci": function.address if function else "",
            "vendor": function.vendor if function else "",
            "device": function.device if function else "",
            "driver": function.driver if function else "",
            "interface": interfaces[0] if interfaces else "",
        },
        numa=sysfs.numa_nodes(adapter),
        fault=f"no {missing[0]} node" if missing else "",
        directory=sysfs.real(adapter),
        anchor=function.directory if function else None,
    )


def _guid(adapter: Path) -> list[str]:
    """The GUID of an adapter, if several are behind one function."""
    siblings = sysfs.entries(sysfs.real(adapter).parent)
    return [sysfs.attribute(adapter, "node_guid") or adapter.name] if len(siblings) > 1 else []


def _nodes(host: Host, adapter: str, kind: str) -> list[str]:
    """The nodes of one kind; each port has its own umad and issm node."""
    if kind == _SHARED:
        path = f"/dev/infiniband/{_SHARED}"
        return [path] if host.has(path) else []
    nodes = [node for node in sysfs.entries(host.sys / "class" / _CLASSES[kind]) if node.name.startswith(kind)]
    return [f"/dev/infiniband/{node.name}" for node in nodes if sysfs.attribute(node, "ibdev") == adapter]
