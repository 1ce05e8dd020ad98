"""A pseudo-terminal for a child process, and writing to a descriptor whose reader may be slow."""

import asyncio
import fcntl
import os
import struct
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypedDict

__all__ = ["Terminal", "TerminalOptions", "write_all"]

_END_OF_INPUT = b"\x04"  # as typed


class TerminalOptions(TypedDict):
    stdin: int
    stdout: int
    stderr: int
    preexec_fn: Callable[[], object]


class Terminal:
    """Our side of a terminal; `close_theirs` once the process has it."""

    def __init__(self) -> None:
        self._ours, self._theirs = os.openpty()
        os.set_blocking(self._ours, False)
        self._is_readable = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._ours, self._is_readable.set)

    @property
    def options(self) -> TerminalOptions:
        """For `create_subprocess_exec` with a session of its own, which the terminal is to control."""
        controls = partial(fcntl.ioctl, self._theirs, termios.TIOCSCTTY, 0)
        return {"stdin": self._theirs, "stdout": self._theirs, "stderr": self._theirs, "preexec_fn": controls}

    def close_theirs(self) -> None:
        if self._theirs >= 0:
            os.close(self._theirs)
            self._theirs = -1

    def close(self) -> None:
        self.close_theirs()
        asyncio.get_running_loop().remove_reader(self._ours)
        os.close(self._ours)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def write(self, data: bytes) -> None:
        """An empty `data` ends the input."""
        await write_all(self._ours, data or _END_OF_INPUT)

    async def read(self, size: int) -> bytes:
        """Empty once the last process has closed the terminal."""
        while True:
            await self._is_readable.wait()
            self._is_readable.clear()
            try:
                return os.read(self._ours, size)
            except BlockingIOError:
                continue
            except OSError:  # EIO is the end
                self._is_readable.set()
                return b""


async def write_all(descriptor: int, data: bytes) -> None:
    """To a non-blocking descriptor; raises OSError if it has no reader any more."""
    loop = asyncio.get_running_loop()
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            with _writable(loop, descriptor) as writable:
                await writable.wait()


@contextmanager
def _writable(loop: asyncio.AbstractEventLoop, descriptor: int) -> Iterator[asyncio.Event]:
    event = asyncio.Event()
    loop.add_writer(descriptor, event.set)
    try:
        yield event
    finally:
        loop.remove_writer(descriptor)
