"""A task that is started runs at once until it has to wait, on every Python."""

import asyncio

import pytest

from plugwright.system import concurrency


async def test_what_does_not_wait_has_ended_when_it_is_started() -> None:
    async def count() -> int:
        return 7

    task = concurrency.start(count())
    assert task.done()
    assert task.result() == 7


async def test_an_error_is_the_tasks() -> None:
    async def fail() -> None:
        raise OSError("bus error")

    task = concurrency.start(fail())
    with pytest.raises(OSError, match="bus error"):
        await task


async def test_the_rest_runs_when_what_it_waits_for_is_there() -> None:
    seen: list[str] = []
    ready = asyncio.Event()

    async def wait() -> str:
        seen.append("begun")
        await ready.wait()
        return "ended"

    task = concurrency.start(wait())
    assert seen == ["begun"]
    ready.set()
    assert await task == "ended"


async def test_the_first_part_has_a_task_of_its_own() -> None:
    outer = asyncio.current_task()

    async def current() -> "asyncio.Task[object] | None":
        async with asyncio.timeout(60):  # needs a task, which it may have to cancel
            return asyncio.current_task()

    task = concurrency.start(current())
    assert task.result() is task
    assert asyncio.current_task() is outer


async def test_a_task_is_started_from_a_callback_too() -> None:
    loop, started = asyncio.get_running_loop(), asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    async def end() -> None:
        assert asyncio.current_task() is not None

    def start() -> None:
        tasks.append(concurrency.start(end()))
        assert tasks[0].done()
        assert asyncio.current_task() is None
        started.set()

    loop.call_soon(start)
    await started.wait()
    await tasks[0]


async def test_a_started_task_can_be_cancelled() -> None:
    task = concurrency.start(asyncio.Event().wait())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
