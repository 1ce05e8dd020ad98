"""Bounded blocking calls: functions run in threads with a time limit, and few hung threads are tolerated.

Reads of a driver's files, a network file system or a slow disk do not belong on the event loop. Python cannot stop a
thread, so a hung call stays until its function returns. `BlockingCalls` counts and names these calls, and starts no
others while too many hang: retries cannot use up the threads of the process.
"""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar, cast
from weakref import WeakKeyDictionary

import msgspec

from plugwright.errors import CallNotStarted, CallTimedOut
from plugwright.system import concurrency
from plugwright.system.cpython import start_thread
from plugwright.system.heartbeat import line_of_thread
from plugwright.system.latest import Latest, Signal

__all__ = ["BlockingCalls", "HungCall", "call_within", "hung_calls"]

T = TypeVar("T")


def call_within(name: str, limit: float, function: Callable[[], T]) -> T:
    """The result or exception of `function`, for a program without an event loop; CallTimedOut, CallNotStarted.

    The calling thread waits up to `limit` seconds. A hanging call stays in its thread.
    """
    outcome: SimpleQueue[Callable[[], T]] = SimpleQueue()

    def work() -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001  raised again in the calling thread
            outcome.put(partial(_raise, error))
        else:
            outcome.put(lambda: result)

    try:
        start_thread(name, work)
        finish = outcome.get(timeout=limit)
    except RuntimeError as error:  # no thread can be started
        raise CallNotStarted(name, str(error)) from error
    except Empty:
        raise CallTimedOut(name, limit) from None
    return finish()


def _raise(error: BaseException) -> Any:
    raise error


class HungCall(msgspec.Struct, eq=False):
    """A call without a waiting caller, because of its limit or a cancellation, which has not returned."""

    name: str
    since: float  # time.monotonic() when the call started
    thread: int = 0  # identifier of its thread; 0 before the thread has begun

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since

    @property
    def line(self) -> str:
        """The line of code in which the call hangs."""
        return line_of_thread(self.thread)


# By event loop: hanging calls of every kind.
_hung: WeakKeyDictionary[asyncio.AbstractEventLoop, Latest[tuple[HungCall, ...]]] = WeakKeyDictionary()


def hung_calls() -> Latest[tuple[HungCall, ...]]:
    """The hung calls of every `BlockingCalls` on the running event loop."""
    return _hung.setdefault(asyncio.get_running_loop(), Latest(()))


class _Call(Generic[T]):
    """A running call and the number of waiting callers."""

    def __init__(self, facts: HungCall, outcome: "asyncio.Future[T]") -> None:
        self.facts, self.outcome, self.callers = facts, outcome, 0


