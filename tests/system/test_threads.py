"""Code that may block runs beside the loop, and one that hangs keeps nobody."""

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from plugwright.system.concurrency import begin_in_thread, in_thread, iterate_in_thread, keep_threads


@pytest.fixture
def let_go() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()
    while any(thread.name == "tape" for thread in threading.enumerate()):
        time.sleep(0.001)


async def test_a_function_runs_in_a_daemon_thread_that_has_its_name() -> None:
    def seen() -> tuple[threading.Thread, str]:
        return threading.current_thread(), threading.current_thread().name

    thread, name = await in_thread("tape", seen)
    assert (name, thread.daemon) == ("tape", True)
    assert thread is not threading.current_thread()


async def test_a_thread_that_has_finished_makes_the_next_call() -> None:
    threads = {await in_thread(f"tape {number}", threading.current_thread) for number in range(5)}
    assert len(threads) == 1


async def test_a_thread_that_hangs_makes_no_other_call(let_go: threading.Event) -> None:
    hanging = begin_in_thread("tape", partial(let_go.wait, 60))
    assert await in_thread("tape", lambda: 7) == 7
    assert not hanging.done()
    let_go.set()
    await hanging


async def test_threads_that_were_needed_at_once_do_not_all_stay(let_go: threading.Event) -> None:
    before = set(threading.enumerate())
    barrier = threading.Barrier(5, timeout=60)
    await asyncio.gather(*(in_thread("tape", barrier.wait) for _ in range(5)))
    while len(set(threading.enumerate()) - before) > 1:
        await asyncio.sleep(0.001)


async def test_a_program_that_makes_many_calls_at_once_keeps_their_threads() -> None:
    keep_threads(3)
    barrier = threading.Barrier(3, timeout=60)

    def thread() -> threading.Thread:
        barrier.wait()
        return threading.current_thread()

    first, second = [{*await asyncio.gather(*(in_thread("tape", thread) for _ in range(3)))} for _ in range(2)]
    assert first == second


def test_an_idle_thread_ends_with_its_event_loop() -> None:
    async def thread_of_a_call() -> threading.Thread:
        return await in_thread("tape", threading.current_thread)

    thread = asyncio.run(thread_of_a_call())
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


async def test_an_exception_in_a_thread_is_raised_where_it_is_awaited() -> None:
    def fail() -> None:
        raise OSError("bus error")

    with pytest.raises(OSError, match="bus error"):
        await in_thread("tape", fail)


async def test_the_end_of_an_iteration_becomes_an_error() -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_thread("tape", partial(next, iter(())))


async def test_the_loop_goes_on_while_a_function_blocks(let_go: threading.Event) -> None:
    waiting = asyncio.create_task(in_thread("tape", partial(let_go.wait, 60)))
    await asyncio.sleep(0)
    let_go.set()  # which nobody could do if the loop were blocked
    assert await waiting


async def test_functions_run_at_the_same_time() -> None:
    barrier = threading.Barrier(5, timeout=60)
    assert sorted(await asyncio.gather(*(in_thread("tape", barrier.wait) for _ in range(5)))) == [0, 1, 2, 3, 4]


async def test_a_function_that_hangs_is_left_at_once(let_go: threading.Event) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await in_thread("tape", partial(let_go.wait, 60))


def test_a_thread_that_outlives_the_loop_ends_in_silence(let_go: threading.Event) -> None:
    ended = threading.Event()

    def hang() -> None:
        let_go.wait(60)
        ended.set()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await in_thread("tape", hang)

    asyncio.run(main())
    assert not ended.is_set()  # the loop does not wait for it
    let_go.set()
    assert ended.wait(60)  # what it says at its end fails this test


async def test_items_come_in_order_and_end() -> None:
    taken = threading.Semaphore(0)

    def items() -> Iterator[int]:
        for number in range(5):
            yield number
            assert taken.acquire(timeout=60)

    got = []
    async for number in iterate_in_thread("tape", items):
        got.append(number)
        taken.release()
    assert got == [0, 1, 2, 3, 4]


async def test_an_empty_iterable_ends_at_once() -> None:
    def nothing() -> list[int]:
        return []

    assert [item async for item in iterate_in_thread("tape", nothing)] == []


async def test_all_items_are_made_in_one_thread() -> None:
    def items() -> Iterator[threading.Thread]:
        yield threading.current_thread()
        yield threading.current_thread()

    threads = {item async for item in iterate_in_thread("tape", items)}
    assert len(threads) == 1
    assert threading.current_thread() not in threads


async def test_a_slow_reader_gets_the_latest_item() -> None:
    all_made = threading.Event()

    def items() -> Iterator[int]:
        yield 0
        yield from range(1, 100)
        all_made.set()

    got = []
    async for number in iterate_in_thread("tape", items):
        assert all_made.wait(20)  # blocks the loop on purpose: nothing can be delivered meanwhile
        got.append(number)
    assert got[-1] == 99
    assert len(got) <= 3


async def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise OSError("bus error")

    lists = iterate_in_thread("tape", items)
    assert await anext(lists) == 1
    with pytest.raises(OSError, match="bus error"):
        await anext(lists)


async def test_an_error_before_the_first_item_is_raised() -> None:
    def items() -> list[int]:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        await anext(iterate_in_thread("tape", items))


async def test_the_thread_ends_at_its_next_item_when_the_reader_has_left(let_go: threading.Event) -> None:
    closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            yield 0
            let_go.wait(20)
            yield 1
            raise AssertionError("nobody asked for more")
        finally:
            closed.set()

    lists = iterate_in_thread("tape", items)
    assert await anext(lists) == 0
    await lists.aclose()
    let_go.set()
    assert await in_thread("watcher", partial(closed.wait, 20))


async def test_a_reader_that_is_cancelled_leaves_at_once(let_go: threading.Event) -> None:
    def items() -> Iterator[int]:
        let_go.wait(20)
        yield 0

    reading = asyncio.create_task(anext(iterate_in_thread("tape", items)))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


WITHOUT_MEMORY = """
import asyncio, resource
from plugwright.system.concurrency import in_thread

async def begin_one(spare):
    pages = int(open("/proc/self/statm").read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + spare, resource.RLIM_INFINITY))
    try:
        return await in_thread("tape", int)
    except (RuntimeError, MemoryError):
        return None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

async def main():
    import threading
    threading.stack_size(256 * 1024)
    results = [await begin_one(spare) for spare in range(128 * 1024, 512 * 1024, 4096)]
    print(results.count(0), results.count(None), await in_thread("tape", int))

asyncio.run(main())
"""


async def test_a_thread_without_memory_to_begin_keeps_nobody_waiting() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WITHOUT_MEMORY, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        written, errors = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    _, failed, after = map(int, written.split())
    assert failed > 0, errors
    assert after == 0
