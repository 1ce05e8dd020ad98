"""Resources whose names are found out: `nvidia.com/mig-{profile}` stands for one of each profile that the machine has.

Which names were found, and that they stay, is `resource_names`' to remember.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from plugwright.config import nvidia, nvidia_build
from plugwright.config.nvidia import NvidiaEntry
from plugwright.plugins.nvidia.monitor import GpuMonitor
from plugwright.sdk.families import ResourceEntry
from plugwright.sdk.plugin import Plugin

__all__ = ["NvidiaNames"]


class NvidiaNames:
    """Those of one daemon, whatever its file says by and by."""

    def __init__(self) -> None:
        self._watches: dict[str, GpuMonitor] = {}

    def members(self, entry: ResourceEntry[NvidiaEntry]) -> Mapping[str, NvidiaEntry]:
        whole = nvidia.whole_family(entry.name, entry.settings)
        watch = nvidia_build.watch(whole)
        return nvidia_build.members(entry.name, whole, self._watches.setdefault(watch.driver.name, watch))

    def join(self, plugins: Sequence[Plugin]) -> None:
        nvidia_build.joined(plugins, list(self._watches.values()))

    def monitors(self) -> Mapping[str, Callable[[Callable[[], None]], AbstractAsyncContextManager[object]]]:
        return {name: watch.watching for name, watch in self._watches.items()}
