"""RDMA adapters (InfiniBand, RoCE, iWARP), each with all the nodes that it needs.

Known by PCI address, else by name. In exclusive mode an adapter is not seen while a pod has it: its PCI function is its
anchor.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plugwright.plugins.generic import hardware
from plugwright.plugins.generic.hardware import Member, PciFilter, Unit, function_behind, matches
from plugwright.sdk import sysfs
from plugwright.sdk.hotplug import Uevent
from plugwright.sdk.sysfs import Host

__all__ = ["RdmaFilter", "RdmaSelector"]

_CLASSES = {"uverbs": "infiniband_verbs", "umad": "infiniband_mad", "issm": "infiniband_mad", "ucm": "infiniband_cm"}
_LAYERS = {"Ethernet": "ethernet", "InfiniBand": "infiniband"}
_SHARED = "rdma_cm"  # one for the whole node


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaFilter:
    name: Sequence[str] = ()
    interface: Sequence[str] = ()
    pci: PciFilter = field(default_factory=PciFilter)
    link_type: Sequence[str] = ()
    nodes: Sequence[str] = ("uverbs", "umad", "issm", "ucm", _SHARED)
    required: Sequence[str] = ("uverbs",)

    def accepts(self, adapter: Path) -> bool:
        layers = {_LAYERS.get(sysfs.attribute(port, "link_layer"), "") for port in _ports(adapter)}
        names = _interfaces(adapter)
        return (
            matches(self.name, adapter.name)
            and (not self.interface or any(matches(self.interface, name) for name in names))
            and self.pci.accepts(function_behind(adapter))
            and (not self.link_type or bool(layers & set(self.link_type)))
        )


@dataclass(frozen=True, slots=True)
class RdmaSelector:
    filters: Sequence[RdmaFilter]

    def find(self, host: Host) -> list[Unit]:
        found: dict[str, Unit] = {}
        for wanted in self.filters:
            for adapter in sysfs.entries(host.sys / "class" / "infiniband"):
                if wanted.accepts(adapter):
                    found.setdefault(adapter.name, _unit(host, adapter, wanted))
        return hardware.distinct(list(found.values()))

    def directories(self, host: Host) -> Iterable[Path]:
        return [host.dev / "infiniband"]

    def concerns(self, event: Uevent) -> bool:
        return event.subsystem.startswith("infiniband") or event.subsystem in ("pci", "misc")


def _ports(adapter: Path) -> list[Path]:
    return sysfs.entries(adapter / "ports")


def _interfaces(adapter: Path) -> list[str]:
    """Of the same function (RoCE and IPoIB), and those that the ports name."""
    named = {
        sysfs.attribute(each.parent, each.name)
        for port in _ports(adapter)
        for each in sysfs.entries(port / "gid_attrs" / "ndevs")
    }
    own = {each.name for each in sysfs.entries(sysfs.real(adapter).parents[1] / "net")}
    return sorted((named | own) - {""})


def _unit(host: Host, adapter: Path, wanted: RdmaFilter) -> Unit:
    paths = [path for kind in wanted.nodes for path in _nodes(host, adapter.name, kind)]
    missing = [kind for kind in wanted.required if not _nodes(host, adapter.name, kind)]
    function = function_behind(adapter)
    interfaces = _interfaces(adapter)
    return Unit(
        id=hardware.stable("rdma", function.address if function else adapter.name, *_port_name(adapter)),
        members=tuple(map(Member, paths)),
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


def _port_name(adapter: Path) -> list[str]:
    """Several adapters behind one function are told apart by what the hardware calls them."""
    siblings = sysfs.entries(sysfs.real(adapter).parent)
    return [sysfs.attribute(adapter, "node_guid") or adapter.name] if len(siblings) > 1 else []


def _nodes(host: Host, adapter: str, kind: str) -> list[str]:
    """Each port has its own umad and issm; all of them belong to the adapter."""
    if kind == _SHARED:
        path = f"/dev/infiniband/{_SHARED}"
        return [path] if host.has(path) else []
    places = [each for each in sysfs.entries(host.sys / "class" / _CLASSES[kind]) if each.name.startswith(kind)]
    return [f"/dev/infiniband/{each.name}" for each in places if sysfs.attribute(each, "ibdev") == adapter]
