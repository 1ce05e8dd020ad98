"""NVMe namespaces, identified by the serial number of their drive. `safety` rejects those in use."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from plugwright.plugins.generic import hardware
from plugwright.plugins.generic.family import SelectorFamily
from plugwright.plugins.generic.hardware import DeviceFilter, HostPath, Unit, matches
from plugwright.sdk import sysfs
from plugwright.sdk.device_family import Texts
from plugwright.sdk.hotplug import Uevent
from plugwright.sdk.sysfs import Host

__all__ = ["FAMILY", "NvmeFilter", "NvmeSelector"]

_NAMESPACE = re.compile(r"nvme(\d+)n(\d+)")


class NvmeFilter(DeviceFilter, frozen=True):
    """NVMe namespaces, one per device; those in use (mounted, swap, part of an array or volume) only with `dangerous`.

    `nodes`: `block` (/dev/nvme0n1), `generic` (/dev/ng0n1), `control` (/dev/nvme0, the whole controller).
    """

    model: Texts | None = None
    serial: Texts | None = None
    transport: Texts | None = None
    address: Texts | None = None
    nodes: tuple[Literal["block", "generic", "control"], ...] = ("block",)

    def accepts(self, controller: Path) -> bool:
        return (
            matches(self.model, sysfs.attribute(controller, "model"))
            and matches(self.serial, sysfs.attribute(controller, "serial"))
            and matches(self.transport, sysfs.attribute(controller, "transport"))
            and matches(self.address, sysfs.attribute(controller, "address"))
        )


class NvmeSelector(msgspec.Struct, frozen=True):
    filters: Sequence[NvmeFilter]

    def find(self, host: Host) -> list[Unit]:
        units: dict[str, Unit] = {}
        for wanted in self.filters:
            for controller in sysfs.entries(host.sys / "class" / "nvme"):
                if wanted.accepts(controller):
                    for name in _namespaces(host, controller):
                        units.setdefault(name, _unit(host, controller, name, wanted))
        return hardware.distinct(list(units.values()))

    def directories(self, host: Host) -> Iterable[Path]:
        return [host.dev]

    def concerns(self, event: Uevent) -> bool:
        return event.subsystem in ("nvme", "nvme-subsystem", "nvme-generic") or "/nvme" in event.path


FAMILY = SelectorFamily(NvmeFilter | list[NvmeFilter], lambda filters, options: NvmeSelector(filters))


def _namespaces(host: Host, controller: Path) -> list[str]:
    """The namespaces below the controller; with multipath, below its subsystem, and the controller has only paths."""
    subsystems = sysfs.entries(host.sys / "class" / "nvme-subsystem")
    parents = [controller, *(subsystem for subsystem in subsystems if subsystem.joinpath(controller.name).exists())]
    names = {entry.name for parent in parents for entry in sysfs.entries(parent) if _NAMESPACE.fullmatch(entry.name)}
    return [name for name in sorted(names) if host.sys.joinpath("class", "block", name).exists()]


def _unit(host: Host, controller: Path, name: str, wanted: NvmeFilter) -> Unit:
    block = sysfs.real(host.sys.joinpath("class", "block", name))
    state, serial = sysfs.attribute(controller, "state"), sysfs.attribute(controller, "serial")
    nodes = {
        "block": f"/dev/{name}",
        "generic": f"/dev/ng{name.removeprefix('nvme')}",
        "control": f"/dev/{controller.name}",
    }
    return Unit(
        id=hardware.stable_id(
            "nvme",
            serial or sysfs.attribute(controller, "address"),
            f"n{sysfs.attribute(block, 'nsid') or name.rpartition('n')[2]}",
        ),
        paths=tuple(HostPath(nodes[kind]) for kind in wanted.nodes),
        facts={
            "serial": serial,
            "model": sysfs.attribute(controller, "model"),
            "pci": sysfs.pci_address_of(controller),
            "name": name,
        },
        numa=sysfs.numa_nodes(controller),
        fault="" if state in ("live", "") else f"the controller is {state}",
        directory=block,
    )
