"""Tools for the event loop: tasks, the first result of several, threads, back-off. Wake-ups are in `latest`.

Threads are daemon threads: a thread hanging in a driver delays neither a call beyond its limit nor the end of the
process. Python cannot stop a thread, so a hung thread stays until the process ends. After a call, a thread waits for
the next call, because starting a thread takes longer than most calls.
"""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from plugwright.system.cpython import start_before_3_12, start_thread

__all__ = [
    "Backoff",
    "begin_in_thread",
    "call_in_loop",
    "cancel",
    "cancel_within",
    "first",
    "in_thread",
    "iterate_in_thread",
    "keep_threads",
    "retrieve_exception",
    "single_error",
    "start",
    "to_its_end",
    "unwrapped",
]

T = TypeVar("T")
_BEGIN_LIMIT = 3.0  # seconds that a thread can take to start on a very busy machine
_IDLE_THREADS = 1  # that wait for the next call, unless a program keeps more; others end


def start(coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """A task, started immediately and run until it has to wait."""
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 12):
        return asyncio.Task(coroutine, loop=loop, eager_start=True)
    return start_before_3_12(asyncio, loop, partial(asyncio.Task, coroutine, loop=loop))


async def first(*waits: Coroutine[object, object, T]) -> T:
    """The result of whichever ends first, the earlier argument on a tie; cancels and awaits the others."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task in done).result()
    finally:
        await cancel(*tasks)


async def cancel(*tasks: "asyncio.Task[Any]") -> None:
    """Cancels the tasks and returns when all have ended, whatever their results."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def to_its_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Its result. A cancelled caller is cancelled only afterwards, so the coroutine must end by itself."""
    task = asyncio.create_task(coroutine)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        retrieve_exception(task)
        raise cancelled
    return task.result()


async def cancel_within(limit: float, *tasks: "asyncio.Task[Any]") -> "set[asyncio.Task[Any]]":
    """Cancels the tasks and returns those still running after `limit` seconds."""
    for task in tasks:
        task.cancel()
    if not tasks:
        return set()
    done, pending = await asyncio.wait(tasks, timeout=limit)
    for task in done:
        retrieve_exception(task)
    return pending


def retrieve_exception(task: "asyncio.Task[Any]") -> None:
    """asyncio logs exceptions never retrieved."""
    if not task.cancelled():
        task.exception()


def single_error(error: BaseException) -> BaseException:
    """The first error inside a TaskGroup's exception group, to be reported in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def unwrapped(error: BaseException) -> BaseException:
    """The only error of a group; several errors stay a group, so none is lost."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def in_thread(name: str, function: Callable[[], T]) -> T:
    """The result of `function`, called in its own thread."""
    return await begin_in_thread(name, function)


