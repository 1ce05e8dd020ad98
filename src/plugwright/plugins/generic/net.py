"""Network interfaces. A container gets the name of its interface; with CDI, supporting runtimes move the interface
there.

Identified by PCI address and port, otherwise by name. An interface is invisible while a pod has it: its PCI function is
its anchor.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from plugwright.plugins.generic import hardware
from plugwright.plugins.generic.family import SelectorFamily
from plugwright.plugins.generic.hardware import LinkType, PciDriverFilter, Unit, as_list, function_behind, matches
from plugwright.plugins.generic.safety import default_route_interfaces
from plugwright.sdk import sysfs
from plugwright.sdk.device_family import Texts
from plugwright.sdk.hotplug import Uevent
from plugwright.sdk.sysfs import Host

__all__ = ["FAMILY", "NetFilter", "NetSelector"]


class NetFilter(PciDriverFilter, frozen=True):
    """Network interfaces of hardware; with `virtual`, also bridges, bonds and the like."""

    name: Texts | None = None
    link_type: LinkType | list[LinkType] | None = None
    virtual: bool = False

    def accepts(self, interface: Path) -> bool:
        return (
            matches(self.name, interface.name)
            and (self.virtual or interface.joinpath("device").exists())
            and self.accepts_function(function_behind(interface))
            and (not self.link_type or hardware.link_type(interface) in as_list(self.link_type))
        )


class NetSelector(msgspec.Struct, frozen=True):
    filters: Sequence[NetFilter]

    def find(self, host: Host) -> list[Unit]:
        units: dict[str, Unit] = {}
        for wanted in self.filters:
            for interface in sysfs.entries(host.sys / "class" / "net"):
                if interface.name != "lo" and wanted.accepts(interface):
                    units.setdefault(interface.name, _unit(host, interface))
        return hardware.distinct(list(units.values()))

    def directories(self, host: Host) -> Iterable[Path]:
        return ()

    def concerns(self, event: Uevent) -> bool:
        return event.subsystem in ("net", "pci")


FAMILY = SelectorFamily(NetFilter | list[NetFilter], lambda filters, options: NetSelector(filters))


def _unit(host: Host, interface: Path) -> Unit:
    function = function_behind(interface)
    port = sysfs.attribute(interface, "dev_port")
    several = function is not None and len(sysfs.entries(sysfs.real(interface).parent)) > 1
    carries_default = interface.name in default_route_interfaces(host)
    return Unit(
        id=hardware.stable_id(
            "net", function.address if function else interface.name, f"port{port}" if several else ""
        ),
        facts={
            "name": interface.name,
            "interface": interface.name,
            "pci": function.address if function else "",
            "vendor": function.vendor if function else "",
            "device": function.device if function else "",
            "driver": function.driver if function else sysfs.link_name(interface / "device", "driver"),
        },
        numa=sysfs.numa_nodes(interface),
        danger=f"{interface.name} carries the node's default route" if carries_default else "",
        directory=sysfs.real(interface),
        anchor=function.directory if function else None,
    )
