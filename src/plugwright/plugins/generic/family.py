"""Families of ordinary devices: a filter, a selector, and the options of `allocation.HandoutOptions` beside them.

Several filters in a list are alternatives; the keys inside one must all match; a list of values matches if one of them
does. Texts in filters are patterns with `*`, `?` and `[…]`. Hexadecimal ids are texts: quote them.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from plugwright.errors import ConfigError
from plugwright.plugins.generic import allocation, safety
from plugwright.plugins.generic.allocation import HandoutOptions
from plugwright.plugins.generic.hardware import AllAsOne, Excluding, Selector, as_list
from plugwright.plugins.generic.plugin import Generic, HostAccess
from plugwright.sdk.device_family import (
    DeviceFamily,
    FamilyContext,
    HostDirectory,
    HostSettings,
    InvalidSetting,
    ResourceEntry,
)
from plugwright.sdk.sysfs import Host

__all__ = ["SelectorFamily"]


class SelectorFamily(DeviceFamily[Any]):
    """`select` makes a selector of the filters in a file.

    `named_paths`: the paths that filters name outright, which are refused when the file is read if they are dangerous;
    what a wildcard matches is refused when it is found. `directories`: those outside of /dev and /sys that filters look
    into. `takes_info`: whether the option `info` is allowed.
    """

    options = HandoutOptions

    def __init__(
        self,
        settings: Any,
        select: Callable[[list[Any], HandoutOptions], Selector],
        *,
        named_paths: Callable[[list[Any]], Iterable[str]] = lambda filters: (),
        directories: Callable[[list[Any]], Iterable[str]] = lambda filters: (),
        takes_info: bool = False,
    ) -> None:
        self.settings = settings
        self._select, self._named_paths, self._takes_info = select, named_paths, takes_info
        self._directories = directories

    def plugin(self, entry: ResourceEntry[Any], context: FamilyContext) -> Generic:
        options: HandoutOptions = entry.options
        allocation.check_options(options)
        if options.info and not self._takes_info:
            raise InvalidSetting("info is only valid together with pci", "info")
        for path in self._named_paths(as_list(entry.settings)):
            danger = "" if options.dangerous else safety.danger_of_path(path.rstrip("/") or "/")
            if danger:
                raise ConfigError(f"{danger}: needs 'dangerous: true'")
        selector = self.selector(entry)
        exclusive = [other.family.selector(other) for other in self.context(context.earlier)]
        access = HostAccess(
            host=Host(Path(context.host.root)),
            hotplug=context.hotplug,
            device_info=Path(context.host.device_info),
            cdi=Path(context.host.cdi),
        )
        return Generic(entry.name, Excluding(selector, exclusive) if exclusive else selector, options, access)

    def redirected(self, entry: ResourceEntry[Any], directory: Path) -> ResourceEntry[Any]:
        """As it is: the files are written where the settings of the host say."""
        return entry

    def host_directories(self, entry: ResourceEntry[Any], host: HostSettings) -> list[HostDirectory]:
        root = host.root.rstrip("/")
        seen = ["/dev", "/sys", *(["/proc"] if root else []), *self._directories(as_list(entry.settings))]
        paths = [HostDirectory(path, f"{root}{path}" if root else "") for path in dict.fromkeys(seen)]
        if self._takes_info:
            paths.append(HostDirectory(host.device_info, written=True))
        if entry.options.cdi:
            paths.append(HostDirectory(host.cdi, written=True))
        return paths

    def selector(self, entry: ResourceEntry[Any]) -> Selector:
        filters = as_list(entry.settings)
        if not filters:
            raise ConfigError("must have at least one filter, got an empty list")
        selector = self._select(filters, entry.options)
        return AllAsOne(selector) if entry.options.together else selector

    def context(self, entries: Iterable[ResourceEntry[Any]]) -> list[Any]:
        """The resources whose devices others do not get."""
        return [entry for entry in entries if isinstance(entry.family, SelectorFamily) and entry.options.exclusive]
