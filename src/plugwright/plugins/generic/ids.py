"""Names of devices: the same after a reboot, after a replug, and on every start. Pure."""

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum

from plugwright.plugins.generic.units import Unit

__all__ = ["Naming", "copies", "distinct", "kept", "stable"]

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
