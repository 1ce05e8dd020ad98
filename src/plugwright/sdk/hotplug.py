"""Waits for hardware to change: by the kernel's uevents, by inotify, and by a slow look now and then.

Uevents say it first; inotify sees what has no uevent (a link that udev makes later, a socket, a node made by hand); the
slow look is for what neither tells. What changed is not said: whoever waits looks at everything anew.
"""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from asyncinotify import Inotify, Mask, Watch

from plugwright.sdk import uevents

__all__ = ["Hotplug", "Pace"]

logger = logging.getLogger(__name__)

_MASK = Mask.CREATE | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds. `rescan`: between slow looks; `blind`: the same where uevents cannot be heard."""

    rescan: float = 300.0
    blind: float = 30.0
    burst: float = 0.05  # news closer together than this are one
    gap: float = 1.0  # between two looks, when news do not end


class Hotplug:
    """`accept` says which uevents are of interest; `listen` opens the socket that they come from."""

    def __init__(
        self,
        accept: Callable[[uevents.Uevent], bool] = lambda event: True,
        listen: Callable[[], socket.socket] = uevents.listen,
        pace: Pace | None = None,
    ) -> None:
        self._accept, self._listen, self._pace = accept, listen, pace or Pace()
        self._changed = asyncio.Event()
        self._inotify: Inotify | None = None
        self._watches: dict[Path, Watch] = {}
        self._hears = False
        self._looked = 0.0

    def touch(self) -> None:
        """Something may have changed."""
        self._changed.set()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        hearing = self._hear()
        self._inotify = self._open_inotify()
        reader = asyncio.create_task(self._read(), name="hotplug")
        try:
            yield
        finally:
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await reader
            self._close(hearing)

    async def change(self, directories: Iterable[Path]) -> None:
        """Returns when something in `directories` or in the hardware may have changed since the last call returned."""
        self._follow({_nearest(each) for each in directories})
        slow = self._pace.rescan if self._hears else self._pace.blind
        with suppress(TimeoutError):
            async with asyncio.timeout(slow):
                await self._changed.wait()
                await asyncio.sleep(max(self._pace.burst, self._looked + self._pace.gap - time.monotonic()))
        self._changed.clear()
        self._looked = time.monotonic()

    def _hear(self) -> socket.socket | None:
        try:
            hearing = self._listen()
        except OSError as error:
            logger.warning("no uevents, looking now and then", extra={"error": str(error), "seconds": self._pace.blind})
            return None
        hearing.setblocking(False)
        asyncio.get_running_loop().add_reader(hearing, self._drain, hearing)
        self._hears = True
        return hearing

    def _drain(self, hearing: socket.socket) -> None:
        try:
            while True:
                event = uevents.receive(hearing)
                if event is not None and self._accept(event):
                    self._changed.set()
        except BlockingIOError:
            return
        except OSError:  # more events than the buffer holds: some are lost, so everything may have changed
            self._changed.set()

    def _open_inotify(self) -> Inotify | None:
        try:
            return Inotify()
        except OSError as error:
            # The node's inotify instances are a shared, small number: uevents and slow looks are what is left.
            logger.warning("no inotify, links and sockets are seen late", extra={"error": str(error)})
            return None

    async def _read(self) -> None:
        if self._inotify is None:
            return
        async for event in self._inotify:
            if event.mask & Mask.MOVE_SELF and event.watch is not None:
                self._forget(event.watch.path)  # it would follow the directory to where it went
            self._changed.set()

    def _follow(self, directories: set[Path]) -> None:
        """Watches these directories and no others. What came before a watch was there may have been missed."""
        if self._inotify is None:
            return
        alive = self._inotify.watches  # the kernel removes a watch with its directory
        for path in [path for path, watch in self._watches.items() if path not in directories or watch not in alive]:
            self._forget(path)
        for path in directories - self._watches.keys():
            self._changed.set()
            with suppress(OSError):  # gone since we looked
                self._watches[path] = self._inotify.add_watch(path, _MASK)

    def _forget(self, path: Path) -> None:
        watch = self._watches.pop(path, None)
        if self._inotify is not None and watch in self._inotify.watches:
            with suppress(OSError):
                self._inotify.rm_watch(watch)

    def _close(self, hearing: socket.socket | None) -> None:
        if hearing is not None:
            asyncio.get_running_loop().remove_reader(hearing)
            hearing.close()
        if self._inotify is not None:
            self._inotify.close()
        self._inotify, self._watches, self._hears = None, {}, False


def _nearest(directory: Path) -> Path:
    while not directory.is_dir() and directory != directory.parent:
        directory = directory.parent
    return directory
