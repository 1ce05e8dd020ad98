"""Answers to Allocate, made in advance with the device list, so they need no thread later.

An answer is kept for each single unit until the next list. Its nodes are compared when it is used; the driver's files
in it are watched, and a change makes a new list. Answers for several units at a time are made on request.

A vgpu share needs an empty file for each container, which takes a thread; all its other files are written ahead, after
the list.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from plugwright.errors import InvalidValue, PluginError
from plugwright.model import Allocation
from plugwright.plugins.nvidia.allocation import AllocationBuilder
from plugwright.plugins.nvidia.sharing import GpuUnit, SharingBackend
from plugwright.sdk.device_nodes import KeptAllocations, NodeStamps, memory_file_systems, take_stamps
from plugwright.sdk.sysfs import Host
from plugwright.system.inotify import WatchedDirectories

__all__ = ["KeptAnswers"]

_MOST_UNITS = 512  # a list of sixty thousand shares would take seconds longer
_AT_ONCE = 16  # shares whose files are written at a time
_SETTLED = 1.0  # seconds after the first change of the driver's files; a package manager makes hundreds


class KeptAnswers:
    """`make` is called in the thread of a new list, all other methods on the event loop."""

    def __init__(self, builder: AllocationBuilder, backend: SharingBackend, republish: Callable[[], object]) -> None:
        self._builder, self._backend, self._republish = builder, backend, republish
        self._kept = self._made = KeptAllocations()
        self._watched = WatchedDirectories(self._files_changed)
        self._ahead: list[GpuUnit] = []
        self._listing: asyncio.TimerHandle | None = None

    def get(self, device_ids: Sequence[str]) -> Allocation | None:
        return self._kept.get(device_ids) if self._backend.is_lasting else None

    def renewed(self, units: Sequence[GpuUnit]) -> Allocation | None:
        """The answer for a backend without lasting answers; in a thread."""
        kept = None if self._backend.is_lasting else self._kept.get([unit.id for unit in units])
        return kept if kept is not None and self._backend.renew(units) else None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches for changes of the driver's files while inside."""
        with self._watched.watching():
            try:
                yield
            finally:
                self._kept = KeptAllocations()
                if self._listing is not None:
                    self._listing.cancel()
                    self._listing = None

    def make(self, units: Sequence[GpuUnit]) -> None:
        """Makes the answers. PluginErrors are left to allocate(), which raises them for the affected pod."""
        self._made = KeptAllocations()
        self._ahead = [] if self._backend.is_lasting or len(units) > _MOST_UNITS else list(units)
        if self._backend.is_lasting and len(units) <= _MOST_UNITS:
            self._make(self._made, units)

    @property
    def is_ahead(self) -> bool:
        """Whether all files are written ahead."""
        return not self._ahead

    def write_ahead(self) -> None:
        """Writes the files of some shares; in a thread."""
        units, self._ahead = self._ahead[:_AT_ONCE], self._ahead[_AT_ONCE:]
        self._make(self._made, units)

    def _make(self, made: KeptAllocations, units: Sequence[GpuUnit]) -> None:
        in_memory, stamps = memory_file_systems(), dict[tuple[str, ...], NodeStamps | None]()
        for unit in units:
            try:
                allocation = self._builder.build([unit], self._backend.restored([unit]))
            except (PluginError, InvalidValue, OSError):
                continue
            nodes = self._checked_nodes(allocation)
            if nodes not in stamps:
                stamps[nodes] = take_stamps(Host(), nodes, in_memory)
            if (found := stamps[nodes]) is not None:
                made.keep([unit.id], allocation, found)

    def take(self) -> None:
        """Uses the answers of the last `make` from now on."""
        directories = self._builder.driver_directories()
        if self._watched.replace(directories):  # changes before this moment were not noticed
            self._files_changed()
        elif directories and self._watched.problem:
            self._kept = KeptAllocations()
        else:
            self._kept = self._made

    def forget(self) -> None:
        self._kept = KeptAllocations()

    def _checked_nodes(self, allocation: Allocation) -> tuple[str, ...]:
        """The nodes to compare; those of a simulated GPU cannot be removed."""
        return () if self._builder.files.simulated else tuple(node.host_path for node in allocation.nodes)

    def _files_changed(self) -> None:
        self._kept = KeptAllocations()
        if self._listing is None:
            self._listing = asyncio.get_running_loop().call_later(_SETTLED, self._list_again)

    def _list_again(self) -> None:
        self._listing = None
        self._republish()
