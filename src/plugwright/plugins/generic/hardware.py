"""Units of hardware: found by selectors, matched by filters, and named by stable ids for the kubelet. Pure.

A filter is a struct of the operator's file (`DeviceFilter`); a selector applies filters to a host; ids stay the same
after a reboot, a replug, and every start.
"""

import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
from msgspec.structs import replace

from plugwright.errors import InvalidValue
from plugwright.sdk import sysfs
from plugwright.sdk.device_family import FamilySettings, Texts
from plugwright.sdk.hotplug import Uevent
from plugwright.sdk.sysfs import Host, PciFunction
from plugwright.text import fitted

__all__ = [
    "AllAsOne",
    "DeviceFilter",
    "Excluding",
    "HostPath",
    "IdScheme",
    "Ids",
    "LinkType",
    "PciDriverFilter",
    "PciFilter",
    "Selector",
    "Unit",
    "as_list",
    "check_ids",
    "copies",
    "distinct",
    "facts_of",
    "function_behind",
    "join_units",
    "keep_ids",
    "link_type",
    "matches",
    "matches_id",
    "pattern",
    "physical_names",
    "published_facts",
    "stable_id",
]

# Checked by `check_ids`: a pattern on both sides of a union makes msgspec 0.22 crash at the end of the process.
Ids = Texts
LinkType = Literal["ethernet", "infiniband"]
IdScheme = Literal["stable", "gdp", "index"]

_LINK_TYPES = {"1": "ethernet", "32": "infiniband"}  # ARPHRD_…
_HEXADECIMAL_ID = re.compile("(0x)?[0-9a-fA-F]{4}")
_ESCAPED = re.compile(r"\\(.)")
_LONGEST = 50  # of 63; the remaining characters are for the number of a copy
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_.:-]+")
_SEPARATOR = "::"
_TEXT_LIMIT = 64  # bytes of an attribute that claims select by
# Nodes shared by many devices: a common node of these does not make two devices the same.
_SHARED = frozenset(
    ("/dev/vfio/vfio", "/dev/iommu", "/dev/infiniband/rdma_cm", "/dev/kfd", "/dev/vhost-net", "/dev/net/tun")
)


class HostPath(msgspec.Struct, frozen=True):
    """A node or a mount of a unit.

    `path` is the found path; `host_path` is allocated: the same, or the target of a link. `container_path` can contain
    templates; if empty, it is the same path. Empty `permissions` are those of the resource. `selected`: the operator
    selected the hardware of this node by its properties.
    """

    path: str
    host_path: str = ""
    container_path: str = ""
    permissions: str = ""
    mount: bool = False
    read_only: bool = False
    selected: bool = False

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "host_path", self.host_path or self.path)


class Unit(msgspec.Struct, frozen=True):
    """One piece of hardware. Its id is the same after a reboot and after a replug.

    `facts` are used by templates. `fault` is why the hardware cannot be used, and `code` the kind of this reason;
    `danger` is why it must not be used unless the operator allows it. `directory` is its directory in /sys. `anchor`
    stays in /sys while a pod has the unit in its own network namespace, where the daemon cannot see it. `count` is the
    number of containers sharing it; None means the resource's. `parts` are the parts of a composed unit.
    """

    id: str
    paths: tuple[HostPath, ...] = ()
    facts: Mapping[str, str] = {}
    numa: tuple[int, ...] = ()
    fault: str = ""
    code: str = ""
    danger: str = ""
    directory: Path | None = None
    anchor: Path | None = None
    count: int | None = None
    parts: tuple["Unit", ...] = ()
    one_is_enough: bool = False  # it works as long as one of its parts does
    details: Mapping[str, Mapping[str, str]] = {}  # for PCIDEVICE_…_INFO


class Selector(Protocol):
    """Finds units on a host; knows the directories and uevents of further units."""

    def find(self, host: Host) -> Sequence[Unit]: ...

    def directories(self, host: Host) -> Iterable[Path]: ...

    def concerns(self, event: Uevent) -> bool: ...


class Excluding(msgspec.Struct, frozen=True):
    """The units of a selector except those found by other selectors."""

    selector: Selector
    others: Sequence[Selector]

    def find(self, host: Host) -> list[Unit]:
        taken = {key for other in self.others for unit in other.find(host) for key in _identity(unit)}
        return [unit for unit in self.selector.find(host) if taken.isdisjoint(_identity(unit))]

    def directories(self, host: Host) -> Iterable[Path]:
        return self.selector.directories(host)

    def concerns(self, event: Uevent) -> bool:
        return self.selector.concerns(event)


