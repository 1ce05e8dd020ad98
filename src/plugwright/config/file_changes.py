"""Reports possible changes of the operator's file: writes, and changes of links or directories on its path.

A link is followed wherever it is: `releases/current` pointed to another release, the `..data` of a mounted ConfigMap, a
link to a file in another directory. So every directory in which a part of the path is looked up is watched: for its
entries where that part is a link, is missing or is the file, else only for being moved or removed itself, for `/` and
`/tmp` have many entries that are none of ours. After each change the path is looked up again.
"""

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import msgspec

from plugwright.system.blocking import BlockingCalls
from plugwright.system.inotify import Directory
from plugwright.system.latest import Signal

__all__ = ["SETTLE", "LookupDirectory", "file_changes", "lookup_directories"]

SETTLE = 0.1  # seconds from the first change to the next look: editors write in many steps
_LINKS = 40  # as many as the kernel follows
_LOOKUP_LIMIT = 10.0  # seconds


class LookupDirectory(msgspec.Struct, frozen=True, order=True):
    """A directory in which a part of a path is looked up; another one at the same path has another inode."""

    path: Path
    entries: bool
    inode: tuple[int, int]


async def file_changes(path: Path, settle: float = SETTLE) -> AsyncGenerator[None, None]:
    """Yields at first, and `settle` seconds after a possible change of the file at `path`. Close it with `aclosing`.

    CallUnfinished if the path cannot be looked up in time.
    """
    changed, lookups = Signal(), BlockingCalls("lookup of the configuration", _LOOKUP_LIMIT, most_hung=1)
    watched = _WatchedLookup(changed.notify)
    try:
        async for _ in changed.notifications():
            await asyncio.sleep(settle)
            # In a thread: the file can be on a server that does not answer. Again, because a directory can have changed
            # before it was watched.
            while await watched.replace(await lookups.run(partial(lookup_directories, path))):
                pass
            yield
    finally:
        await watched.replace(set())


def lookup_directories(path: Path) -> set[LookupDirectory]:
    """The directories that the kernel passes on the way to a file, as far as it gets."""
    passed: dict[Path, bool] = {}
    at, left, links = Path("/"), list(path.absolute().parts[:0:-1]), 0
    while left:
        part = left.pop()
        if part == "..":
            at = at.parent
            continue
        mode = _mode(at / part)
        is_plain = stat.S_ISDIR(mode) and bool(left)
        passed[at] = passed.get(at, False) or not is_plain
        if stat.S_ISLNK(mode) and links < _LINKS:
            links += 1
            target = _target(at / part)
            at = Path("/") if target.is_absolute() else at
            left += [name for name in reversed(target.parts) if name != "/"]
        elif is_plain:
            at /= part
        else:
            break
    return {directory for at, entries in passed.items() for directory in _directory(at, entries)}


class _WatchedLookup:
    """A changing set of directories; one is polled if there is no inotify."""

    def __init__(self, changed: Callable[[], object]) -> None:
        self._changed = changed
        self._watched: dict[LookupDirectory, AsyncExitStack] = {}

    async def replace(self, wanted: set[LookupDirectory]) -> bool:
        """Watches these directories and no others; returns whether one of them was not watched before."""
        added = wanted - self._watched.keys()
        for looked_up in sorted(added):
            directory = Directory(looked_up.path, writes=looked_up.entries, entries=looked_up.entries)
            self._watched[looked_up] = stack = AsyncExitStack()
            await stack.enter_async_context(directory.watching())
            directory.changed.subscribe(self._changed)
        for looked_up in self._watched.keys() - wanted:  # after the others: the inotify instance stays open
            await self._watched.pop(looked_up).aclose()
        return bool(added)


def _directory(path: Path, entries: bool) -> list[LookupDirectory]:
    try:
        status = path.stat()
    except OSError:  # gone since it was passed, which a later look sees
        return []
    # A directory that we may pass but not read cannot be watched, such as another user's.
    readable = os.access(path, os.R_OK)
    return [LookupDirectory(path, entries, (status.st_dev, status.st_ino))] if readable else []


def _mode(path: Path) -> int:
    """The type of a file, links not followed; 0 if there is none."""
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


def _target(link: Path) -> Path:
    try:
        return link.readlink()
    except OSError:  # removed meanwhile
        return Path()
