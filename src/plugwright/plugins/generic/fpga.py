"""FPGAs in the layouts of their drivers: DFL (in-tree), OPAE, XRT (xclmgmt) and XDMA.

Identified by PCI address and the position of a port among its neighbours: the kernel numbers ports in the order of
probing.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from plugwright.model import natural_order
from plugwright.plugins.generic import hardware
from plugwright.plugins.generic.family import SelectorFamily
from plugwright.plugins.generic.hardware import HostPath, PciFilter, Unit, function_behind, matches
from plugwright.sdk import sysfs
from plugwright.sdk.device_family import Texts
from plugwright.sdk.hotplug import Uevent
from plugwright.sdk.sysfs import Host, PciFunction

__all__ = ["FAMILY", "FpgaFilter", "FpgaSelector"]

_INTEL = {"dfl": ("fpga_region", "dfl-fme", "dfl-port"), "opae": ("fpga", "intel-fpga-fme", "intel-fpga-port")}
_CRASHED = "its id is all ones: the firmware has crashed"


class FpgaFilter(PciFilter, frozen=True):
    """FPGAs. `layout`: `dfl` (in-tree), `opae`, `xrt` (xclmgmt and user functions) or `xdma`; by default any.

    `afu` and `region` are interface ids in the kernel's notation. `nodes`: `port`, `fme`, `user`, `mgmt`, `qdma`; by
    default those needed by users of the FPGA: ports, user functions and their queues.
    """

    layout: Literal["dfl", "opae", "xrt", "xdma"] | None = None
    afu: Texts | None = None
    region: Texts | None = None
    nodes: tuple[Literal["port", "fme", "user", "mgmt", "qdma"], ...] = ("port", "user", "qdma")

    def accepts(self, unit: Unit, layout: str) -> bool:
        return (
            self.layout in (None, layout)
            and matches(self.afu, unit.facts.get("uuid", ""))
            and matches(self.region, unit.facts.get("model", ""))
            and self.accepts_function(function_behind(unit.directory) if unit.directory else None)
        )


class FpgaSelector(msgspec.Struct, frozen=True):
    filters: Sequence[FpgaFilter]

    def find(self, host: Host) -> list[Unit]:
        units: dict[str, Unit] = {}
        for wanted in self.filters:
            for layout, unit in _units(host, wanted.nodes):
                if wanted.accepts(unit, layout):
                    units.setdefault(unit.id, unit)
        return [units[unit_id] for unit_id in sorted(units, key=natural_order)]

    def directories(self, host: Host) -> Iterable[Path]:
        return [host.dev, host.dev / "xfpga", host.dev / "dri"]

    def concerns(self, event: Uevent) -> bool:
        return event.subsystem in ("pci", "dfl", "fpga_region", "fpga", "drm", "xdma", "platform", "misc")


FAMILY = SelectorFamily(FpgaFilter | list[FpgaFilter], lambda filters, options: FpgaSelector(filters))


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
    entries = [entry for entry in sysfs.entries(region) if entry.name.startswith(f"{kind}.")]
    return sorted(entries, key=lambda entry: natural_order(entry.name))


def _intel(region: Path, managers: list[Path], ports: list[Path], nodes: Sequence[str]) -> Iterator[Unit]:
    """With the management node, a region and all its ports are one device; otherwise each port is a device."""
    if not managers and not ports:
        return
    name = hardware.stable_id("fpga", sysfs.pci_address_of(region) or region.name)
    if "fme" in nodes:
        yield _intel_unit(name, managers, managers + (ports if "port" in nodes else []), ports)
    elif "port" in nodes:
        for index, port in enumerate(ports):
            yield _intel_unit(f"{name}-port{index}", managers, [port], [port])


def _intel_unit(name: str, managers: list[Path], handed_out: list[Path], ports: list[Path]) -> Unit:
    afus = [sysfs.attribute(port, "afu_id") for port in ports]
    region = next((region_id for manager in managers if (region_id := _region_id(manager))), "")
    directory = sysfs.real((ports or managers)[0])
    crashed = any(interface_id and not interface_id.strip("f") for interface_id in (*afus, region))
    return Unit(
        id=name,
        paths=tuple(HostPath(_node(entry)) for entry in handed_out),
        facts={"uuid": ",".join(afus), "model": region, **_facts(function_behind(directory))},
        numa=sysfs.numa_nodes(directory),
        fault=_CRASHED if crashed else "",
        directory=directory,
    )


def _region_id(manager: Path) -> str:
    """The id from the in-tree driver or from OPAE."""
    files = sysfs.matching(manager, "dfl-fme-region.*/fpga_region/region*/compat_id")
    in_tree = next((sysfs.attribute(file.parent, file.name) for file in files), "")
    return in_tree or sysfs.attribute(manager, "pr/interface_id")


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
    """The unit of a card, which has one function for users and one for management with different function numbers."""
    card = user.address.rpartition(".")[0]
    managing = [
        function.directory
        for function in functions
        if function.address.startswith(f"{card}.") and function.directory.joinpath("mgmt_pf").exists()
    ]
    by_kind = {
        "user": [f"/dev/dri/{node.name}" for node in sysfs.entries(user.directory / "drm") if "render" in node.name],
        "mgmt": [f"/dev/xclmgmt{sysfs.attribute(directory, 'instance')}" for directory in managing],
        "qdma": [path for path in [_qdma(user.address)] if host.has(path)],
    }
    serials = [sysfs.attribute(directory, "serial_num") for directory in sysfs.matching(user.directory, "xmc.u.*")]
    shells = [sysfs.attribute(directory, "VBNV") for directory in sysfs.matching(user.directory, "rom*")]
    paths = tuple(HostPath(path) for kind in ("user", "qdma", "mgmt") if kind in nodes for path in by_kind[kind])
    return Unit(
        id=hardware.stable_id("fpga", user.address),
        paths=paths,
        facts={"serial": "".join(serials[:1]), "model": "".join(shells[:1]), **_facts(user)},
        numa=sysfs.numa_nodes(user.directory),
        fault="" if paths else "no node in /dev",
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
        id=hardware.stable_id("fpga", function.address),
        paths=tuple(map(HostPath, kept)),
        facts=_facts(function),
        numa=sysfs.numa_nodes(function.directory),
        fault="" if kept else "no node in /dev",
        directory=function.directory,
    )
