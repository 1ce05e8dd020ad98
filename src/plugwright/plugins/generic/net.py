"""Network interfaces. A container is told which it got; with CDI, runtimes that know how move it there.

Known by PCI address and port, else by name. An interface is not seen while a pod has it: its PCI function is its
anchor.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plugwright.plugins.generic import hardware
from plugwright.plugins.generic.hardware import PciFilter, Unit, function_behind, matches
from plugwright.plugins.generic.safety import carriers
from plugwright.sdk import sysfs
from plugwright.sdk.hotplug import Uevent
from plugwright.sdk.sysfs import Host

__all__ = ["NetFilter", "NetSelector"]

_LINKS = {"1": "ethernet", "32": "infiniband"}  # ARPHRD_…


@dataclass(frozen=True, slots=True, kw_only=True)
class NetFilter:
    name: Sequence[str] = ()
    pci: PciFilter = field(default_factory=PciFilter)
    link_type: Sequence[str] = ()
    virtual: bool = False  # also what is no hardware

    def accepts(self, interface: Path) -> bool:
        return (
            matches(self.name, interface.name)
            and (self.virtual or interface.joinpath("device").exists())
            and self.pci.accepts(function_behind(interface))
            and (not self.link_type or _LINKS.get(sysfs.attribute(interface, "type"), "") in self.link_type)
        )


@dataclass(frozen=True, slots=True)
class NetSelector:
    filters: Sequence[NetFilter]

    def find(self, host: Host) -> list[Unit]:
        found: dict[str, Unit] = {}
        for wanted in self.filters:
            for interface in sysfs.entries(host.sys / "class" / "net"):
                if interface.name != "lo" and wanted.accepts(interface):
                    found.setdefault(interface.name, _unit(host, interface))
        return hardware.distinct(list(found.values()))

    def directories(self, host: Host) -> Iterable[Path]:
        return ()

    def concerns(self, event: Uevent) -> bool:
        return event.subsystem in ("net", "pci")


def _unit(host: Host, interface: Path) -> Unit:
    function = function_behind(interface)
    port = sysfs.attribute(interface, "dev_port")
    several = function is not None and len(sysfs.entries(sysfs.real(interface).parent)) > 1
    return Unit(
        id=hardware.stable("net", function.address if function else interface.name, f"port{port}" if several else ""),
        facts={
            "name": interface.name,
            "interface": interface.name,
            "pci": function.address if function else "",
            "vendor": function.vendor if function else "",
            "device": function.device if function else "",
            "driver": function.driver if function else sysfs.link_name(interface / "device", "driver"),
        },
        numa=sysfs.numa_nodes(interface),
        danger=f"{interface.name} carries the node's default route" if interface.name in carriers(host) else "",
        directory=sysfs.real(interface),
        anchor=function.directory if function else None,
    )
