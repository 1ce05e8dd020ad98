"""Families of ordinary devices: each has a filter and a selector, and the options of `allocation.HandoutOptions`.

Several filters in a list are alternatives; the keys in one filter must all match; a list of values matches if one value
does. Texts in filters are patterns with `*`, `?` and `[…]`. Hexadecimal ids are strings: quote them.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from plugwright.errors import ConfigError, InvalidSetting
from plugwright.plugins.generic import allocation, safety
from plugwright.plugins.generic.allocation import HandoutOptions
from plugwright.plugins.generic.hardware import AllAsOne, Excluding, Selector, as_list
from plugwright.plugins.generic.plugin import Generic, HostAccess
from plugwright.sdk.device_family import DeviceFamily, FamilyContext, HostSettings, ResourceEntry
from plugwright.sdk.host_mounts import HOST_ROOT, FromSettings, HostMount, When
from plugwright.sdk.sysfs import Host

__all__ = ["SelectorFamily", "directories_of"]

_SEEN = (
    HostMount(path="/dev", below_root=True),
    HostMount(path="/sys", below_root=True),
    HostMount(path="/proc", below_root=True, when=(When(HOST_ROOT, none_of=("/",)),)),
)
_CDI = HostMount(
    path=FromSettings(("host.cdi",), HostSettings().cdi),
    when=(When(FromSettings(("cdi",)), one_of=("true",)),),
    written=True,
)
_DEVICE_INFO = HostMount(path=FromSettings(("host.deviceInfo",), HostSettings().device_info), written=True)


def directories_of(setting: str) -> tuple[HostMount, ...]:
    """The directories of the paths in a setting; /dev and /sys are mounted for every family anyway."""
    paths = FromSettings((setting,), part="before-wildcard")
    return (HostMount(path=paths, below_root=True, unless_below=("/dev", "/sys")),)


class SelectorFamily(DeviceFamily[Any]):
    """`select` makes a selector from the filters in a file.

    `named_paths`: the literal paths in filters, which are rejected if dangerous when the file is read; dangerous
    matches of wildcards are rejected when they are found. `mounts`: the node's directories for the daemon besides /dev
    and /sys. `takes_info`: whether the option `info` is allowed.
    """

    options = HandoutOptions

    def __init__(
        self,
        settings: Any,
        select: Callable[[list[Any], HandoutOptions], Selector],
        *,
        named_paths: Callable[[list[Any]], Iterable[str]] = lambda filters: (),
        mounts: tuple[HostMount, ...] = (),
        takes_info: bool = False,
    ) -> None:
        self.settings = settings
        self._select, self._named_paths, self._takes_info = select, named_paths, takes_info
        self.mounts = (*_SEEN, *mounts, *([_DEVICE_INFO] if takes_info else []), _CDI)

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
        """Unchanged: the settings of the host decide where files are written."""
        return entry

    def selector(self, entry: ResourceEntry[Any]) -> Selector:
        filters = as_list(entry.settings)
        if not filters:
            raise ConfigError("must have at least one filter, got an empty list")
        selector = self._select(filters, entry.options)
        return AllAsOne(selector) if entry.options.together else selector

    def context(self, entries: Iterable[ResourceEntry[Any]]) -> list[Any]:
        """The resources whose devices no other resource gets."""
        return [entry for entry in entries if isinstance(entry.family, SelectorFamily) and entry.options.exclusive]
