"""FPGAs in the layouts that their drivers make of them: DFL (in-tree), OPAE, XRT (xclmgmt) and XDMA.

Known by PCI address and the place of a port among its neighbours: the kernel numbers ports in the order of probing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plugwright.model import natural_order
from plugwright.plugins.generic import hardware
from plugwright.plugins.generic.hardware import Member, PciFilter, Unit, function_behind, matches
from plugwright.sdk import sysfs
from plugwright.sdk.hotplug import Uevent
from plugwright.sdk.sysfs import Host, PciFunction

__all__ = ["FpgaFilter", "FpgaSelector"]

_INTEL = {"dfl": ("fpga_region", "dfl-fme", "dfl-port"), "opae": ("fpga", "intel-fpga-fme", "intel-fpga-port")}
_CRASHED = "its id is all ones: the firmware has crashed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FpgaFilter:
    layout: str = ""  # dfl, opae, xrt or xdma; empty for any
    afu: Sequence[str] = ()
    region: Sequence[str] = ()
    pci: PciFilter = field(default_factory=PciFilter)
    nodes: Sequence[str] = ("port", "user", "qdma")

    def accepts(self, unit: Unit, layout: str) -> bool:
        return (
            self.layout in ("", layout)
            and matches(self.afu, unit.facts.get("uuid", ""))
            and matches(self.region, unit.facts.get("model", ""))
            and self.pci.accepts(function_behind(unit.directory) if unit.directory else None)
        )


@dataclass(frozen=True, slots=True)
class FpgaSelector:
    filters: Sequence[FpgaFilter]

    def find(self, host: Host) -> list[Unit]:
        found: dict[str, Unit] = {}
        for wanted in self.filters:
            for layout, unit in _units(host, wanted.nodes):
                if wanted.accepts(unit, layout):
                    found.setdefault(unit.id, unit)
        return [found[name] for name in sorted(found, key=natural_order)]

    def directories(self, host: Host) -> Iterable[Path]:
        return [host.dev, host.dev / "xfpga", host.dev / "dri"]

    def concerns(self, event: Uevent) -> bool:
        return event.subsystem in ("pci", "dfl", "fpga_region", "fpga", "drm", "xdma", "platform", "misc")


def _units(host: Host, nodes: Sequence[str]) -> Iterator[tuple[str, Unit]]:
    for layout, (kind, manager, port) in _INTEL.items():
        for region in sysfs.entries(host.sys / "class" / kind):
            for unit in _intel(region, _below(region, manager), _below(region, port), nodes):
                yield layout, unit
    functions = sysfs.pci_functions(host.sys)
    for function in functions:
        if function.directory.joinpath("user_pf").exists():
            yield "xrt", _xrt(host, function, functions, nodes)
        elif function.driver == "xdma":
            yield "xdma", _xdma(function, nodes)


def _below(region: Path, kind: str) -> list[Path]:
    found = [each for each in sysfs.entries(region) if each.name.startswith(f"{kind}.")]
    return sorted(found, key=lambda each: natural_order(each.name))


def _intel(region: Path, managers: list[Path], ports: list[Path], nodes: Sequence[str]) -> Iterator[Unit]:
    """With the management node, a region is one device, and all its ports are a part of it; else each port is one."""
    if not managers and not ports:
        return
    name = hardware.stable("fpga", sysfs.pci_address_of(region) or region.name)
    if "fme" in nodes:
        yield _intel_unit(name, managers, managers + (ports if "port" in nodes else []), ports)
    elif "port" in nodes:
        for place, port in enumerate(ports):
            yield _intel_unit(f"{name}-port{place}", managers, [port], [port])


def _intel_unit(name: str, managers: list[Path], handed: list[Path], ports: list[Path]) -> Unit:
    afus = [sysfs.attribute(port, "afu_id") for port in ports]
    region = next((each for manager in managers if (each := _region_id(manager))), "")
    directory = sysfs.real((ports or managers)[0])
    crashed = any(each and not each.strip("f") for each in (*afus, region))
    return Unit(
        id=name,
        members=tuple(Member(_node(each)) for each in handed),
        facts={"uuid": ",".join(afus), "model": region, **_facts(function_behind(directory))},
        numa=sysfs.numa_nodes(directory),
        fault=_CRASHED if crashed else "",
        directory=directory,
    )


def _region_id(manager: Path) -> str:
    """Where the in-tree driver has it, and where OPAE's has it."""
    places = sysfs.matching(manager, "dfl-fme-region.*/fpga_region/region*/compat_id")
    return next((sysfs.attribute(each.parent, each.name) for each in places), "") or sysfs.attribute(
        manager, "pr/interface_id"
    )


def _node(directory: Path) -> str:
    return f"/dev/{sysfs.uevent(directory).get('DEVNAME') or directory.name}"


def _facts(function: PciFunction | None) -> dict[str, str]:
    if function is None:
        return {}
    return {
        "pci": function.address,
        "vendor": function.vendor,
        "device": function.device,
        "driver": function.driver,
    }


def _xrt(host: Host, user: PciFunction, functions: list[PciFunction], nodes: Sequence[str]) -> Unit:
    """A card has a function for its users and one to manage it, told apart by the function number."""
    card = user.address.rpartition(".")[0]
    managing = [
        each
        for each in functions
        if each.address.startswith(f"{card}.") and each.directory.joinpath("mgmt_pf").exists()
    ]
    paths = {
        "user": [f"/dev/dri/{each.name}" for each in sysfs.entries(user.directory / "drm") if "render" in each.name],
        "mgmt": [f"/dev/xclmgmt{sysfs.attribute(each.directory, 'instance')}" for each in managing],
        "qdma": [path for path in [_qdma(user.address)] if host.has(path)],
    }
    serials = [sysfs.attribute(each, "serial_num") for each in sysfs.matching(user.directory, "xmc.u.*")]
    shells = [sysfs.attribute(each, "VBNV") for each in sysfs.matching(user.directory, "rom*")]
    members = tuple(Member(path) for kind in ("user", "qdma", "mgmt") if kind in nodes for path in paths[kind])
    return Unit(
        id=hardware.stable("fpga", user.address),
        members=members,
        facts={"serial": "".join(serials[:1]), "model": "".join(shells[:1]), **_facts(user)},
        numa=sysfs.numa_nodes(user.directory),
        fault="" if members else "no node in /dev",
        directory=user.directory,
    )


def _qdma(address: str) -> str:
    domain, bus, rest = address.split(":")
    device, function = rest.split(".")
    number = int(domain, 16) << 16 | int(bus, 16) << 8 | int(device, 16) << 3 | int(function, 16)
    return f"/dev/xfpga/dma.qdma.u{number}.0"


def _xdma(function: PciFunction, nodes: Sequence[str]) -> Unit:
    paths = [node.path for node in sysfs.nodes_below(function.directory)]
    kept = [path for path in paths if ("mgmt" if path.endswith("_control") else "user") in nodes]
    return Unit(
        id=hardware.stable("fpga", function.address),
        members=tuple(map(Member, kept)),
        facts=_facts(function),
        numa=sysfs.numa_nodes(function.directory),
        fault="" if kept else "no node in /dev",
        directory=function.directory,
    )
