"""SR-IOV: which physical function a virtual one belongs to, and which of them an operator means. Mostly pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plugwright.errors import InvalidValue
from plugwright.plugins.generic.units import pattern
from plugwright.sdk import sysfs
from plugwright.sdk.sysfs import PciFunction

__all__ = ["Parent", "interfaces", "is_divided", "parse", "takes"]

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True, slots=True)
class Parent:
    """A physical function, by interface name or address, and which of its virtual ones; None for all."""

    name: str
    indexes: frozenset[int] | None = None


def parse(text: str) -> Parent:
    """`ens1f0`, `ens1f0#0-3,7`, `0000:3b:00.0#0`."""
    name, mark, ranges = text.partition("#")
    if not name:
        raise InvalidValue(f"a physical function looks like ens1f0 or ens1f0#0-3,7, not {text!r}")
    return Parent(name, _indexes(text, ranges) if mark else None)


def takes(parents: Sequence[Parent], function: PciFunction) -> bool:
    """Whether the function is one of those meant; the first that names its parent decides."""
    physical = function.directory.joinpath("physfn")
    above = sysfs.real(physical) if function.is_virtual else function.directory
    names = [above.name, *interfaces(above)]
    for parent in parents:
        if any(pattern(parent.name.lower())(name.lower()) for name in names):
            return parent.indexes is None or _index(above, function) in parent.indexes
    return False


def is_divided(function: PciFunction) -> bool:
    """A physical function with virtual ones; it is theirs now."""
    return sysfs.attribute(function.directory, "sriov_numvfs") not in ("", "0")


def interfaces(directory: Path) -> list[str]:
    """Of the function itself, or of the virtio device that it carries."""
    return sorted(
        each.name for each in (*sysfs.matching(directory, "net/*"), *sysfs.matching(directory, "virtio*/net/*"))
    )


def _index(above: Path, function: PciFunction) -> int:
    for link in sysfs.entries(above):
        if link.name.startswith("virtfn") and sysfs.real(link) == function.directory:
            return int(link.name.removeprefix("virtfn"))
    return -1


def _indexes(text: str, ranges: str) -> frozenset[int]:
    found: set[int] = set()
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or last > 65535:
            raise InvalidValue(f"virtual functions look like 0-3,7, not {ranges!r} in {text!r}")
        found.update(range(first, last + 1))
    return frozenset(found)
