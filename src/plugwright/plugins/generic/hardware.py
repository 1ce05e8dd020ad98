"""What selectors find: units of hardware, and what a container gets with each.

Names of devices: the same after a reboot, after a replug, and on every start. Pure.
"""

import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import translate
from pathlib import Path
from typing import Protocol

from plugwright.sdk import sysfs
from plugwright.sdk.hotplug import Uevent
from plugwright.sdk.sysfs import Host, PciFunction

__all__ = [
    "Member",
    "Naming",
    "PciFilter",
    "Selector",
    "Unit",
    "copies",
    "distinct",
    "facts_of",
    "function_behind",
    "kept",
    "matches",
    "matches_id",
    "pattern",
    "stable",
]

_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Member:
    """A node or a mount. `path` is as it was found; `host_path` what is handed out: the same, or what a link leads to.

    `container_path` may have templates in it; empty for the same path. `permissions` are the resource's where empty.
    """

    path: str
    host_path: str = ""
    container_path: str = ""
    permissions: str = ""
    mount: bool = False
    read_only: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "host_path", self.host_path or self.path)


@dataclass(frozen=True, slots=True)
class Unit:
    """One piece of hardware. Its id is the same after a reboot and after it was plugged in again.

    `facts` fill in templates. `fault` is why it cannot be used, as the hardware itself says; `danger` why it must not
    be, unless the operator says that it may. `directory` is its own in /sys. `anchor` stays in /sys while a pod has the
    unit in a network namespace of its own, where it is not seen. `count` is how many containers may have it at a time,
    where that is not the resource's to say. A unit that others were joined to has them as `parts`.
    """

    id: str
    members: tuple[Member, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    numa: tuple[int, ...] = ()
    fault: str = ""
    danger: str = ""
    directory: Path | None = None
    anchor: Path | None = None
    count: int | None = None
    parts: tuple["Unit", ...] = ()
    one_is_enough: bool = False  # it works while one of its parts does
    details: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # for PCIDEVICE_…_INFO


class Selector(Protocol):
    """Finds units on a host; knows which directories and which uevents may tell of others."""

    def find(self, host: Host) -> Sequence[Unit]: ...

    def directories(self, host: Host) -> Iterable[Path]: ...

    def concerns(self, event: Uevent) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PciFilter:
    """What several kinds ask of the PCI function that they are behind; empty means any."""

    vendor: Sequence[str] = ()
    device: Sequence[str] = ()
    driver: Sequence[str] = ()
    address: Sequence[str] = ()

    def accepts(self, function: PciFunction | None) -> bool:
        if function is None:
            return not (self.vendor or self.device or self.driver or self.address)
        return (
            matches_id(self.vendor, function.vendor)
            and matches_id(self.device, function.device)
            and matches(self.driver, function.driver)
            and matches(self.address, function.address)
        )


def facts_of(unit: Unit) -> dict[str, str]:
    paths = [member.path for member in unit.members]
    return {
        **unit.facts,
        "id": unit.id,
        "node": paths[0] if paths else "",
        "nodes": ",".join(paths),
        "numa": ",".join(map(str, unit.numa)),
    }


def function_behind(directory: Path) -> PciFunction | None:
    """The PCI function that a device is behind."""
    address = sysfs.pci_address_of(directory)
    place = sysfs.real(directory)
    return next(
        (sysfs.pci_function(each) for each in (place, *place.parents) if address and each.name == address), None
    )


def pattern(text: str) -> Callable[[str], object]:
    r"""`*`, `?` and `[…]`, where `[!…]` and `[^…]` are the others; `\` takes its meaning from what follows."""
    text = _ESCAPED.sub(lambda found: f"[{found[1]}]" if found[1] not in "^!" else found[1], text)
    return re.compile(translate(text.replace("[^", "[!"))).match


def matches(patterns: Sequence[str], text: str) -> bool:
    """Whether there is nothing to match, or one of them does."""
    return not patterns or any(pattern(each)(text) for each in patterns)


def matches_id(ids: Sequence[str], text: str) -> bool:
    return not ids or text.lower() in {each.lower().removeprefix("0x") for each in ids}


_LONGEST = 50  # of 63; the rest is for the number of a copy
_UNPRINTED = re.compile(r"[^A-Za-z0-9_.:-]+")
_SEPARATOR = "::"


class Naming(StrEnum):
    """`gdp` are the ids of generic-device-plugin, `index` those of the shared RDMA plugin: running pods keep theirs."""

    STABLE = "stable"
    GDP = "gdp"
    INDEX = "index"


def stable(*parts: str) -> str:
    """One name out of what identifies a device; what is too long ends in a sum of the whole."""
    whole = "-".join(part for part in parts if part)
    name = _UNPRINTED.sub("_", whole).strip("_.:-") or "device"
    if name == whole and len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 9]}-{zlib.crc32(whole.encode()):08x}" if len(name) > _LONGEST else name


def distinct(units: Sequence[Unit]) -> list[Unit]:
    """The same units, no two with one id: clones share even their serial numbers, so all of those get their paths."""
    counts = Counter(unit.id for unit in units)
    named = [unit if counts[unit.id] == 1 else replace(unit, id=_with_place(unit)) for unit in units]
    return list({unit.id: unit for unit in named}.values())


def kept(before: Iterable[Unit], found: Sequence[Unit]) -> list[Unit]:
    """The same units; one that was here before its clone came keeps the name that a pod may hold it by."""
    names = {(unit.facts.get("serial"), unit.facts["port"]): unit.id for unit in before if unit.facts.get("port")}
    taken = {unit.id for unit in found}
    renamed = []
    for unit in found:
        name = names.get((unit.facts.get("serial"), unit.facts.get("port", "")), unit.id)
        renamed.append(unit if name in taken else replace(unit, id=name))
    return renamed


def copies(naming: Naming, units: Sequence[Unit], count: int) -> Iterator[tuple[str, Unit]]:
    """The ids under which each unit is offered: as often as containers may have it at a time."""
    number = 0
    for unit in units:
        for copy in range(unit.count or count):
            match naming:
                case Naming.GDP:
                    yield _gdp(unit, copy), unit
                case Naming.INDEX:
                    yield str(number), unit
                case Naming.STABLE:
                    # The first copy has the plain id, so that a higher count leaves it as it is.
                    yield unit.id if copy == 0 else f"{unit.id}{_SEPARATOR}{copy}", unit
            number += 1


def _gdp(unit: Unit, copy: int) -> str:
    import hashlib  # loads OpenSSL, 4 MiB that only those pay who come from there

    text = f"{copy}{''.join(member.path for member in unit.members)}"
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _with_place(unit: Unit) -> str:
    place = unit.facts.get("port") or unit.facts.get("pci") or "".join(member.path for member in unit.members)
    # What loses a character on the way into an id may be the same as another: /dev/t! and /dev/t*.
    plain = len(place) < 20 and not _UNPRINTED.search(place)
    return stable(unit.id, place if plain else f"{zlib.crc32(place.encode()):08x}")
