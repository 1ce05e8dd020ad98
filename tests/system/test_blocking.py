"""Calls that may hang are limited in time and in number, and never hold the event loop."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from plugwright.errors import PluginError
from plugwright.system import concurrency
from plugwright.system.blocking import BlockingCalls

__all__ = ["no_threads"]


@contextmanager
def no_threads() -> Iterator[None]:
    """No thread can be started inside: there is no room for a stack of this size. Nor does one wait for a call."""
    before, idle = threading.stack_size(2**47), concurrency._IDLE_THREADS
    concurrency._IDLE_THREADS = 0
    for workers in concurrency._idle_workers.values():
        workers.clear()
    try:
        yield
    finally:
        threading.stack_size(before)
        concurrency._IDLE_THREADS = idle


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


async def test_a_call_has_its_result_or_its_error() -> None:
    calls = BlockingCalls("read", limit=60)
    assert await calls.run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await calls.run(lambda: 1 // 0)


async def test_a_call_that_hangs_ends_at_its_limit(gate: threading.Event) -> None:
    calls = BlockingCalls("read of /dead", limit=0.01)
    with pytest.raises(PluginError, match=r"^read of /dead did not end within 0.01 s$"):
        await calls.run(gate.wait)


async def test_stuck_calls_are_bounded_until_they_end(gate: threading.Event) -> None:
    calls = BlockingCalls("read", limit=0.01, most_stuck=2)
    begun: list[int] = []
    both_begun = threading.Barrier(3)

    def hang() -> None:
        begun.append(0)
        both_begun.wait(60)
        gate.wait()

    for _ in range(2):
        with pytest.raises(PluginError, match="did not end"):
            await calls.run(hang)
    await asyncio.to_thread(both_begun.wait, 60)  # a call's limit may pass before its thread has run at all
    with pytest.raises(PluginError, match=r"^read not begun: 2 earlier ones have not ended$"):
        await calls.run(lambda: begun.append(2))
    assert begun == [0, 0]
    gate.set()
    async with asyncio.timeout(60):
        while True:
            try:
                await calls.run(lambda: begun.append(3))
                break
            except PluginError:
                await asyncio.sleep(0.001)
    assert begun[-1] == 3


async def test_a_cancelled_call_counts_as_stuck(gate: threading.Event) -> None:
    calls = BlockingCalls("read", limit=60, most_stuck=1)
    call = asyncio.create_task(calls.run(gate.wait))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    with pytest.raises(PluginError, match="1 earlier ones"):
        await calls.run(gate.wait)


async def test_a_thread_that_cannot_be_started_is_an_error() -> None:
    calls = BlockingCalls("read", limit=60)
    with no_threads(), pytest.raises(PluginError, match="read not begun: can't start new thread"):
        await calls.run(lambda: 7)
    assert await calls.run(lambda: 7) == 7