class AllAsOne(msgspec.Struct, frozen=True):
    """All units of another selector as one device, which works as long as one of its parts does."""

    parts: Selector

    def find(self, host: Host) -> list[Unit]:
        units = self.parts.find(host)
        working = [unit for unit in units if not unit.fault and not unit.danger]
        return [replace(join_units(working or units), id="all", one_is_enough=True)] if units else []

    def directories(self, host: Host) -> Iterable[Path]:
        return self.parts.directories(host)

    def concerns(self, event: Uevent) -> bool:
        return self.parts.concerns(event)


class DeviceFilter(FamilySettings, frozen=True, rename="camel"):
    """The settings of one family in the operator's file. Omitted settings match any device."""


class PciFilter(DeviceFilter, frozen=True):
    """The PCI function behind a device."""

    vendor: Ids | None = None
    device: Ids | None = None
    address: Texts | None = None

    def __post_init__(self) -> None:
        check_ids(vendor=self.vendor, device=self.device)

    def accepts_function(self, function: PciFunction | None) -> bool:
        if function is None:
            return not (self.vendor or self.device or self.address)
        return (
            matches_id(self.vendor, function.vendor)
            and matches_id(self.device, function.device)
            and matches(self.address, function.address)
        )


class PciDriverFilter(PciFilter, frozen=True):
    """The PCI function behind a device, and the driver bound to it."""

    driver: Texts | None = None

    def accepts_function(self, function: PciFunction | None) -> bool:
        accepted = PciFilter.accepts_function(self, function)
        return accepted and (matches(self.driver, function.driver) if function is not None else not self.driver)


def check_ids(**ids: Ids | None) -> None:
    """Rejects anything but hexadecimal ids; YAML reads an unquoted 0403 as an octal number."""
    for name, values in ids.items():
        for text in as_list(values):
            if not _HEXADECIMAL_ID.fullmatch(text):
                raise InvalidValue(f'{name} must be four hexadecimal digits in quotes, such as "0403", got {text!r}')


def as_list(value: Any) -> list[Any]:
    """One value, several or none, as a list."""
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def facts_of(unit: Unit) -> dict[str, str]:
    """The facts for templates."""
    paths = [host_path.path for host_path in unit.paths]
    return {
        **unit.facts,
        "id": unit.id,
        "node": paths[0] if paths else "",
        "nodes": ",".join(paths),
        "numa": ",".join(map(str, unit.numa)),
    }


def function_behind(directory: Path) -> PciFunction | None:
    """The PCI function behind a device."""
    address, real = sysfs.pci_address_of(directory), sysfs.real(directory)
    for parent in (real, *real.parents):
        if address and parent.name == address:
            return sysfs.pci_function(parent)
    return None


def link_type(interface: Path) -> str:
    """The type of a network interface; empty for other types than those of `LinkType`."""
    return _LINK_TYPES.get(sysfs.attribute(interface, "type"), "")


def pattern(text: str) -> Callable[[str], object]:
    r"""Compiles `*`, `?` and `[…]`, where `[!…]` and `[^…]` are negated; `\` escapes the next character."""
    text = _ESCAPED.sub(lambda match: f"[{match[1]}]" if match[1] not in "^!" else match[1], text)
    return re.compile(translate(text.replace("[^", "[!"))).match


def matches(patterns: Texts | Sequence[str] | None, text: str) -> bool:
    """Whether one of the patterns matches; true without patterns."""
    return not patterns or any(pattern(wanted)(text) for wanted in as_list(patterns))


def matches_id(ids: Ids | Sequence[str] | None, text: str) -> bool:
    return not ids or text.lower() in {wanted.lower().removeprefix("0x") for wanted in as_list(ids)}


def join_units(units: Sequence[Unit]) -> Unit:
    """One unit composed of several: a fault of one is a fault of the whole."""
    if len(units) == 1:
        return units[0]
    facts: dict[str, str] = {}
    for name in dict.fromkeys(name for unit in units for name in unit.facts):
        facts[name] = ",".join(dict.fromkeys(value for unit in units if (value := unit.facts.get(name))))
    return Unit(
        id=stable_id(*(unit.id for unit in units)),
        paths=tuple(dict.fromkeys(path for unit in units for path in unit.paths)),
        facts=facts,
        numa=tuple(sorted({node for unit in units for node in unit.numa})),
        fault=next((unit.fault for unit in units if unit.fault), ""),
        danger=next((unit.danger for unit in units if unit.danger), ""),
        directory=units[0].directory,
        anchor=units[0].anchor,
        details={name: detail for unit in units for name, detail in unit.details.items()},
        parts=tuple(units),
    )


def stable_id(*parts: str) -> str:
    """One id from the identifying parts of a device; an overlong id ends in a checksum of all parts."""
    whole = "-".join(part for part in parts if part)
    name = _NOT_IN_IDS.sub("_", whole).strip("_.:-") or "device"
    if name == whole and len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 9]}-{_checksum(whole)}" if len(name) > _LONGEST else name


