"""Waits for hardware to change: by the kernel's uevents, by inotify, and by a slow look now and then.

Uevents say it first; inotify sees what has no uevent (a link that udev makes later, a socket, a node made by hand); the
slow look is for what neither tells. What changed is not said: whoever waits looks at everything anew. `ears` has the
socket and the watches, which all who wait share.

One socket for uevents and one inotify instance, lent to all who wait for hardware.

A node has few inotify instances, and many a process wants one. Both are opened when the first asks and closed when the
last has left. Where one is not to be had, that is said, and the other and slow looks have to do.

The kernel's own news of hardware: uevents, over netlink.

The kernel's broadcast (group 1) reaches a pod with a network namespace of its own too; udev's (group 2) does not. What
a change means is for its listeners to find out by looking.
"""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from asyncinotify import Inotify, Mask, Watch

__all__ = ["Hotplug", "HotplugSource", "HotplugTiming", "Listener", "Uevent", "listen_to_kernel", "parse", "receive"]

_KOBJECT_UEVENT = 15
_KERNEL_GROUP = 1
_LARGEST = 16 * 1024  # the kernel's own limit is 2 KiB of variables and the path
_BUFFER = 256 * 1024  # a machine that boots has many in a row


@dataclass(frozen=True, slots=True)
class Uevent:
    action: str
    path: str
    subsystem: str
    node: str  # below /dev, where there is one


def listen_to_kernel() -> socket.socket:
    """A socket that hears the kernel; OSError where that is not permitted."""
    hearing = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, _KOBJECT_UEVENT)
    try:
        hearing.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        hearing.bind((0, _KERNEL_GROUP))
    except OSError:
        hearing.close()
        raise
    return hearing


def receive(hearing: socket.socket) -> Uevent | None:
    """The next event; None for what is none, or not the kernel's. BlockingIOError when there is no more."""
    message, sender = hearing.recvfrom(_LARGEST)
    # A netlink address is (process, groups), and the kernel's process is 0: any other could pretend.
    return None if isinstance(sender, tuple) and sender[0] != 0 else parse(message)


def parse(message: bytes) -> Uevent | None:
    head, *lines = message.decode("utf-8", errors="replace").split("\0")
    action, at, path = head.partition("@")
    if not at or not path.startswith("/"):
        return None  # udev's own format, or no event at all
    values = {name: value for name, _, value in (line.partition("=") for line in lines)}
    return Uevent(action, path, values.get("SUBSYSTEM", ""), values.get("DEVNAME", ""))


logger = logging.getLogger(__name__)

_MASK = Mask.CREATE | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR


class Listener(Protocol):
    def touch(self) -> None: ...

    def hear(self, event: Uevent) -> None: ...


class HotplugSource:
    """`listen` opens the socket that uevents come from."""

    def __init__(self, listen: Callable[[], socket.socket] = listen_to_kernel) -> None:
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
                event = receive(hearing)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HotplugTiming:
    """Seconds. `rescan`: between slow looks; `blind`: the same where uevents cannot be heard."""

    rescan: float = 300.0
    blind: float = 30.0
    burst: float = 0.05  # news closer together than this are one
    gap: float = 1.0  # between two looks, when news do not end


class Hotplug:
    """`accept` says which uevents are of interest."""

    def __init__(
        self,
        accept: Callable[[Uevent], bool] = lambda event: True,
        ears: HotplugSource | None = None,
        pace: HotplugTiming | None = None,
    ) -> None:
        self._accept, self._ears, self._pace = accept, ears or HotplugSource(), pace or HotplugTiming()
        self._changed = asyncio.Event()
        self._looked = 0.0

    def touch(self) -> None:
        """Something may have changed."""
        self._changed.set()

    def hear(self, event: Uevent) -> None:
        if self._accept(event):
            self._changed.set()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        async with self._ears.lent_to(self):
            yield

    async def change(self, directories: Iterable[Path]) -> None:
        """Returns when something in `directories` or in the hardware may have changed since the last call returned."""
        if self._ears.follow(self, {_nearest(each) for each in directories}):
            self._changed.set()  # what came before a watch was there may have been missed
        slow = self._pace.rescan if self._ears.hears else self._pace.blind
        with suppress(TimeoutError):
            async with asyncio.timeout(slow):
                await self._changed.wait()
                await asyncio.sleep(max(self._pace.burst, self._looked + self._pace.gap - time.monotonic()))
        self._changed.clear()
        self._looked = time.monotonic()


def _nearest(directory: Path) -> Path:
    while not directory.is_dir() and directory != directory.parent:
        directory = directory.parent
    return directory
