"""NVMe namespaces, known by the serial number of their drive. Those in use are for `danger` to refuse."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from plugwright.plugins.generic import hardware
from plugwright.plugins.generic.hardware import Member, Unit, matches
from plugwright.sdk import sysfs
from plugwright.sdk.hotplug import Uevent
from plugwright.sdk.sysfs import Host

__all__ = ["NvmeFilter", "NvmeSelector"]

_NAMESPACE = re.compile(r"nvme(\d+)n(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmeFilter:
    model: Sequence[str] = ()
    serial: Sequence[str] = ()
    transport: Sequence[str] = ()
    address: Sequence[str] = ()
    nodes: Sequence[str] = ("block",)

    def accepts(self, controller: Path) -> bool:
        return (
            matches(self.model, sysfs.attribute(controller, "model"))
            and matches(self.serial, sysfs.attribute(controller, "serial"))
            and matches(self.transport, sysfs.attribute(controller, "transport"))
            and matches(self.address, sysfs.attribute(controller, "address"))
        )


@dataclass(frozen=True, slots=True)
class NvmeSelector:
    filters: Sequence[NvmeFilter]

    def find(self, host: Host) -> list[Unit]:
        found: dict[str, Unit] = {}
        for wanted in self.filters:
            for controller in sysfs.entries(host.sys / "class" / "nvme"):
                if wanted.accepts(controller):
                    for name in _namespaces(host, controller):
                        found.setdefault(name, _unit(host, controller, name, wanted))
        return hardware.distinct(list(found.values()))

    def directories(self, host: Host) -> Iterable[Path]:
        return [host.dev]

    def concerns(self, event: Uevent) -> bool:
        return event.subsystem in ("nvme", "nvme-subsystem", "nvme-generic") or "/nvme" in event.path


def _namespaces(host: Host, controller: Path) -> Iterator[str]:
    """Those below the controller; with multipath they are below its subsystem, and the controller has only paths."""
    shared = [
        each for each in sysfs.entries(host.sys / "class" / "nvme-subsystem") if each.joinpath(controller.name).exists()
    ]
    below = {
        each.name for place in (controller, *shared) for each in sysfs.entries(place) if _NAMESPACE.fullmatch(each.name)
    }
    for name in sorted(below):
        if host.sys.joinpath("class", "block", name).exists():
            yield name


def _unit(host: Host, controller: Path, name: str, wanted: NvmeFilter) -> Unit:
    block = sysfs.real(host.sys.joinpath("class", "block", name))
    state, serial = sysfs.attribute(controller, "state"), sysfs.attribute(controller, "serial")
    nodes = {
        "block": f"/dev/{name}",
        "generic": f"/dev/ng{name.removeprefix('nvme')}",
        "control": f"/dev/{controller.name}",
    }
    return Unit(
        id=hardware.stable(
            "nvme",
            serial or sysfs.attribute(controller, "address"),
            f"n{sysfs.attribute(block, 'nsid') or name.rpartition('n')[2]}",
        ),
        members=tuple(Member(nodes[kind]) for kind in wanted.nodes),
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
