"""A notification wakes everyone who waits, and is not lost if it comes before the wait."""

import asyncio

import pytest

from plugwright.system.latest import InProgress, Latest, Signal


async def test_a_notification_between_the_mark_and_the_wait_is_not_lost() -> None:
    signal = Signal()
    seen = signal.count
    signal.notify()
    waiting = asyncio.ensure_future(signal.wait(seen))
    await asyncio.sleep(0)
    assert waiting.done()
    assert waiting.result() == seen + 1


async def test_a_wait_lasts_until_the_next_notification() -> None:
    signal = Signal()
    signal.notify()
    waiting = asyncio.ensure_future(signal.wait(signal.count))
    await asyncio.sleep(0)
    assert not waiting.done()
    signal.notify()
    assert await waiting == 2


async def test_a_wait_that_has_seen_nothing_returns_immediately() -> None:
    async with asyncio.timeout(60):
        assert await Signal().wait(-1) == 0


async def test_a_wait_with_a_timeout_ends_with_the_same_count() -> None:
    signal = Signal()
    assert await signal.wait(0, timeout=0.001) == 0
    signal.notify()
    assert await signal.wait(0, timeout=60) == 1


async def test_a_timeout_around_a_wait_is_the_callers() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await Signal().wait(0)


async def test_a_notification_wakes_all_who_wait() -> None:
    signal = Signal()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(signal.wait(0)) for _ in range(50)]
        await asyncio.sleep(0)
        signal.notify()
    assert [task.result() for task in waiting] == [1] * 50


async def test_a_wait_that_is_cancelled_leaves_nothing_behind() -> None:
    signal = Signal()
    leaving, staying = asyncio.create_task(signal.wait(0)), asyncio.create_task(signal.wait(0))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert signal._waiters is not None
    assert len(signal._waiters) == 1
    signal.notify()
    assert await staying == 1


async def test_a_condition_is_evaluated_after_each_notification() -> None:
    signal = Signal()
    facts: list[str] = []
    waiting = asyncio.create_task(signal.until(lambda: "registered" in facts))
    await asyncio.sleep(0)
    facts.append("started")
    signal.notify()
    await asyncio.sleep(0)
    assert not waiting.done()
    facts.append("registered")
    signal.notify()
    async with asyncio.timeout(60):
        await waiting


async def test_a_condition_that_is_true_is_not_waited_for() -> None:
    async with asyncio.timeout(60):
        await Signal().until(lambda: True)


async def test_a_reader_of_notifications_begins_at_once_and_misses_none_while_it_is_busy() -> None:
    signal, rounds = Signal(), 0
    async with asyncio.timeout(60):
        async for _ in signal.notifications():
            rounds += 1
            if rounds == 3:
                break
            signal.notify()
    assert rounds == 3


async def test_several_notifications_while_the_reader_is_busy_are_one() -> None:
    signal = Signal()
    notifications = signal.notifications()
    await anext(notifications)
    for _ in range(1000):
        signal.notify()
    await anext(notifications)
    waiting = asyncio.ensure_future(anext(notifications))
    await asyncio.sleep(0)
    assert not waiting.done()
    signal.notify()
    await waiting


def test_a_subscriber_is_called_until_it_leaves() -> None:
    signal = Signal()
    counts: list[int] = []
    leave = signal.subscribe(lambda: counts.append(signal.count))
    signal.notify()
    signal.notify()
    leave()
    signal.notify()
    assert counts == [1, 2]


def test_a_signal_passes_on_what_another_one_reports() -> None:
    first, second = Signal(), Signal()
    first.subscribe(second.notify)
    first.notify()
    assert second.count == 1


async def test_work_in_progress_is_waited_for() -> None:
    calls = InProgress()
    async with asyncio.timeout(60):
        await calls.ended()
    calls.begin()
    calls.begin()
    waiting = asyncio.create_task(calls.ended())
    await asyncio.sleep(0)
    calls.end()
    await asyncio.sleep(0)
    assert not waiting.done()
    calls.end()
    async with asyncio.timeout(60):
        await waiting


@pytest.mark.parametrize("wakeup", [Latest(0), Signal(), InProgress()])
def test_a_wake_up_has_no_dictionary_of_attributes(wakeup: object) -> None:
    """There are dozens for every emulated node."""
    assert not hasattr(wakeup, "__dict__")
