"""Waits for hardware changes: by the kernel's uevents, by inotify, and by periodic rescans.

Uevents come first. inotify reports changes without a uevent: udev's later links, sockets, nodes made by hand. The
rescan finds all other changes. None of them tells what has changed: the caller scans everything again.

Uevents come over netlink. The kernel's own broadcast (group 1) also reaches a pod with its own network namespace,
udev's (group 2) does not. One socket, a `HotplugSource`, serves all resources of a process; `system.inotify` shares the
inotify instance. If one of the two fails or cannot be opened, the failure is logged, the other is used alone, and
hardware is scanned more often; each scan tries to open both again.
"""

import asyncio
import errno
import logging
import math
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import msgspec

from plugwright.errors import InvalidValue, PluginError
from plugwright.system.blocking import BlockingCalls
from plugwright.system.inotify import WatchedDirectories, nearest_directory
from plugwright.system.latest import Signal
from plugwright.system.log_once import LogOnce

__all__ = ["Hotplug", "HotplugSource", "HotplugTiming", "Uevent", "open_uevent_socket", "parse", "receive"]

logger = logging.getLogger(__name__)

_KOBJECT_UEVENT = 15
_KERNEL_GROUP = 1
_LARGEST = 16 * 1024  # the kernel's own limit is 2 KiB of variables plus the path
_BUFFER = 256 * 1024  # a booting machine sends many uevents in a row


class Uevent(msgspec.Struct, frozen=True):
    """The kernel's report of an added, removed or changed device."""

    action: str
    path: str
    subsystem: str
    node: str  # below /dev, if there is one


class HotplugTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds."""

    rescan: float = 300.0  # between two scans if nothing is reported
    rescan_often: float = 30.0  # the same without uevents or inotify
    burst: float = 0.05  # changes closer together than this count as one
    gap: float = 1.0  # between two scans during continuous changes
    lookup: float = 5.0  # for finding the directories to watch


class HotplugSource:
    """The uevents of one netlink socket, for any number of subscribers; `connect` opens the socket."""

    def __init__(self, connect: Callable[[], socket.socket] | None = None) -> None:
        self._connect = connect or open_uevent_socket
        self._socket: socket.socket | None = None
        self._subscribers: list[Callable[[Uevent | None], None]] = []
        self._problems = LogOnce(logger)

    @property
    def has_uevents(self) -> bool:
        return self._socket is not None

    @contextmanager
    def subscribed(self, callback: Callable[[Uevent | None], None]) -> Iterator[None]:
        """Calls `callback` with every uevent while inside, and with None after lost uevents."""
        self._subscribers.append(callback)
        self.reopen()
        try:
            yield
        finally:
            self._subscribers.remove(callback)
            if not self._subscribers:
                self._close()

    def reopen(self) -> None:
        """Opens the socket if there is none."""
        if self._socket is not None:
            return
        try:
            connection = self._connect()
        except OSError as error:
            self._fail(error)
            return
        connection.setblocking(False)
        asyncio.get_running_loop().add_reader(connection, self._read, connection)
        self._socket = connection
        if self._problems.recovered():
            logger.info("uevents are available again")
            self._publish(None)

    def _close(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _fail(self, error: OSError) -> None:
        facts = {"error": str(error)}
        self._problems.warning("uevents unavailable, falling back to polling", str(error), extra=facts)

    def _read(self, connection: socket.socket) -> None:
        try:
            while True:
                event = receive(connection)
                if event is not None:
                    self._publish(event)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:  # more events than the buffer holds; other errors would recur immediately
                self._close()
                self._fail(error)
            self._publish(None)

    def _publish(self, event: Uevent | None) -> None:
        for callback in tuple(self._subscribers):
            callback(event)


class Hotplug:
    """Waits for changes of one resource; `accept` selects the relevant uevents.

    `every` is for unreported health, such as a temperature in sysfs: change() returns at least once in `every` seconds.
    With `writes` it also returns after writes to files in a watched directory; not for /dev, where every use of a
    device is such a write.
    """

    def __init__(
        self,
        accept: Callable[[Uevent], bool] = lambda event: True,
        source: HotplugSource | None = None,
        timing: HotplugTiming | None = None,
        *,
        every: float | None = None,
        writes: bool = False,
    ) -> None:
        if every is not None and not every > 0:
            raise InvalidValue(f"every must be a number of seconds greater than 0, got {every!r}")
        self._every = math.inf if every is None else every
        self._accept, self._source, self._timing = accept, source or HotplugSource(), timing or HotplugTiming()
        self._changes = Signal()  # notified when something could have changed
        self._seen = 0  # count of `_changes` when change() last returned
        self._directories = WatchedDirectories(self.touch, writes=writes)
        self._lookups = BlockingCalls("lookup of directories", self._timing.lookup)
        self._problems = LogOnce(logger)
        self._returned = 0.0

    def touch(self) -> None:
        """Reports a possible change."""
        self._changes.notify()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        with ExitStack() as stack:
            stack.enter_context(self._source.subscribed(self._handle))
            stack.enter_context(self._directories.watching())
            self._report_inotify()
            yield

    async def change(self, directories: Iterable[Path]) -> None:
        """Returns when `directories` or the hardware could have changed since the last call returned."""
        self._source.reopen()
        try:
            paths = tuple(directories)
            nearest = await self._lookups.run(lambda: [nearest_directory(path) for path in paths])
            is_new = self._directories.replace(nearest)
        except PluginError as error:  # a file system does not answer: the caller's scan will show the state
            logger.warning("directories not watched", extra={"error": str(error)})
            is_new = True
        if is_new:
            self.touch()  # changes before the watch started can have been missed
        self._report_inotify()
        timing = self._timing
        sees_all = self._source.has_uevents and not self._directories.problem
        with suppress(TimeoutError):
            async with asyncio.timeout(min(timing.rescan if sees_all else timing.rescan_often, self._every)):
                await self._changes.wait(self._seen)
                await asyncio.sleep(max(timing.burst, self._returned + timing.gap - time.monotonic()))
        self._seen = self._changes.count
        self._returned = time.monotonic()

    def _report_inotify(self) -> None:
        if problem := self._directories.problem:
            self._problems.warning(
                "inotify unavailable, links and sockets are detected late", "no inotify", extra={"error": problem}
            )
        elif self._problems.recovered():
            logger.info("inotify is available again")

    def _handle(self, event: Uevent | None) -> None:
        if event is None or self._accept(event):
            self.touch()


def open_uevent_socket() -> socket.socket:
    """A socket for the kernel's uevents; OSError if not permitted."""
    connection = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, _KOBJECT_UEVENT)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        connection.bind((0, _KERNEL_GROUP))
    except OSError:
        connection.close()
        raise
    return connection


def receive(connection: socket.socket) -> Uevent | None:
    """The next event; None for a malformed message or another sender; BlockingIOError if none is left."""
    message, sender = connection.recvfrom(_LARGEST)
    # A netlink address is (process, groups). The kernel's process is 0; other processes could forge events.
    return None if isinstance(sender, tuple) and sender[0] != 0 else parse(message)


def parse(message: bytes) -> Uevent | None:
    head, *lines = message.decode("utf-8", errors="replace").split("\0")
    action, at, path = head.partition("@")
    if not at or not path.startswith("/"):
        return None  # udev's own format, or not an event
    values = {name: value for name, _, value in (line.partition("=") for line in lines)}
    return Uevent(action, path, values.get("SUBSYSTEM", ""), values.get("DEVNAME", ""))
