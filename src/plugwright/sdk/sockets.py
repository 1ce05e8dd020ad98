"""Watches a directory of sockets, and names and clears our own in it.

The kubelet tells nobody that it has restarted: its socket appearing anew, and ours disappearing, are the only signs.
"""

import asyncio
import hashlib
import logging
import os
import re
import secrets
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from asyncinotify import Event, Inotify, Mask

from plugwright.protocol import paths
from plugwright.sdk.newest import Newest

__all__ = ["SocketDirectory", "fixed_name", "fresh_name", "remove_stale"]

logger = logging.getLogger(__name__)

_PREFIX = "plugwright-"
_INSIDE = Mask.CREATE | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR
_POLL = 1.0  # seconds between looks where inotify is not to be had
_NEWBORN = 1.0  # a socket younger than this may belong to someone who is about to listen

Identity = tuple[int, int]


class SocketDirectory:
    """What is in a directory that may not be there yet, or may be made anew at any time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ticks = Newest(0)  # goes up whenever something in the directory may have changed
        self._created: Counter[str] = Counter()

    def identity(self, name: str) -> Identity | None:
        """Changes when the file is made anew, even if the kernel gives it the same inode number; None if absent."""
        try:
            return self.path.joinpath(name).stat().st_ino, self._created[name]
        except OSError:
            return None

    async def appears(self, name: str) -> Identity:
        await self.ticks.until(lambda _: self.identity(name) is not None)
        return self.identity(name) or (0, 0)

    async def changes_from(self, name: str, identity: Identity | None) -> None:
        """Returns when there is such a file and it is another one than `identity`."""
        await self.ticks.until(lambda _: self.identity(name) not in (identity, None))

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Keeps `ticks` true while inside."""
        watch = asyncio.create_task(self._watch(), name=f"watch {self.path}")
        try:
            yield
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch

    async def _watch(self) -> None:
        try:
            with Inotify() as inotify:
                while True:
                    await self._follow(inotify)
        except OSError as error:
            # The node's inotify instances are a shared, small number: when they are used up, looking is what is left.
            logger.warning("no inotify, looking every second", extra={"directory": str(self.path), "error": str(error)})
            await self._poll()

    async def _follow(self, inotify: Inotify) -> None:
        """Follows the directory, or what is there of the way to it, until that is replaced."""
        place = self._nearest()
        with suppress(FileNotFoundError, NotADirectoryError):
            watch = inotify.add_watch(place, _INSIDE)
            self._tick()
            while place == self._nearest():
                self._note(await inotify.get(), place)
                if watch not in inotify.watches:
                    return
            inotify.rm_watch(watch)

    def _nearest(self) -> Path:
        place = self.path
        while not place.is_dir() and place != place.parent:
            place = place.parent
        return place

    def _note(self, event: Event, place: Path) -> None:
        if place == self.path and event.name is not None and event.mask & (Mask.CREATE | Mask.MOVED_TO):
            self._created[event.name.name] += 1
        self._tick()

    async def _poll(self) -> None:
        while True:
            self._tick()
            await asyncio.sleep(_POLL)

    def _tick(self) -> None:
        self.ticks.publish(self.ticks.value + 1)


def fresh_name(resource: str) -> str:
    """A name no socket had before: a kubelet may still be busy with the last one."""
    return f"{_PREFIX}{_stem(resource)}-{secrets.token_hex(3)}.sock"


def fixed_name(resource: str) -> str:
    """The one name this resource has in plugins_registry."""
    return f"{_PREFIX}{_stem(resource)}.sock"


def _stem(resource: str) -> str:
    """Readable, and different for different resources, within the room that the kernel leaves."""
    readable = re.sub(r"[^a-z0-9]+", "_", resource.lower())[-24:].strip("_")
    return f"{readable}-{hashlib.sha256(resource.encode()).hexdigest()[:6]}"


def remove_stale(directory: Path) -> list[str]:
    """Removes sockets of ours that nobody listens on any more: what a killed run left behind."""
    removed = []
    with suppress(OSError):
        for path in sorted(directory.glob(f"{_PREFIX}*.sock")):
            if _is_dead(path):
                path.unlink(missing_ok=True)
                removed.append(path.name)
    return removed


def _is_dead(path: Path) -> bool:
    try:
        if not path.is_socket() or time.time() - path.lstat().st_ctime < _NEWBORN:
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            probe.connect(os.fspath(paths.check_socket_path(path)))
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