class BlockingCalls:
    """Calls of one kind, called `name` in errors and threads: `scan of example.com/fpga`.

    A call can take `limit` seconds (None: as long as its caller waits). At most `at_once` calls run at a time; the
    others wait. While `most_hung` calls hang, none is started. `hung` contains the hung calls, and is published when a
    call is abandoned and when an abandoned call returns.
    """

    def __init__(self, name: str, limit: float | None, most_hung: int = 4, at_once: int | None = None) -> None:
        self.name = name
        self.hung: Latest[tuple[HungCall, ...]] = Latest(())
        self._limit, self._at_once = limit, at_once
        # With every turn taken by a hung call, those that wait for one must be refused.
        self._most_hung = most_hung if at_once is None else min(most_hung, at_once)
        self._running = 0
        self._changed = Signal()  # a call has ended, or hangs
        self._shared: dict[str, _Call[Any]] = {}

    @property
    def refusal(self) -> str:
        """Why no call is started now; empty if calls are started."""
        hung = self.hung.value
        if len(hung) < self._most_hung:
            return ""
        calls = "1 earlier call still hangs" if len(hung) == 1 else f"{len(hung)} earlier calls still hang"
        return f"{calls} in {', '.join(sorted({call.line for call in hung}))}"

    async def run(self, function: Callable[[], T], *, to_end: bool = False) -> T:
        """The result or exception of `function`; CallTimedOut, CallNotStarted.

        With `to_end`, a cancelled caller also waits for the call, up to the limit.
        """
        await self._turn(self.name)
        return await self._result(self._start(self.name, function), to_end=to_end)

    async def join(self, function: Callable[[], T], key: str = "") -> T:
        """Like `run`, but waits for a running call with the same `key` instead of starting another.

        Each caller waits up to the limit, also for a hanging call. The key follows `name` in errors.
        """
        name = f"{self.name} {key}".strip()
        if key not in self._shared:
            await self._turn(name)
        call = cast("_Call[T] | None", self._shared.get(key))
        if call is None:
            call = self._shared[key] = self._start(name, function)
            call.outcome.add_done_callback(lambda _: self._shared.pop(key))
        return await self._result(call)

    async def iterate(self, iterate: Callable[[], Iterable[T]]) -> AsyncGenerator[T, None]:
        """The items of a blocking iterable, walked through in one thread without a limit; a slow reader skips items.

        When the reader leaves, the thread ends at the next item, and hangs until then. Close it with `aclosing`.
        """
        self._check(self.name)
        loop, has_ended, facts = asyncio.get_running_loop(), False, HungCall(self.name, time.monotonic())

        def items() -> Iterator[T]:
            nonlocal has_ended
            facts.thread = threading.get_ident()
            try:
                yield from iterate()
            finally:
                has_ended = True
                concurrency.call_in_loop(loop, partial(self._forget, facts))

        try:
            async with aclosing(concurrency.iterate_in_thread(self.name, items)) as found:
                async for item in found:
                    yield item
        except (asyncio.CancelledError, GeneratorExit):
            if not has_ended:
                self._give_up(facts)
            raise

    async def _turn(self, name: str) -> None:
        """Waits until a call can start."""
        self._check(name)
        if (most := self._at_once) is not None and self._running >= most:
            await self._changed.until(lambda: self._running < most or len(self.hung.value) >= self._most_hung)
            self._check(name)

    def _check(self, name: str) -> None:
        if reason := self.refusal:
            raise CallNotStarted(name, reason)

    def _start(self, name: str, function: Callable[[], T]) -> _Call[T]:
        facts = HungCall(name, time.monotonic())

        def work() -> T:
            facts.thread = threading.get_ident()
            return function()

        try:
            outcome = concurrency.begin_in_thread(name, work)
        except RuntimeError as error:  # no thread can be started
            raise CallNotStarted(name, str(error)) from error
        self._running += 1
        outcome.add_done_callback(partial(self._end, facts))
        return _Call(facts, outcome)

    async def _result(self, call: _Call[T], *, to_end: bool = False) -> T:
        call.callers += 1
        # Not asyncio.timeout: it would cancel the future, and the thread behind it would no longer be known.
        try:
            done, _ = await asyncio.wait((call.outcome,), timeout=self._limit)
            if not done:
                call.callers = 0  # too long for one caller is too long for all
                raise CallTimedOut(call.facts.name, self._limit or 0.0)
            return call.outcome.result()
        except asyncio.CancelledError:
            if to_end:
                await asyncio.wait((call.outcome,), timeout=self._limit)
            raise
        finally:
            call.callers = max(0, call.callers - 1)
            if not call.callers and not call.outcome.done():
                self._give_up(call.facts)

    def _give_up(self, facts: HungCall) -> None:
        if facts not in self.hung.value:
            for hung in (self.hung, hung_calls()):
                hung.publish((*hung.value, facts))
            self._changed.notify()  # waiting callers can be refused now

    def _end(self, facts: HungCall, outcome: "asyncio.Future[Any]") -> None:
        if not outcome.cancelled():
            outcome.exception()  # retrieved: asyncio logs an exception that is not
        self._running -= 1
        self._changed.notify()
        self._forget(facts)

    def _forget(self, facts: HungCall) -> None:
        if facts in self.hung.value:
            for hung in (self.hung, hung_calls()):
                hung.publish(tuple(call for call in hung.value if call is not facts))
