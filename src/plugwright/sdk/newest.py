"""One writer, many readers: the newest value, and a wake-up when there is a newer one.

Nobody queues: a reader that was busy sees the newest value, not those it missed; one that is gone costs nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

__all__ = ["Newest"]

T = TypeVar("T")


class Newest(Generic[T]):
    def __init__(self, value: T) -> None:
        self.bell: Callable[[], object] | None = None  # rung after each publication
        self._value = value
        self._version = 0
        self._newer = asyncio.Event()

    @property
    def value(self) -> T:
        return self._value

    def publish(self, value: T) -> None:
        self._value = value
        self._version += 1
        newer, self._newer = self._newer, asyncio.Event()
        newer.set()
        if self.bell is not None:
            self.bell()

    def become(self, value: T) -> None:
        """Publishes `value` if it is news."""
        if value != self._value:
            self.publish(value)

    async def changes(self) -> AsyncIterator[T]:
        """The value now, and then the newest one whenever there is a newer one than the reader has seen."""
        seen = -1
        while True:
            if seen == self._version:
                await self._newer.wait()
            seen = self._version
            yield self._value

    async def until(self, accept: Callable[[T], bool]) -> T:
        """The first value that `accept` takes, the one now included."""
        while not accept(self._value):
            await self._newer.wait()
        return self._value
