"""Code that may block, kept off the event loop.

The threads are daemons: one that hangs in a driver keeps neither a call waiting beyond its limit nor the process
from ending. Python cannot stop a thread, so one that hangs stays until the process ends.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

__all__ = ["begin_in_thread", "in_thread", "iterate_in_thread"]

T = TypeVar("T")


async def in_thread(name: str, function: Callable[[], T]) -> T:
    """The result of `function`, called in a thread of its own."""
    return await begin_in_thread(name, function)


def begin_in_thread(name: str, function: Callable[[], T]) -> "asyncio.Future[T]":
    """The same for whoever does not wait for it at once, or at all."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        try:
            settle = partial(_set_result, outcome, function())
        except BaseException as error:  # noqa: BLE001  raised again where it is awaited
            settle = partial(_set_exception, outcome, error)
        _tell(loop, settle)

    threading.Thread(target=work, name=name, daemon=True).start()
    return outcome


async def iterate_in_thread(name: str, iterate: Callable[[], Iterable[T]]) -> AsyncGenerator[T, None]:
    """The items of an iterable that blocks, walked through in one thread from its first item to its last.

    A reader that is slow gets the newest item. When the reader leaves, the thread ends at the next item.
    """
    mailbox: _Mailbox[T] = _Mailbox()
    loop = asyncio.get_running_loop()

    def work() -> None:
        ending: BaseException | None = None
        try:
            for item in iterate():
                if mailbox.left:
                    return
                _tell(loop, partial(mailbox.put, item))
        except BaseException as error:  # noqa: BLE001  raised again where it is awaited
            ending = error
        _tell(loop, partial(mailbox.end, ending))

    threading.Thread(target=work, name=name, daemon=True).start()
    try:
        while await mailbox.filled():
            yield mailbox.take()
    finally:
        mailbox.left = True


class _Mailbox(Generic[T]):
    """Room for one item; a newer one takes the place of one not yet taken."""

    def __init__(self) -> None:
        self.left = False
        self._items: list[T] = []
        self._ended = False
        self._error: BaseException | None = None
        self._news = asyncio.Event()

    def put(self, item: T) -> None:
        self._items = [item]
        self._news.set()

    def end(self, error: BaseException | None) -> None:
        self._ended, self._error = True, error
        self._news.set()

    def take(self) -> T:
        return self._items.pop()

    async def filled(self) -> bool:
        while not self._items:
            if self._error is not None:
                raise self._error
            if self._ended:
                return False
            self._news.clear()
            await self._news.wait()
        return True


def _tell(loop: asyncio.AbstractEventLoop, news: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop ended while the thread was busy
        loop.call_soon_threadsafe(news)


def _set_result(outcome: "asyncio.Future[T]", result: T) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _set_exception(outcome: "asyncio.Future[T]", error: BaseException) -> None:
    if isinstance(error, StopIteration):
        error = RuntimeError("StopIteration was raised")  # a future cannot carry it
    if not outcome.done():
        outcome.set_exception(error)
