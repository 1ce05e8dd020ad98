"""Several nodes as one device: the first of every pattern, all of one piece of hardware, or all nodes."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from plugwright.errors import InvalidValue
from plugwright.plugins.generic import hardware, paths, usb
from plugwright.plugins.generic.allocation import HandoutOptions
from plugwright.plugins.generic.family import SelectorFamily, directories_of
from plugwright.plugins.generic.hardware import DeviceFilter, Selector, Unit, as_list
from plugwright.plugins.generic.paths import PathPattern, PathSelector
from plugwright.plugins.generic.usb import UsbFilter, UsbSelector
from plugwright.sdk import sysfs
from plugwright.sdk.device_family import AbsolutePath
from plugwright.sdk.hotplug import Uevent
from plugwright.sdk.sysfs import Host

__all__ = ["FAMILY", "DeviceGroup", "GroupSelector"]

GroupedBy = Literal["order", "parent", "all"]


class DeviceGroup(DeviceFilter, frozen=True):
    """Several nodes as one device.

    `by` defines which nodes belong together: `order` (the first of every path, the second of every path, …), `parent`
    (those of one piece of hardware, such as the camera and the microphone of one USB device), or `all`. `count`
    defaults to the resource's.
    """

    paths: list[AbsolutePath | PathPattern] = msgspec.field(default_factory=list)
    usb: UsbFilter | list[UsbFilter] = msgspec.field(default_factory=list)
    by: GroupedBy = "order"
    count: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None

    def __post_init__(self) -> None:
        if not self.paths and not as_list(self.usb):
            raise InvalidValue("a group must have paths, usb, or both")

    def find(self, host: Host, by_letter: bool = False) -> list[Unit]:
        """The devices; `by_letter` in the order of generic-device-plugin instead of by number."""
        filters, patterns = as_list(self.usb), paths.patterns_of(self.paths)
        columns = [usb.find(host, filters)] if filters else []
        required = [True] * len(columns)
        for wanted in patterns:
            matched = paths.match(host, wanted.path).paths
            ordered = sorted(matched) if by_letter else matched
            columns.append([paths.unit(host, wanted, path) for path in ordered] * wanted.limit)
            required.append(not wanted.optional)
        if any(needed and not column for needed, column in zip(required, columns, strict=True)):
            return []
        rows = _rows(self.by, [column for column in columns if column], _longest(columns, patterns))
        return [replace(hardware.join_units(row), count=self.count) for row in rows]


class GroupSelector(msgspec.Struct, frozen=True):
    groups: Sequence[DeviceGroup]
    by_letter: bool = False

    def find(self, host: Host) -> list[Unit]:
        return hardware.distinct([unit for group in self.groups for unit in group.find(host, self.by_letter)])

    def directories(self, host: Host) -> Iterable[Path]:
        for selector in self._selectors():
            yield from selector.directories(host)

    def concerns(self, event: Uevent) -> bool:
        return any(selector.concerns(event) for selector in self._selectors())

    def _selectors(self) -> Iterable[Selector]:
        for group in self.groups:
            yield PathSelector(paths.patterns_of(group.paths))
            if as_list(group.usb):
                yield UsbSelector(as_list(group.usb))


def _select(groups: list[Any], options: HandoutOptions) -> Selector:
    return GroupSelector(groups, by_letter=options.ids == "gdp")


FAMILY = SelectorFamily(
    list[DeviceGroup],
    _select,
    named_paths=lambda groups: [path for group in groups for path in paths.literal_paths(group.paths)],
    mounts=directories_of("groups.paths.path"),
)


def _longest(columns: Sequence[Sequence[Unit]], patterns: Sequence[PathPattern]) -> int:
    """Number of rows. A match used several times does not make more devices than there are other matches."""
    offset = len(columns) - len(patterns)
    matches = [len(column) // wanted.limit for column, wanted in zip(columns[offset:], patterns, strict=True)]
    return max((*matches, *(len(column) for column in columns[:offset])), default=0)


def _rows(by: GroupedBy, columns: Sequence[Sequence[Unit]], longest: int) -> list[list[Unit]]:
    if not columns:
        return []
    match by:
        case "all":
            return [[unit for column in columns for unit in column]]
        case "parent":
            return _rows_by_parent(columns)
        case "order":
            length = min(longest, *(len(column) for column in columns))
            return [[column[index] for column in columns] for index in range(length)]


def _rows_by_parent(columns: Sequence[Sequence[Unit]]) -> list[list[Unit]]:
    """One device for each piece of hardware with a match in every column."""
    rows: dict[str, list[Unit]] = {}
    for index, column in enumerate(columns):
        for unit in column:
            parent = _parent_device(unit)
            if parent and (index == 0 or parent in rows):
                rows.setdefault(parent, []).append(unit)
    return [row for row in rows.values() if all(any(unit in column for unit in row) for column in columns)]


def _parent_device(unit: Unit) -> str:
    """The nearest USB or PCI device above a node."""
    directory = unit.directory
    while directory is not None and directory != directory.parent:
        if directory.joinpath("devnum").exists() or directory.name == sysfs.pci_address_of(directory):
            return str(directory)
        directory = directory.parent
    return ""
