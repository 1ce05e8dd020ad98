"""Resources whose names are found out: `nvidia.com/mig-{profile}` stands for one of each profile that the machine has.

A family becomes plain entries, one for each name, as soon as the machine is seen to have devices for it; from there on
everything is as if they had been written so. A name that was found stays: its devices may be held by pods.
"""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

import msgspec

from plugwright.config import nvidia, nvidia_build
from plugwright.config.nvidia import NvidiaEntry
from plugwright.config.schema import Config, ResourceEntry
from plugwright.plugins.nvidia.monitor import GpuMonitor
from plugwright.sdk.plugin import Plugin

__all__ = ["Families"]

Wish = Callable[[], None]


class Families:
    """Those of one daemon, whatever its file says by and by."""

    def __init__(self) -> None:
        self._watches: dict[str, GpuMonitor] = {}
        self._begun: set[str] = set()
        self._found: dict[str, tuple[ResourceEntry, dict[str, ResourceEntry]]] = {}
        self._config: Config | None = None
        self._shown: Config | None = None

    def expanded(self, config: Config) -> Config:
        """The same with plain entries for the families, as far as the machines have been seen."""
        self._config = config
        entries = [each for entry in config.file.resources for each in self._members(entry)]
        self._shown = replace(config, file=msgspec.structs.replace(config.file, resources=entries))
        return self._shown

    def adopt(self, plugins: Sequence[Plugin]) -> list[Plugin]:
        """The same plugins; those of a machine that is watched here share that watch."""
        return nvidia_build.joined(plugins, list(self._watches.values()))

    async def follow(self, stack: AsyncExitStack, wish: Wish) -> None:
        """Begins to watch the machines that a file has brought, until `stack` ends; wishes when there is a new name."""

        def news() -> None:
            shown = self._shown
            if self._config is not None and shown is not None and self.expanded(self._config).file != shown.file:
                wish()

        for name in sorted(set(self._watches) - self._begun):
            await stack.enter_async_context(self._watches[name].watching(news))
            self._begun.add(name)

    def _members(self, entry: ResourceEntry) -> list[ResourceEntry]:
        if entry.nvidia is None or not nvidia.is_family(entry.name):
            return [entry]
        whole = nvidia.whole_family(entry.name, entry.nvidia)
        known = self._found.get(entry.name)
        if known is None or known[0] != entry:
            known = self._found[entry.name] = (entry, {})
        for name, member in nvidia_build.members(entry.name, whole, self._watch(whole)).items():
            known[1][name] = msgspec.structs.replace(entry, name=name, nvidia=member)
        return [known[1][name] for name in sorted(known[1])]

    def _watch(self, entry: NvidiaEntry) -> GpuMonitor:
        watch = nvidia_build.watch(entry)
        return self._watches.setdefault(watch.driver.name, watch)
