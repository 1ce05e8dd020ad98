"""Several nodes that are one device: the first of every pattern, those of one piece of hardware, or all there are."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from plugwright.plugins.generic import hardware, paths, usb
from plugwright.plugins.generic.hardware import Selector, Unit
from plugwright.plugins.generic.paths import PathPattern
from plugwright.plugins.generic.usb import UsbFilter, UsbSelector
from plugwright.sdk import sysfs
from plugwright.sdk.hotplug import Uevent
from plugwright.sdk.sysfs import Host

__all__ = ["By", "Group", "GroupSelector", "Together", "joined"]


class By(StrEnum):
    """`order`: the first match of every pattern, then the second; `parent`: those of one USB or PCI device; `all`."""

    ORDER = "order"
    PARENT = "parent"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    patterns: Sequence[PathPattern] = ()
    usb: Sequence[UsbFilter] = ()
    by: By = By.ORDER
    count: int | None = None
    sort: bool = False  # letter by letter, as generic-device-plugin does, instead of by number

    def find(self, host: Host) -> list[Unit]:
        columns = [usb.find(host, self.usb)] if self.usb else []
        required = [True] * len(columns)
        for wanted in self.patterns:
            matched = paths.look_for(host, wanted.path).paths
            found = sorted(matched) if self.sort else matched
            columns.append([paths.unit(host, wanted, path) for path in found] * wanted.limit)
            required.append(not wanted.optional)
        if any(needed and not column for needed, column in zip(required, columns, strict=True)):
            return []
        rows = _rows(self.by, [column for column in columns if column], self._longest(columns))
        return [replace(joined(row), count=self.count) for row in rows]

    def _longest(self, columns: Sequence[Sequence[Unit]]) -> int:
        """A match that may be used several times does not make more devices than there are other matches."""
        offset = len(columns) - len(self.patterns)
        natural = [len(column) // each.limit for column, each in zip(columns[offset:], self.patterns, strict=True)]
        return max((*natural, *(len(column) for column in columns[:offset])), default=0)


@dataclass(frozen=True, slots=True)
class GroupSelector:
    groups: Sequence[Group]

    def find(self, host: Host) -> list[Unit]:
        return hardware.distinct([unit for group in self.groups for unit in group.find(host)])

    def directories(self, host: Host) -> Iterable[Path]:
        for group in self.groups:
            yield from paths.PathSelector(group.patterns).directories(host)
            if group.usb:
                yield from UsbSelector(group.usb).directories(host)

    def concerns(self, event: Uevent) -> bool:
        return any(
            paths.PathSelector(group.patterns).concerns(event)
            or (bool(group.usb) and UsbSelector(group.usb).concerns(event))
            for group in self.groups
        )


@dataclass(frozen=True, slots=True)
class Together:
    """All that another selector finds, as one device. It works as long as one of its parts does."""

    parts: Selector

    def find(self, host: Host) -> list[Unit]:
        found = self.parts.find(host)
        working = [unit for unit in found if not unit.fault and not unit.danger]
        return [replace(joined(working or found), id="all", one_is_enough=True)] if found else []

    def directories(self, host: Host) -> Iterable[Path]:
        return self.parts.directories(host)

    def concerns(self, event: Uevent) -> bool:
        return self.parts.concerns(event)


def joined(units: Sequence[Unit]) -> Unit:
    """One unit out of several: what one of them cannot do, the whole cannot."""
    if len(units) == 1:
        return units[0]
    facts: dict[str, str] = {}
    for name in dict.fromkeys(name for unit in units for name in unit.facts):
        facts[name] = ",".join(dict.fromkeys(value for unit in units if (value := unit.facts.get(name))))
    return Unit(
        id=hardware.stable(*(unit.id for unit in units)),
        members=tuple(dict.fromkeys(member for unit in units for member in unit.members)),
        facts=facts,
        numa=tuple(sorted({node for unit in units for node in unit.numa})),
        fault=next((unit.fault for unit in units if unit.fault), ""),
        danger=next((unit.danger for unit in units if unit.danger), ""),
        directory=units[0].directory,
        anchor=units[0].anchor,
        details={name: detail for unit in units for name, detail in unit.details.items()},
        parts=tuple(units),
    )


def _rows(by: By, columns: Sequence[Sequence[Unit]], longest: int) -> list[list[Unit]]:
    if not columns:
        return []
    match by:
        case By.ALL:
            return [[unit for column in columns for unit in column]]
        case By.PARENT:
            return _by_parent(columns)
        case By.ORDER:
            length = min(longest, *(len(column) for column in columns))
            return [[column[place] for column in columns] for place in range(length)]


def _by_parent(columns: Sequence[Sequence[Unit]]) -> list[list[Unit]]:
    """One device for each piece of hardware that has a match in every column."""
    rows: dict[str, list[Unit]] = {}
    for place, column in enumerate(columns):
        for unit in column:
            parent = _hardware(unit)
            if parent and (place == 0 or parent in rows):
                rows.setdefault(parent, []).append(unit)
    return [row for row in rows.values() if all(any(unit in column for unit in row) for column in columns)]


def _hardware(unit: Unit) -> str:
    """The nearest USB or PCI device above a node."""
    place = unit.directory
    while place is not None and place != place.parent:
        if place.joinpath("devnum").exists() or place.name == sysfs.pci_address_of(place):
            return str(place)
        place = place.parent
    return ""
