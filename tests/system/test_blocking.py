"""Blocking calls are limited in time and in number, and never hold the event loop."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager

import pytest

from plugwright.errors import CallNotStarted, CallTimedOut, PluginError
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


class Disk:
    """Answers when its gate is open; `begun` has the number of each read."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun: list[int] = []

    def read(self) -> int:
        self.begun.append(len(self.begun))
        number = self.begun[-1]
        self.gate.wait()
        return number


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.gate.set()


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.001)


async def test_a_call_has_its_result_or_its_error() -> None:
    calls = BlockingCalls("read", limit=60)
    assert await calls.run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await calls.run(lambda: 1 // 0)
    assert calls.hung.value == ()


async def test_a_call_that_hangs_ends_at_its_limit(disk: Disk) -> None:
    calls = BlockingCalls("read of /dead", limit=0.01)
    with pytest.raises(CallTimedOut, match=r"^read of /dead did not end within 0.01 s$"):
        await calls.run(disk.read)


async def test_a_call_without_a_result_is_an_error_of_the_plugin_and_of_the_disk(disk: Disk) -> None:
    calls = BlockingCalls("read", limit=0.01, most_hung=1)
    with pytest.raises(PluginError):
        await calls.run(disk.read)
    with pytest.raises(OSError, match="read not started") as raised:
        await calls.run(disk.read)
    assert raised.value.strerror == str(raised.value)


async def test_hung_calls_are_named_with_their_age_and_line(disk: Disk) -> None:
    calls = BlockingCalls("read", limit=0.01)
    with pytest.raises(CallTimedOut):
        await calls.run(disk.read)
    (hung,) = calls.hung.value
    await until(lambda: disk.begun)
    assert hung.name == "read"
    assert 0.01 <= hung.seconds < 60
    assert hung.line.endswith(" in read")
    disk.gate.set()
    await until(lambda: not calls.hung.value)


async def test_hung_calls_are_bounded_until_they_end(disk: Disk) -> None:
    calls = BlockingCalls("read", limit=0.01, most_hung=2)
    for _ in range(2):
        with pytest.raises(CallTimedOut):
            await calls.run(disk.read)
    await until(lambda: len(disk.begun) == 2)  # a call's limit may pass before its thread has run at all
    with pytest.raises(CallNotStarted, match=r"^read not started: 2 earlier calls still hang in .+:\d+ in read$"):
        await calls.run(disk.read)
    assert calls.refusal.startswith("2 earlier calls still hang")
    assert len(disk.begun) == 2
    disk.gate.set()
    await until(lambda: not calls.refusal)
    assert await calls.run(lambda: 7) == 7


async def test_a_cancelled_call_hangs_until_it_returns(disk: Disk) -> None:
    calls = BlockingCalls("read", limit=60, most_hung=1)
    call = asyncio.create_task(calls.run(disk.read))
    await until(lambda: disk.begun)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    with pytest.raises(CallNotStarted, match="1 earlier call still hangs in"):
        await calls.run(disk.read)


async def test_the_return_of_a_hung_call_is_published(disk: Disk) -> None:
    calls, seen = BlockingCalls("read", limit=0.01), list[int]()
    calls.hung.subscribe(lambda: seen.append(len(calls.hung.value)))
    with pytest.raises(CallTimedOut):
        await calls.run(disk.read)
    disk.gate.set()
    await until(lambda: seen == [1, 0])


async def test_the_late_error_of_a_hung_call_is_not_logged(caplog: pytest.LogCaptureFixture, disk: Disk) -> None:
    calls = BlockingCalls("read", limit=0.01)

    def fail() -> None:
        disk.read()
        raise OSError("gone")

    with pytest.raises(CallTimedOut):
        await calls.run(fail)
    disk.gate.set()
    await until(lambda: not calls.hung.value)
    assert not caplog.records


async def test_callers_with_the_same_key_share_a_call(disk: Disk) -> None:
    calls = BlockingCalls("read", limit=60)
    joined = [asyncio.create_task(calls.join(disk.read, "a")) for _ in range(3)]
    other = asyncio.create_task(calls.join(disk.read, "b"))
    await until(lambda: len(disk.begun) == 2)
    disk.gate.set()
    assert len({*await asyncio.gather(*joined), await other}) == 2
    assert await calls.join(lambda: 7, "a") == 7


async def test_a_hung_call_can_be_joined_and_is_counted_once(disk: Disk) -> None:
    calls = BlockingCalls("read", limit=0.01, most_hung=1)
    for _ in range(3):
        with pytest.raises(CallTimedOut, match=r"^read of a did not end within"):
            await calls.join(disk.read, "of a")
    assert [call.name for call in calls.hung.value] == ["read of a"]
    await until(lambda: disk.begun == [0])
    with pytest.raises(CallNotStarted, match=r"^read of b not started"):
        await calls.join(disk.read, "of b")


async def test_a_shared_call_does_not_hang_while_one_caller_waits(disk: Disk) -> None:
    calls = BlockingCalls("read", limit=60)
    first, second = (asyncio.create_task(calls.join(disk.read)) for _ in range(2))
    await until(lambda: disk.begun)
    first.cancel()
    await asyncio.wait((first,))
    assert calls.hung.value == ()
    disk.gate.set()
    assert await second == 0


async def test_calls_wait_for_their_turn(disk: Disk) -> None:
    calls = BlockingCalls("read", limit=60, at_once=2)
    running = [asyncio.create_task(calls.run(disk.read)) for _ in range(5)]
    await until(lambda: len(disk.begun) == 2)
    await asyncio.sleep(0)
    assert len(disk.begun) == 2
    disk.gate.set()
    assert sorted(await asyncio.gather(*running)) == [0, 1, 2, 3, 4]


async def test_a_call_that_waits_for_its_turn_is_refused_when_too_many_hang(disk: Disk) -> None:
    calls = BlockingCalls("read", limit=60, at_once=1)
    running, waiting = (asyncio.create_task(calls.run(disk.read)) for _ in range(2))
    await until(lambda: disk.begun)
    running.cancel()
    with pytest.raises(CallNotStarted, match="1 earlier call still hangs"):
        await waiting


async def test_a_cancelled_caller_can_wait_for_the_end(disk: Disk) -> None:
    calls = BlockingCalls("write", limit=60)
    call = asyncio.create_task(calls.run(disk.read, to_end=True))
    await until(lambda: disk.begun)
    call.cancel()
    await asyncio.sleep(0)
    assert not call.done()
    disk.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert calls.hung.value == ()


async def test_an_iteration_hangs_from_when_its_reader_leaves_until_its_next_item(disk: Disk) -> None:
    calls = BlockingCalls("walk", limit=None, most_hung=1)

    def items() -> Iterator[int]:
        yield 7
        yield disk.read()

    async with aclosing(calls.iterate(items)) as found:
        assert await anext(found) == 7
        assert calls.hung.value == ()
    with pytest.raises(CallNotStarted, match=r"^walk not started: 1 earlier call still hangs"):
        await anext(calls.iterate(items))
    disk.gate.set()
    await until(lambda: not calls.hung.value)
    assert [item async for item in calls.iterate(items)][-1] == 1


async def test_a_thread_that_cannot_be_started_is_an_error() -> None:
    calls = BlockingCalls("read", limit=60, at_once=1)
    with no_threads(), pytest.raises(CallNotStarted, match="read not started: can't start new thread"):
        await calls.run(lambda: 7)
    assert await calls.run(lambda: 7) == 7
