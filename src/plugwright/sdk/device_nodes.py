"""Checks on the event loop whether device nodes were removed or replaced since they were read.

A stat can hang in a network file system or a failing disk, so files in general are read in threads. A node in devtmpfs
or tmpfs is different, because it is in memory. Its directory is kept open by a descriptor without access, so that
neither a link nor another mount in its path is followed; a link in place of the node is not followed either.
"""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

import msgspec

from plugwright.model import Allocation
from plugwright.sdk.sysfs import Host

__all__ = ["KeptAllocations", "NodeStamps", "memory_file_systems", "take_stamps"]

_MOUNTINFO = Path("/proc/self/mountinfo")
_IN_MEMORY = ("devtmpfs", "tmpfs")
_OPEN = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST = 4096  # kept allocations

_Stamp = tuple[int, int, int, int]


class _Directory:
    """An open directory, closed with its last stamp."""

    __slots__ = ("descriptor",)

    def __init__(self, path: Path) -> None:
        self.descriptor = -1
        self.descriptor = os.open(path, _OPEN)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class NodeStamps(msgspec.Struct, frozen=True):
    nodes: tuple[tuple[_Directory, str, _Stamp], ...] = ()

    def are_unchanged(self) -> bool:
        """Whether every node still exists unchanged; never blocks."""
        try:
            for directory, name, stamp in self.nodes:
                status = os.stat(name, dir_fd=directory.descriptor, follow_symlinks=False)
                if (status.st_mode, status.st_rdev, status.st_dev, status.st_ino) != stamp:
                    return False
        except OSError:
            return False
        return True


class KeptAllocations:
    """Allocations for `allocate_now()`, by device ids, with the nodes they rely on."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, ...], tuple[Allocation, NodeStamps]] = {}

    def keep(self, device_ids: Iterable[str], allocation: Allocation, stamps: NodeStamps | None = None) -> None:
        if len(self._kept) >= _MOST:
            self._kept.clear()
        self._kept[tuple(device_ids)] = allocation, stamps or NodeStamps()

    def get(self, device_ids: Iterable[str]) -> Allocation | None:
        """The kept allocation; None also if a node has changed."""
        kept = self._kept.get(tuple(device_ids))
        return kept[0] if kept is not None and kept[1].are_unchanged() else None

    def clear(self) -> None:
        self._kept = {}


def memory_file_systems(mountinfo: Path = _MOUNTINFO) -> frozenset[int]:
    """The numbers (st_dev) of the mounted file systems in memory; empty if the mounts cannot be read."""
    try:
        lines = [line.split(" ") for line in mountinfo.read_text(errors="replace").splitlines()]
    except OSError:
        return frozenset()
    kinds = [(words[2], words[words.index("-") + 1]) for words in lines if "-" in words]
    numbers = [number.partition(":") for number, kind in kinds if kind in _IN_MEMORY]
    return frozenset(os.makedev(int(major), int(minor)) for major, _, minor in numbers)


def take_stamps(host: Host, paths: Iterable[str], in_memory: frozenset[int]) -> NodeStamps | None:
    """The stamps of these host paths; None unless all are device nodes in memory. Can hang: call it in a thread."""
    directories: dict[Path, _Directory] = {}
    nodes: list[tuple[_Directory, str, _Stamp]] = []
    try:
        for path in dict.fromkeys(paths):
            seen = host.seen(path)
            if host.resolve(path) != path:
                return None
            directory = directories.get(seen.parent) or directories.setdefault(seen.parent, _Directory(seen.parent))
            status = os.stat(seen.name, dir_fd=directory.descriptor, follow_symlinks=False)
            is_node = stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)
            if not is_node or status.st_dev not in in_memory:
                return None
            nodes.append((directory, seen.name, (status.st_mode, status.st_rdev, status.st_dev, status.st_ino)))
    except (OSError, ValueError):
        return None
    return NodeStamps(tuple(nodes))
