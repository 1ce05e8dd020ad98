"""Wake-ups for tasks of one event loop: `Latest` for a value, `Signal` for an event, `InProgress` for running work.

One writer publishes, any number of readers wait. There is no queue: a busy reader later sees the latest value, or the
occurrence of an event, and former readers cost nothing. All of them belong to the event loop: other threads use
`concurrency.call_in_loop`. Each emulated node has dozens of them, so they are small.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

__all__ = ["InProgress", "Latest", "Signal"]

T = TypeVar("T")


class _Wakeup:
    """The waiting tasks, the subscribers, and how often both were woken."""

    __slots__ = ("_callbacks", "_count", "_waiters")

    def __init__(self) -> None:
        self._callbacks: tuple[Callable[[], object], ...] = ()
        self._count = 0
        self._waiters: list[asyncio.Future[None]] | None = None

    def subscribe(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Calls `callback` after each wake-up, until the returned function is called."""
        self._callbacks = (*self._callbacks, callback)
        return partial(self._unsubscribe, callback)

    def _unsubscribe(self, callback: Callable[[], object]) -> None:
        callbacks = list(self._callbacks)
        callbacks.remove(callback)
        self._callbacks = tuple(callbacks)

    def _wake(self) -> None:
        self._count += 1
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)
        for callback in self._callbacks:
            callback()

    async def _next(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if self._waiters and waiter in self._waiters:  # cancelled
                self._waiters.remove(waiter)


class Latest(_Wakeup, Generic[T]):
    """A value with waiting readers."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        super().__init__()
        self._value = value

    @property
    def value(self) -> T:
        return self._value

    def publish(self, value: T) -> None:
        self._value = value
        self._wake()

    def publish_if_changed(self, value: T) -> None:
        if value != self._value:
            self.publish(value)

    async def changes(self) -> AsyncIterator[T]:
        """The present value, and then the latest one whenever the reader has not seen it."""
        seen = -1
        while True:
            if seen == self._count:
                await self._next()
            seen = self._count
            yield self._value

    async def until(self, accept: Callable[[T], bool]) -> T:
        """The first value with a true `accept`, the present value included."""
        while not accept(self._value):
            await self._next()
        return self._value


class Signal(_Wakeup):
    """A repeated event, without a value.

    To look at something and then wait for a change, a task takes the count first, and waits for another count: a
    notification between the two is not lost.

        while True:
            seen = changed.count
            look()
            await changed.wait(seen)
    """

    __slots__ = ()

    @property
    def count(self) -> int:
        """How often `notify` was called; `wait(-1)` returns immediately."""
        return self._count

    def notify(self) -> None:
        self._wake()

    async def wait(self, seen: int, timeout: float | None = None) -> int:
        """Waits until the count differs from `seen`, for at most `timeout` seconds; returns the count."""
        if self._count == seen:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._next()
        return self._count

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits until `condition` is true, which is evaluated now and after each notification."""
        while not condition():
            await self._next()

    async def notifications(self) -> AsyncIterator[None]:
        """Yields now, and then whenever the reader has not seen the latest notification."""
        seen = -1
        while True:
            seen = await self.wait(seen)
            yield


class InProgress(_Wakeup):
    """The number of operations in progress, which others wait to end."""

    __slots__ = ("_running",)

    def __init__(self) -> None:
        super().__init__()
        self._running = 0

    @property
    def count(self) -> int:
        return self._running

    def begin(self) -> None:
        self._running += 1
        self._wake()

    def end(self) -> None:
        self._running -= 1
        self._wake()

    async def ended(self) -> None:
        """Waits until no operation is in progress."""
        while self._running:
            await self._next()
