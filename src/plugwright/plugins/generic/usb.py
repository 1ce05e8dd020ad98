"""USB devices, each with its bus node and the nodes of its drivers.

Identified by serial number or, without one, by port, because numbers on the bus change at every replug.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from plugwright.plugins.generic import hardware
from plugwright.plugins.generic.family import SelectorFamily
from plugwright.plugins.generic.hardware import DeviceFilter, HostPath, Ids, Unit, matches, matches_id
from plugwright.sdk import sysfs
from plugwright.sdk.device_family import Texts
from plugwright.sdk.hotplug import Uevent
from plugwright.sdk.sysfs import Host, SysfsNode

__all__ = ["FAMILY", "UsbFilter", "UsbSelector", "find"]

UsbNode = Literal["usb", "tty", "video", "hidraw", "input", "sound", "storage"]

_SUBSYSTEMS: dict[UsbNode, tuple[str, ...]] = {
    "usb": ("usb",),
    "tty": ("tty",),
    "video": ("video4linux", "media"),
    "hidraw": ("hidraw",),
    "input": ("input",),
    "sound": ("sound",),
    "storage": ("block", "scsi_generic"),
}


class UsbFilter(DeviceFilter, frozen=True):
    """USB devices. `class` is two hexadecimal digits, of the device or one of its interfaces; `port` is like `1-4.2`.

    `nodes`: the required nodes of a device, all for its container: `usb` (/dev/bus/usb/…), `tty`, `video`, `hidraw`,
    `input`, `sound`, `storage`; by default all nodes.
    """

    vendor: Ids | None = None
    product: Ids | None = None
    serial: Texts | None = None
    manufacturer: Texts | None = None
    name: Texts | None = None
    class_: Texts | None = msgspec.field(name="class", default=None)
    port: Texts | None = None
    nodes: list[UsbNode] | None = None

    def __post_init__(self) -> None:
        hardware.check_ids(vendor=self.vendor, product=self.product)

    def accepts(self, device: Path) -> bool:
        return (
            matches_id(self.vendor, sysfs.attribute(device, "idVendor"))
            and matches_id(self.product, sysfs.attribute(device, "idProduct"))
            and matches(self.serial, sysfs.attribute(device, "serial"))
            and matches(self.manufacturer, sysfs.attribute(device, "manufacturer"))
            and matches(self.name, sysfs.attribute(device, "product"))
            and matches(self.port, device.name)
            and any(matches_id(self.class_, code) for code in _classes(device))
        )


class UsbSelector(msgspec.Struct, frozen=True):
    filters: Sequence[UsbFilter]

    def find(self, host: Host) -> list[Unit]:
        return find(host, self.filters)

    def directories(self, host: Host) -> Iterable[Path]:
        return [host.dev, host.dev / "bus" / "usb"]

    def concerns(self, event: Uevent) -> bool:
        return "/usb" in event.path or event.subsystem == "usb"


FAMILY = SelectorFamily(UsbFilter | list[UsbFilter], lambda filters, options: UsbSelector(filters))


def find(host: Host, filters: Sequence[UsbFilter]) -> list[Unit]:
    """The units in the operator's order: devices of the first filter first."""
    units: dict[str, Unit] = {}
    for wanted in filters:
        for device in sysfs.entries(host.sys / "bus" / "usb" / "devices"):
            # Interfaces are in the same directory, but have no vendors.
            if device.joinpath("idVendor").exists() and wanted.accepts(device):
                units.setdefault(device.name, _unit(device, wanted))
    return hardware.distinct(list(units.values()))


def _classes(device: Path) -> list[str]:
    """The class of the device and of its interfaces."""
    interfaces = [entry for entry in sysfs.entries(device) if entry.joinpath("bInterfaceClass").exists()]
    return [
        sysfs.attribute(device, "bDeviceClass"),
        *(sysfs.attribute(interface, "bInterfaceClass") for interface in interfaces),
    ]


def _unit(device: Path, wanted: UsbFilter) -> Unit:
    vendor, product = sysfs.attribute(device, "idVendor"), sysfs.attribute(device, "idProduct")
    serial = sysfs.attribute(device, "serial")
    nodes = [node for node in sysfs.nodes_below(device) if not wanted.nodes or _kind(node) in wanted.nodes]
    missing = [kind for kind in wanted.nodes or () if kind not in {_kind(node) for node in nodes}]
    return Unit(
        id=hardware.stable_id("usb", vendor, product, serial or device.name),
        # The bus node is last: `{node}` is the node opened by programs.
        paths=tuple(
            HostPath(node.path, selected=True)
            for node in sorted(nodes, key=lambda node: (node.subsystem == "usb", node.path))
        ),
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
    return next((kind for kind, subsystems in _SUBSYSTEMS.items() if node.subsystem in subsystems), node.subsystem)
