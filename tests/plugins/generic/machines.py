"""Fake machines: trees of /sys, /dev and /proc laid out as the kernel lays them out.

Nodes are plain files, so that no root is needed; the links are relative, as the kernel's are.
"""

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from plugwright.plugins.generic.hardware import Selector, Unit
from plugwright.sdk.sysfs import Host

__all__ = ["Machine", "found"]


@dataclass(frozen=True, slots=True)
class Machine:
    root: Path

    @property
    def host(self) -> Host:
        return Host(self.root)

    def find(self, selector: Selector) -> dict[str, Unit]:
        return {unit.id: unit for unit in selector.find(self.host)}

    def write(self, path: str, text: str = "") -> Path:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{text}\n")
        return target

    def link(self, path: str, target: str) -> None:
        """A link from one path of the machine to another, relative as the kernel makes them."""
        link = self.root / path.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(self.root / target.lstrip("/"), link.parent))

    def node(self, name: str) -> str:
        """A node below /dev."""
        self.write(f"/dev/{name}")
        return f"/dev/{name}"

    def remove(self, path: str) -> None:
        target = self.root / path.lstrip("/")
        shutil.rmtree(target) if target.is_dir() and not target.is_symlink() else target.unlink()

    def device(self, path: str, subsystem: str = "", node: str = "", **attributes: str) -> str:
        """A directory below /sys/devices, its class link, and its node if it has one."""
        directory = f"/sys/devices/{path}"
        (self.root / directory.lstrip("/")).mkdir(parents=True, exist_ok=True)
        for name, value in attributes.items():
            self.write(f"{directory}/{name}", value)
        self.write(f"{directory}/uevent", f"DEVNAME={node}" if node else "DEVTYPE=x")
        if subsystem:
            self.link(f"{directory}/subsystem", f"/sys/class/{subsystem}")
            self.link(f"/sys/class/{subsystem}/{path.rpartition('/')[2]}", directory)
        if node:
            self.write(f"{directory}/dev", "1:1")
            self.node(node)
        return path

    def bind(self, path: str, driver: str) -> None:
        (self.root / f"sys/bus/any/drivers/{driver}").mkdir(parents=True, exist_ok=True)
        self.link(f"/sys/devices/{path}/driver", f"/sys/bus/any/drivers/{driver}")

    def pci(self, address: str, ids: str, kind: str, driver: str = "", numa: int = -1) -> str:
        """`ids` is vendor:device, `kind` the six digits of the class."""
        vendor, _, device = ids.partition(":")
        attributes = {"vendor": f"0x{vendor}", "device": f"0x{device}", "class": f"0x{kind}", "numa_node": str(numa)}
        path = self.device(f"pci0000:00/{address}", **attributes)
        self.link(f"/sys/bus/pci/devices/{address}", f"/sys/devices/{path}")
        if driver:
            self.bind(path, driver)
        return path

    def virtual(self, physical: str, index: int, address: str, driver: str = "iavf") -> str:
        """A virtual function of a physical one."""
        path = self.pci(address, "8086:154c", "020000", driver, numa=1)
        self.link(f"/sys/devices/{path}/physfn", f"/sys/devices/{physical}")
        self.link(f"/sys/devices/{physical}/virtfn{index}", f"/sys/devices/{path}")
        self.write(f"/sys/devices/{physical}/sriov_numvfs", str(index + 1))
        return path

    def iommu(self, path: str, group: str, name: str = "") -> None:
        self.link(f"/sys/devices/{path}/iommu_group", f"/sys/kernel/iommu_groups/{group}")
        self.link(f"/sys/kernel/iommu_groups/{group}/devices/{path.rpartition('/')[2]}", f"/sys/devices/{path}")
        self.node(f"vfio/{'noiommu-' if name == 'vfio-noiommu' else ''}{group}")
        self.node("vfio/vfio")
        if name:
            self.write(f"/sys/kernel/iommu_groups/{group}/name", name)

    def interface(self, path: str, name: str, kind: str = "1", state: str = "up") -> str:
        return self.device(f"{path}/net/{name}", "net", type=kind, operstate=state, dev_port="0")

    def adapter(self, path: str, name: str, number: int, layer: str = "InfiniBand") -> str:
        """An RDMA adapter with one port and its nodes."""
        adapter = self.device(f"{path}/infiniband/{name}", "infiniband", node_guid=f"0000:0000:0000:000{number}")
        self.write(f"/sys/devices/{adapter}/ports/1/link_layer", layer)
        self.write(f"/sys/devices/{adapter}/ports/1/state", "4: ACTIVE")
        self.write(f"/sys/devices/{adapter}/ports/1/pkeys/0", "0x8001")
        for kind, of in (("uverbs", "verbs"), ("umad", "mad"), ("issm", "mad")):
            node, subsystem = f"{kind}{number}", f"infiniband_{of}"
            self.device(f"{path}/{subsystem}/{node}", subsystem, f"infiniband/{node}", ibdev=name)
        self.node("infiniband/rdma_cm")
        return adapter

    def usb(self, port: str, ids: str, serial: str = "", number: int = 4, kind: str = "00") -> str:
        """A USB device on the first bus; `number` is what changes at every replug."""
        vendor, _, product = ids.partition(":")
        attributes = {"idVendor": vendor, "idProduct": product, "devnum": str(number), "bDeviceClass": kind}
        controller = self.pci("0000:00:14.0", "8086:a36d", "0c0330", "xhci_hcd", numa=0)
        path = self.device(f"{controller}/usb1/{port}", "", f"bus/usb/001/{number:03}", **attributes)
        self.link(f"/sys/devices/{path}/subsystem", "/sys/bus/usb")
        self.link(f"/sys/bus/usb/devices/{port}", f"/sys/devices/{path}")
        if serial:
            self.write(f"/sys/devices/{path}/serial", serial)
        return path

    def usb_child(self, usb: str, node: str, subsystem: str, kind: str = "ff") -> str:
        """An interface of a USB device with a node of its driver's."""
        face = f"{usb}/{usb.rpartition('/')[2]}:1.0"
        self.write(f"/sys/devices/{face}/bInterfaceClass", kind)
        return self.device(f"{face}/{subsystem}/{node.rpartition('/')[2]}", subsystem, node)

    def unplug(self, usb: str) -> None:
        for name in self._nodes(usb):
            self.remove(f"/dev/{name}")
        self.remove(f"/sys/bus/usb/devices/{usb.rpartition('/')[2]}")
        self.remove(f"/sys/devices/{usb}")

    def gpu(self, path: str, card: int) -> None:
        for node in (f"card{card}", f"renderD{128 + card}"):
            drm = self.device(f"{path}/drm/{node}", "drm", f"dri/{node}")
            self.link(f"/sys/devices/{drm}/device", f"/sys/devices/{path}")

    def nvme(self, path: str, number: int, serial: str, state: str = "live") -> str:
        controller = self.device(f"{path}/nvme/nvme{number}", "nvme", f"nvme{number}", serial=serial, state=state,
                                 model="Fast 1", transport="pcie", address=path.rpartition("/")[2])  # fmt: skip
        self.device(f"{controller}/nvme{number}n1", "block", f"nvme{number}n1", nsid="1")
        self.write(f"/sys/devices/{controller}/nvme{number}n1/dev", f"259:{number}")
        (self.root / f"sys/devices/{controller}/nvme{number}n1/holders").mkdir()
        self.node(f"ng{number}n1")
        return controller

    def mounted(self, number: str, directory: str, source: str) -> None:
        line = f"29 1 {number} / {directory} rw,relatime - ext4 {source} rw"
        before = self.root / "proc/1/mountinfo"
        self.write("/proc/1/mountinfo", (before.read_text() if before.exists() else "") + line)

    def _nodes(self, path: str) -> Iterable[str]:
        for uevent in (self.root / "sys/devices" / path).rglob("uevent"):
            name = uevent.read_text().partition("DEVNAME=")[2].strip()
            if name:
                yield name


def found(unit: Unit) -> list[str]:
    """The paths of a unit."""
    return [path.path for path in unit.paths]
