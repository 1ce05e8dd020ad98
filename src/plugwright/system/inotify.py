"""Watches a directory that may not be there yet, or may be made anew at any time.

The kubelet tells nobody that it has restarted: its socket appearing anew, and ours disappearing, are the only signs.
A ConfigMap is changed by exchanging a link beside the file.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from asyncinotify import Event, Inotify, Mask

from plugwright.system.concurrency import Latest

__all__ = ["Directory", "Identity", "settled_changes"]

logger = logging.getLogger(__name__)

_COMING_AND_GOING = (
    Mask.CREATE | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR
)
_POLL = 1.0  # seconds between looks where inotify is not to be had

Identity = tuple[int, int]


class Directory:
    """Files coming and going, and with `writes` also their content."""

    def __init__(self, path: Path, writes: bool = False) -> None:
        self.path = path
        self._mask = _COMING_AND_GOING | Mask.CLOSE_WRITE if writes else _COMING_AND_GOING
        self.ticks = Latest(0)  # goes up whenever something in the directory may have changed
        self._polling = False
        self._created: dict[str, int] = {}  # how often each name that was asked for has been made

    def identity(self, name: str) -> Identity | None:
        """Changes when the file is made anew, even if the kernel gives it the same inode number; None if absent."""
        created = self._created.setdefault(name, 0)
        try:
            status = self.path.joinpath(name).stat()
        except OSError:
            return None
        return status.st_ino, status.st_ctime_ns if self._polling else created

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
            watch = inotify.add_watch(place, self._mask)
            self._tick()
            while place == self._nearest():
                event = await inotify.get()
                self._note(event, place)
                if watch not in inotify.watches or event.mask & Mask.MOVE_SELF:
                    break
            with suppress(OSError):  # the kernel may have removed it with the directory
                inotify.rm_watch(watch)

    def _nearest(self) -> Path:
        place = self.path
        while not place.is_dir() and place != place.parent:
            place = place.parent
        return place

    def _note(self, event: Event, place: Path) -> None:
        made = event.name.name if event.name is not None and event.mask & (Mask.CREATE | Mask.MOVED_TO) else ""
        if place == self.path and made in self._created:
            self._created[made] += 1
        self._tick()

    async def _poll(self) -> None:
        self._polling = True
        while True:
            self._tick()
            await asyncio.sleep(_POLL)

    def _tick(self) -> None:
        self.ticks.publish(self.ticks.value + 1)


async def settled_changes(*directories: Path, settle: float = 0.1) -> AsyncGenerator[None, None]:
    """Yields at first, and `settle` seconds after something in the directories changed: editors write in many steps.

    For one file, watch its own directory and that of the file it links to. Close it with `aclosing`.
    """
    changed = Latest(0)
    async with AsyncExitStack() as stack:
        for path in sorted(set(directories)):
            directory = Directory(path, writes=True)
            directory.ticks.subscribe(lambda: changed.publish(changed.value + 1))
            await stack.enter_async_context(directory.watching())
        async for _ in changed.changes():
            await asyncio.sleep(settle)
            yield