def begin_in_thread(name: str, function: Callable[[], T]) -> "asyncio.Future[T]":
    """Like `in_thread`, for a caller waiting later or never."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    idle = _idle_workers.setdefault(loop, [])
    worker, is_new = (idle.pop(), False) if idle else (_Worker(name), True)
    begun = threading.Lock()  # taken once: by the thread when it begins, or when that is no longer expected

    def work() -> None:
        if not begun.acquire(blocking=False):
            return
        threading.current_thread().name = name
        try:
            finish = partial(_set_result, outcome, function())
        except BaseException as error:  # noqa: BLE001  raised again where it is awaited
            finish = partial(_set_exception, outcome, error)
        call_in_loop(loop, partial(end, finish))

    def end(finish: Callable[[], None]) -> None:
        if len(idle) < _kept_threads.get(loop, _IDLE_THREADS):
            idle.append(worker)
        finish()

    def give_up() -> None:
        if begun.acquire(blocking=False):
            _set_exception(outcome, RuntimeError(f"thread for {name} did not begin"))

    if is_new:
        giving_up = loop.call_later(_BEGIN_LIMIT, give_up)
        outcome.add_done_callback(lambda _: giving_up.cancel())
    worker.calls.put(work)
    return outcome


def keep_threads(count: int) -> None:
    """Sets the number of idle threads kept for the running event loop."""
    _kept_threads[asyncio.get_running_loop()] = count


class _Worker:
    """A thread for one call after the other; it ends when no caller can give it another."""

    def __init__(self, name: str) -> None:
        self.calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        start_thread(name, partial(_work, self.calls))

    def __del__(self) -> None:
        self.calls.put(None)


def _work(calls: "SimpleQueue[Callable[[], None] | None]") -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # and with it the loop and the worker
        threading.current_thread().name = "plugwright-idle"


# By event loop: a worker is given back there.
_idle_workers: WeakKeyDictionary[asyncio.AbstractEventLoop, list[_Worker]] = WeakKeyDictionary()
_kept_threads: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()


async def iterate_in_thread(name: str, iterate: Callable[[], Iterable[T]]) -> AsyncGenerator[T, None]:
    """The items of a blocking iterable, walked through in one thread from its first item to its last.

    A slow reader gets the latest item. When the reader leaves, the thread ends at the next item.
    """
    buffer: _LatestItem[T] = _LatestItem()
    loop = asyncio.get_running_loop()

    def work() -> None:
        ending: BaseException | None = None
        try:
            for item in iterate():
                if buffer.closed:
                    return
                call_in_loop(loop, partial(buffer.put, item))
        except BaseException as error:  # noqa: BLE001  raised again where it is awaited
            ending = error
        call_in_loop(loop, partial(buffer.end, ending))

    start_thread(name, work)
    try:
        while await buffer.is_filled():
            yield buffer.take()
    finally:
        buffer.closed = True


class _LatestItem(Generic[T]):
    """A buffer for one item, replaced by newer items; unlike `Latest` it has an end."""

    def __init__(self) -> None:
        self.closed = False
        self._items: list[T] = []
        self._ended = False
        self._error: BaseException | None = None
        self._changed = asyncio.Event()

    def put(self, item: T) -> None:
        self._items = [item]
        self._changed.set()

    def end(self, error: BaseException | None) -> None:
        self._ended, self._error = True, error
        self._changed.set()

    def take(self) -> T:
        return self._items.pop()

    async def is_filled(self) -> bool:
        while not self._items:
            if self._error is not None:
                raise self._error
            if self._ended:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True


def call_in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Calls `callback` on the event loop, from any thread; not at all if the loop has ended."""
    with suppress(RuntimeError):  # the loop was closed while the thread was busy
        loop.call_soon_threadsafe(callback)


def _set_result(outcome: "asyncio.Future[T]", result: T) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _set_exception(outcome: "asyncio.Future[T]", error: BaseException) -> None:
    if isinstance(error, StopIteration):
        error = RuntimeError("StopIteration was raised")  # a future cannot carry it
    if not outcome.done():
        outcome.set_exception(error)


def _uniform(lowest: float, highest: float) -> float:
    """A random number between the two; importing `random` would cost half a megabyte."""
    return lowest + (highest - lowest) * int.from_bytes(os.urandom(4), "little") / 2**32


class Backoff:
    """Delays doubling from `first` to `longest`, each changed at random by up to the part `jitter`.

    The jitter is for the kubelet: after losing it together, resources do not all come back in the same instant.
    """

    __slots__ = ("_next", "_uniform", "first", "jitter", "longest")

    def __init__(
        self, first: float, longest: float, jitter: float = 0.2, uniform: Callable[[float, float], float] = _uniform
    ) -> None:
        self.first, self.longest, self.jitter, self._uniform = first, longest, jitter, uniform
        self._next = first

    def reset(self) -> None:
        self._next = self.first

    def delay(self) -> float:
        now, self._next = self._next, min(self._next * 2, self.longest)
        return now * (1 + self._uniform(-self.jitter, self.jitter))
