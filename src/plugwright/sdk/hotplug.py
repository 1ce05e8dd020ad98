"""Waits for hardware to change: by the kernel's uevents, by inotify, and by a rescan now and then.

Uevents come first. inotify reports what has no uevent: a link that udev makes later, a socket, a node made by hand.
The rescan is for what neither reports. None of them says what has changed: the caller looks at everything again.

Uevents come over netlink. The kernel's own broadcast (group 1) also reaches a pod with a network namespace of its own,
udev's (group 2) does not. One socket, a `HotplugSource`, serves all resources of a process; the inotify instance is
shared by `system.inotify`. Where one of the two cannot be opened, that is logged, the other has to do, and hardware is
scanned more often; inotify is asked for again with each scan.
"""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from plugwright.system.concurrency import Latest
from plugwright.system.inotify import WatchedDirectories, nearest_directory

__all__ = ["Hotplug", "HotplugSource", "HotplugTiming", "Uevent", "open_uevent_socket", "parse", "receive"]

logger = logging.getLogger(__name__)

_KOBJECT_UEVENT = 15
_KERNEL_GROUP = 1
_LARGEST = 16 * 1024  # the kernel's own limit is 2 KiB of variables and the path
_BUFFER = 256 * 1024  # a machine that boots sends many in a row


@dataclass(frozen=True, slots=True)
class Uevent:
    action: str
    path: str
    subsystem: str
    node: str  # below /dev, where there is one


@dataclass(frozen=True, slots=True, kw_only=True)
class HotplugTiming:
    """Seconds."""

    rescan: float = 300.0  # between two looks when nothing is reported
    rescan_often: float = 30.0  # the same where uevents or inotify are missing
    burst: float = 0.05  # changes closer together than this are one
    gap: float = 1.0  # between two looks when changes do not end


class HotplugSource:
    """The uevents of one netlink socket, for any number of subscribers; `connect` opens the socket."""

    def __init__(self, connect: Callable[[], socket.socket] | None = None) -> None:
        self._connect = connect or open_uevent_socket
        self._socket: socket.socket | None = None
        self._subscribers: list[Callable[[Uevent | None], None]] = []

    @property
    def has_uevents(self) -> bool:
        return self._socket is not None

    @contextmanager
    def subscribed(self, callback: Callable[[Uevent | None], None]) -> Iterator[None]:
        """Calls `callback` with every uevent while inside, and with None when some were lost."""
        if not self._subscribers:
            self._open()
        self._subscribers.append(callback)
        try:
            yield
        finally:
            self._subscribers.remove(callback)
            if not self._subscribers and self._socket is not None:
                asyncio.get_running_loop().remove_reader(self._socket)
                self._socket.close()
                self._socket = None

    def _open(self) -> None:
        try:
            connection = self._connect()
        except OSError as error:
            logger.warning("no uevents, looking now and then", extra={"error": str(error)})
            return
        connection.setblocking(False)
        asyncio.get_running_loop().add_reader(connection, self._read, connection)
        self._socket = connection

    def _read(self, connection: socket.socket) -> None:
        try:
            while True:
                event = receive(connection)
                if event is not None:
                    self._publish(event)
        except BlockingIOError:
            return
        except OSError:  # more events than the buffer holds
            self._publish(None)

    def _publish(self, event: Uevent | None) -> None:
        for callback in tuple(self._subscribers):
            callback(event)


class Hotplug:
    """One resource's wait for changes; `accept` says which uevents concern it."""

    def __init__(
        self,
        accept: Callable[[Uevent], bool] = lambda event: True,
        source: HotplugSource | None = None,
        timing: HotplugTiming | None = None,
    ) -> None:
        self._accept, self._source, self._timing = accept, source or HotplugSource(), timing or HotplugTiming()
        self._changes = Latest(0)  # goes up whenever something may have changed
        self._seen = 0  # of `_changes`, when change() last returned
        self._directories = WatchedDirectories(self.touch)
        self._problem = ""  # why inotify does not report everything
        self._returned = 0.0

    def touch(self) -> None:
        """Something may have changed."""
        self._changes.publish(self._changes.value + 1)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        with ExitStack() as stack:
            stack.enter_context(self._source.subscribed(self._handle))
            stack.enter_context(self._directories.watching())
            self._report_inotify()
            yield

    async def change(self, directories: Iterable[Path]) -> None:
        """Returns when something in `directories` or in the hardware may have changed since the last call returned."""
        if self._directories.replace(map(nearest_directory, directories)):
            self.touch()  # what happened before the directory was watched may have been missed
        self._report_inotify()
        timing = self._timing
        sees_all = self._source.has_uevents and not self._directories.problem
        with suppress(TimeoutError):
            async with asyncio.timeout(timing.rescan if sees_all else timing.rescan_often):
                await self._changes.until(lambda count: count != self._seen)
                await asyncio.sleep(max(timing.burst, self._returned + timing.gap - time.monotonic()))
        self._seen = self._changes.value
        self._returned = time.monotonic()

    def _report_inotify(self) -> None:
        before, self._problem = self._problem, self._directories.problem
        if self._problem and not before:
            logger.warning("no inotify, links and sockets are seen late", extra={"error": self._problem})
        elif before and not self._problem:
            logger.info("inotify is available again")

    def _handle(self, event: Uevent | None) -> None:
        if event is None or self._accept(event):
            self.touch()


def open_uevent_socket() -> socket.socket:
    """A socket that receives the kernel's uevents; OSError where that is not permitted."""
    connection = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, _KOBJECT_UEVENT)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        connection.bind((0, _KERNEL_GROUP))
    except OSError:
        connection.close()
        raise
    return connection


def receive(connection: socket.socket) -> Uevent | None:
    """The next event; None for a message that is malformed or not the kernel's; BlockingIOError when none is left."""
    message, sender = connection.recvfrom(_LARGEST)
    # A netlink address is (process, groups), and the kernel's process is 0: any other could pretend.
    return None if isinstance(sender, tuple) and sender[0] != 0 else parse(message)


def parse(message: bytes) -> Uevent | None:
    head, *lines = message.decode("utf-8", errors="replace").split("\0")
    action, at, path = head.partition("@")
    if not at or not path.startswith("/"):
        return None  # udev's own format, or no event at all
    values = {name: value for name, _, value in (line.partition("=") for line in lines)}
    return Uevent(action, path, values.get("SUBSYSTEM", ""), values.get("DEVNAME", ""))
