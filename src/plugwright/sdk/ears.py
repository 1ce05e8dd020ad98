"""One socket for uevents and one inotify instance, lent to all who wait for hardware.

A node has few inotify instances, and many a process wants one. Both are opened when the first asks and closed when the
last has left. Where one is not to be had, that is said, and the other and slow looks have to do.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

from asyncinotify import Inotify, Mask, Watch

from plugwright.sdk import uevents
from plugwright.sdk.uevents import Uevent

__all__ = ["Ears", "Listener"]

logger = logging.getLogger(__name__)

_MASK = Mask.CREATE | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR


class Listener(Protocol):
    def touch(self) -> None: ...

    def hear(self, event: Uevent) -> None: ...


class Ears:
    """`listen` opens the socket that uevents come from."""

    def __init__(self, listen: Callable[[], socket.socket] = uevents.listen) -> None:
        self.hears = False
        self._listen = listen
        self._listeners: dict[Listener, dict[Path, Watch]] = {}
        self._socket: socket.socket | None = None
        self._inotify: Inotify | None = None
        self._reader: asyncio.Task[None] | None = None
        self._watches: dict[Path, Watch] = {}

    @asynccontextmanager
    async def lent_to(self, listener: Listener) -> AsyncIterator[None]:
        if not self._listeners:
            self._open()
        self._listeners[listener] = {}
        try:
            yield
        finally:
            del self._listeners[listener]
            if not self._listeners:
                await self._close()

    def follow(self, listener: Listener, directories: set[Path]) -> bool:
        """Has the listener told of these directories and no others; returns whether any of them is new."""
        if self._inotify is None:
            return False
        self._drop_dead()
        for path in directories - self._watches.keys():
            with suppress(OSError):  # gone since somebody looked
                self._watches[path] = self._inotify.add_watch(path, _MASK)
        before = self._listeners[listener]
        now = {path: self._watches[path] for path in directories & self._watches.keys()}
        self._listeners[listener] = now
        for path in self._watches.keys() - set().union(*self._listeners.values()):
            self._forget(path)
        # By the watch, not the path: of a directory made anew, another listener may have had it watched since.
        return any(before.get(path) is not now.get(path) for path in directories)

    def _open(self) -> None:
        try:
            hearing = self._listen()
            hearing.setblocking(False)
            asyncio.get_running_loop().add_reader(hearing, self._drain, hearing)
            self._socket, self.hears = hearing, True
        except OSError as error:
            logger.warning("no uevents, looking now and then", extra={"error": str(error)})
        try:
            self._inotify = Inotify()
            self._reader = asyncio.create_task(self._read(self._inotify), name="hotplug")
        except OSError as error:
            logger.warning("no inotify, links and sockets are seen late", extra={"error": str(error)})

    async def _close(self) -> None:
        # Forgotten before anything is waited for: whoever comes meanwhile opens everything anew.
        hearing, inotify, reader = self._socket, self._inotify, self._reader
        self._socket, self._inotify, self._reader, self._watches, self.hears = None, None, None, {}, False
        if hearing is not None:
            asyncio.get_running_loop().remove_reader(hearing)
            hearing.close()
        if reader is not None:
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await reader
        if inotify is not None:
            inotify.close()

    def _drain(self, hearing: socket.socket) -> None:
        try:
            while True:
                event = uevents.receive(hearing)
                if event is not None:
                    for each in self._listeners:
                        each.hear(event)
        except BlockingIOError:
            return
        except OSError:  # more events than the buffer holds: some are lost, so everything may have changed
            for each in self._listeners:
                each.touch()

    async def _read(self, inotify: Inotify) -> None:
        async for event in inotify:
            path = event.watch.path if event.watch is not None else None
            for listener, directories in self._listeners.items():
                if path is None or path in directories:
                    listener.touch()
            if path is not None and event.mask & Mask.MOVE_SELF:
                self._forget(path)  # it would follow the directory to where it went

    def _drop_dead(self) -> None:
        """The kernel removes a watch with its directory."""
        alive = self._inotify.watches if self._inotify is not None else []
        self._watches = {path: watch for path, watch in self._watches.items() if watch in alive}

    def _forget(self, path: Path) -> None:
        watch = self._watches.pop(path, None)
        if self._inotify is not None and watch in self._inotify.watches:
            with suppress(OSError):
                self._inotify.rm_watch(watch)
