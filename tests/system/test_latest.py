"""Readers see the latest value, as fast as they can, and a slow one does not delay the others."""

import asyncio

from plugwright.system.latest import Latest


async def test_a_reader_gets_the_present_value() -> None:
    changes = Latest("now").changes()
    assert await anext(changes) == "now"


async def test_a_reader_is_woken_by_every_publication() -> None:
    newest = Latest(0)
    seen = []

    async def read() -> None:
        async for value in newest.changes():
            seen.append(value)
            if value == 3:
                return
            newest.publish(value + 1)

    async with asyncio.timeout(60):
        await read()
    assert seen == [0, 1, 2, 3]


async def test_a_busy_reader_sees_only_the_latest_value() -> None:
    newest = Latest(0)
    changes = newest.changes()
    assert await anext(changes) == 0
    for value in range(1, 1000):
        newest.publish(value)
    assert await anext(changes) == 999


async def test_the_same_value_published_again_wakes_readers() -> None:
    newest = Latest("same")
    changes = newest.changes()
    await anext(changes)
    newest.publish("same")
    async with asyncio.timeout(60):
        assert await anext(changes) == "same"


async def test_a_reader_without_a_new_value_waits() -> None:
    newest = Latest(0)
    changes = newest.changes()
    await anext(changes)
    waiting = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)
    assert not waiting.done()
    newest.publish(1)
    assert await waiting == 1


async def test_many_readers_see_the_same() -> None:
    newest = Latest(0)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(newest.until(lambda value: value == 2)) for _ in range(50)]
        await asyncio.sleep(0)
        newest.publish(1)
        await asyncio.sleep(0)
        newest.publish(2)
    assert [reader.result() for reader in readers] == [2] * 50


async def test_a_reader_that_left_takes_no_value_from_others() -> None:
    newest = Latest(0)
    leaving = asyncio.create_task(newest.until(lambda value: value == 1))
    staying = asyncio.create_task(newest.until(lambda value: value == 1))
    await asyncio.sleep(0)
    leaving.cancel()
    newest.publish(1)
    assert await staying == 1
    assert (await asyncio.gather(leaving, return_exceptions=True))[0].__class__ is asyncio.CancelledError


async def test_until_returns_at_once_for_a_value_that_is_accepted() -> None:
    assert await Latest(5).until(lambda value: value == 5) == 5


async def test_a_subscriber_is_called_after_every_publication() -> None:
    newest = Latest(0)
    rung: list[int] = []
    newest.subscribe(lambda: rung.append(newest.value))
    newest.publish(1)
    newest.publish(2)
    assert rung == [1, 2]
