"""USB devices, each with the nodes that people want of it: the bus node, and those of its drivers.

Known by serial number or, without one, by the port that it is plugged into: numbers on the bus change at every replug.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from plugwright.plugins.generic import hardware
from plugwright.plugins.generic.hardware import Member, Unit, matches, matches_id
from plugwright.sdk import sysfs
from plugwright.sdk.hotplug import Uevent
from plugwright.sdk.sysfs import Host, SysfsNode

__all__ = ["NODES", "UsbFilter", "UsbSelector", "find"]

NODES = {
    "usb": ("usb",),
    "tty": ("tty",),
    "video": ("video4linux", "media"),
    "hidraw": ("hidraw",),
    "input": ("input",),
    "sound": ("sound",),
    "storage": ("block", "scsi_generic"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UsbFilter:
    """`nodes` are names of `NODES`; empty means all that there are."""

    vendor: Sequence[str] = ()
    product: Sequence[str] = ()
    serial: Sequence[str] = ()
    manufacturer: Sequence[str] = ()
    name: Sequence[str] = ()
    class_code: Sequence[str] = ()
    port: Sequence[str] = ()
    nodes: Sequence[str] = ()

    def accepts(self, device: Path) -> bool:
        return (
            matches_id(self.vendor, sysfs.attribute(device, "idVendor"))
            and matches_id(self.product, sysfs.attribute(device, "idProduct"))
            and matches(self.serial, sysfs.attribute(device, "serial"))
            and matches(self.manufacturer, sysfs.attribute(device, "manufacturer"))
            and matches(self.name, sysfs.attribute(device, "product"))
            and matches(self.port, device.name)
            and any(matches_id(self.class_code, each) for each in _classes(device))
        )


@dataclass(frozen=True, slots=True)
class UsbSelector:
    filters: Sequence[UsbFilter]

    def find(self, host: Host) -> list[Unit]:
        return find(host, self.filters)

    def directories(self, host: Host) -> Iterable[Path]:
        return [host.dev, host.dev / "bus" / "usb"]

    def concerns(self, event: Uevent) -> bool:
        return "/usb" in event.path or event.subsystem == "usb"


def find(host: Host, filters: Sequence[UsbFilter]) -> list[Unit]:
    """What matches the first filter first: their order is the operator's."""
    found: dict[str, Unit] = {}
    for wanted in filters:
        for device in _devices(host):
            if wanted.accepts(device):
                found.setdefault(device.name, _unit(device, wanted))
    return hardware.distinct(list(found.values()))


def _devices(host: Host) -> list[Path]:
    """Devices, not their interfaces."""
    every = sysfs.entries(host.sys / "bus" / "usb" / "devices")
    return [each for each in every if each.joinpath("idVendor").exists()]


def _classes(device: Path) -> list[str]:
    interfaces = [each for each in sysfs.entries(device) if each.joinpath("bInterfaceClass").exists()]
    return [
        sysfs.attribute(device, "bDeviceClass"),
        *(sysfs.attribute(each, "bInterfaceClass") for each in interfaces),
    ]


def _unit(device: Path, wanted: UsbFilter) -> Unit:
    vendor, product = sysfs.attribute(device, "idVendor"), sysfs.attribute(device, "idProduct")
    serial = sysfs.attribute(device, "serial")
    nodes = [node for node in sysfs.nodes_below(device) if not wanted.nodes or _kind(node) in wanted.nodes]
    missing = [kind for kind in wanted.nodes if kind not in {_kind(node) for node in nodes}]
    return Unit(
        id=hardware.stable("usb", vendor, product, serial or device.name),
        members=tuple(Member(node.path) for node in sorted(nodes, key=_rank)),
        facts={
            "vendor": vendor,
            "product": product,
            "serial": serial,
            "port": device.name,
            "name": sysfs.attribute(device, "product"),
            "pci": sysfs.pci_address_of(device),
        },
        numa=sysfs.numa_nodes(device),
        fault=f"no {missing[0]} node: is its driver there?" if missing else "" if nodes else "no node in /dev",
        directory=sysfs.real(device),
    )


def _kind(node: SysfsNode) -> str:
    return next((kind for kind, subsystems in NODES.items() if node.subsystem in subsystems), node.subsystem)


def _rank(node: SysfsNode) -> tuple[bool, str]:
    """The bus node last: `{node}` is the one that programs open."""
    return node.subsystem == "usb", node.path