def distinct(units: Sequence[Unit]) -> list[Unit]:
    """The units with unique ids: clones share even their serial numbers, so their ids also contain their ports."""
    counts = Counter(unit.id for unit in units)
    named = [unit if counts[unit.id] == 1 else replace(unit, id=_id_with_port(unit)) for unit in units]
    return list({unit.id: unit for unit in named}.values())


def keep_ids(before: Iterable[Unit], units: Sequence[Unit]) -> list[Unit]:
    """The units; a unit present before its clone keeps the id by which a pod can hold it."""
    ids = {(unit.facts.get("serial"), unit.facts["port"]): unit.id for unit in before if unit.facts.get("port")}
    taken = {unit.id for unit in units}
    renamed = []
    for unit in units:
        old = ids.get((unit.facts.get("serial"), unit.facts.get("port", "")), unit.id)
        renamed.append(unit if old in taken else replace(unit, id=old))
    return renamed


def copies(scheme: IdScheme, units: Sequence[Unit], count: int) -> Iterator[tuple[str, Unit]]:
    """The ids of the devices of each unit, one for each container sharing it.

    `gdp` makes the ids of generic-device-plugin, `index` those of the shared RDMA plugin: running pods keep theirs.
    """
    number = 0
    for unit in units:
        for copy in range(unit.count or count):
            match scheme:
                case "gdp":
                    yield _gdp_id(unit, copy), unit
                case "index":
                    yield str(number), unit
                case "stable":
                    # The first copy has the plain id, which a higher count does not change.
                    yield unit.id if copy == 0 else f"{unit.id}{_SEPARATOR}{copy}", unit
            number += 1


def physical_names(host: Host, unit: Unit) -> tuple[str, ...]:
    """The hardware of a unit: its id, its nodes and its PCI function; empty for files and for virtual kernel nodes.

    /dev/fuse and /dev/kvm are not hardware, although a container can have them exclusively.
    """
    nodes = {path.host_path for path in unit.paths if _is_hardware(host, path)}
    names = {name for name in _identity(unit) if not name.startswith("/") or name in nodes}
    return tuple(sorted({unit.id, *names, *map(host.resolve, nodes & names)})) if names else ()


def published_facts(host: Host, unit: Unit) -> dict[str, str | int]:
    """The attributes by which claims select: the unit's facts, and those of the one PCI function it is or is behind."""
    facts: dict[str, str | int] = {name: fitted(text, _TEXT_LIMIT) for name, text in unit.facts.items() if text}
    address, directory = unit.facts.get("pci", ""), unit.directory
    if not address or "," in address:
        return facts
    if directory is None or sysfs.pci_address_of(directory) != address:  # for example a drive with several paths to it
        directory = host.sys / "bus" / "pci" / "devices" / address
    return facts | sysfs.standard_attributes(directory)


def _is_hardware(host: Host, path: HostPath) -> bool:
    """Whether it is a node, and not below devices/virtual in /sys, except groups of vfio, which are hardware."""
    directory = None if path.mount else host.directory_of(path.host_path)
    is_virtual = directory is not None and "virtual" in directory.parts and directory.parent.name != "vfio"
    return not path.mount and not is_virtual


def _gdp_id(unit: Unit, copy: int) -> str:
    import hashlib  # loads OpenSSL: 4 MiB, only if these ids are used

    text = f"{copy}{''.join(host_path.path for host_path in unit.paths)}"
    return hashlib.sha1(text.encode(errors="surrogatepass"), usedforsecurity=False).hexdigest()


def _checksum(text: str) -> str:
    """Checksum of any text: an invalid UTF-8 file name contains halves of surrogate pairs."""
    return f"{zlib.crc32(text.encode(errors='surrogatepass')):08x}"


def _id_with_port(unit: Unit) -> str:
    port = unit.facts.get("port") or unit.facts.get("pci") or "".join(host_path.path for host_path in unit.paths)
    # Different texts could become equal by lost characters: /dev/t! and /dev/t*.
    plain = len(port) < 20 and not _NOT_IN_IDS.search(port)
    return stable_id(unit.id, port if plain else f"{_checksum(port)}")


def _identity(unit: Unit) -> set[str]:
    """The unit's nodes; also its PCI address if the unit is the function itself, and not only behind it."""
    paths = {host_path.host_path for host_path in unit.paths} - _SHARED
    addresses = {address for address in unit.facts.get("pci", "").split(",") if address}
    is_function = unit.details.get("generic", {}).get("deviceID") in addresses
    return paths | addresses if is_function or not paths else paths
