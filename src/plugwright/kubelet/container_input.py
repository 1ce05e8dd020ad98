"""The standard input of a container with `stdin` or `tty`, for attached clients."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from plugwright.system.terminal import Terminal, write_all

__all__ = ["ContainerInput"]


class ContainerInput:
    """Of one container, over all its runs; input between two runs is lost.

    `is_open` as `stdin` of the container: without it there is a terminal at most. `closes_with_client` as `stdinOnce`.
    """

    def __init__(self, *, is_open: bool, is_terminal: bool, closes_with_client: bool = False) -> None:
        self.is_open, self.is_terminal, self.closes_with_client = is_open, is_terminal, closes_with_client
        self._terminal: Terminal | None = None
        self._pipe: int | None = None
        self._size: tuple[int, int] | None = None

    @contextmanager
    def terminal(self) -> Iterator[Terminal]:
        """The terminal of one run."""
        terminal = self._terminal = Terminal()
        try:
            if self._size:
                terminal.resize(*self._size)
            yield terminal
        finally:
            self._terminal = None
            terminal.close()

    @contextmanager
    def pipe(self) -> Iterator[int]:
        """The reading end of the input of one run, for the process; it stays the caller's to close."""
        reading, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            yield reading
        finally:
            self.end()

    async def write(self, data: bytes) -> None:
        with suppress(OSError):  # the process has closed it
            if self._terminal is not None:
                await self._terminal.write(data)
            elif self._pipe is not None:
                await write_all(self._pipe, data)

    def resize(self, columns: int, rows: int) -> None:
        self._size = columns, rows
        if self._terminal is not None:
            self._terminal.resize(columns, rows)

    async def client_left(self) -> None:
        if not self.closes_with_client or not self.is_open:
            return
        if self.is_terminal:
            await self.write(b"")
        self.end()

    def end(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            os.close(pipe)
