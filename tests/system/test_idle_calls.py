"""Calls for an idle event loop: made soon, in order, whatever one of them does."""

import asyncio
import logging
from functools import partial

import pytest

from plugwright.system.idle_calls import IdleCalls


async def test_calls_are_made_in_order_after_the_code_that_added_them() -> None:
    calls, made, ended = IdleCalls(), list[int](), asyncio.Event()
    for number in range(500):
        calls.add(partial(made.append, number))
    calls.add(ended.set)
    assert made == []
    async with asyncio.timeout(60):
        await ended.wait()
    assert made == list(range(500))


async def test_a_loop_that_is_never_idle_makes_them_all_the_same() -> None:
    calls, made = IdleCalls(), list[int]()
    async with asyncio.timeout(60):
        while not made:
            calls.add(partial(made.append, 1))
            await asyncio.sleep(0)


async def test_a_flush_makes_what_waits(caplog: pytest.LogCaptureFixture) -> None:
    calls, made = IdleCalls(), list[str]()
    calls.add(partial(made.append, "first"))
    calls.add(partial(int, "no number"))
    calls.add(partial(made.append, "last"))
    with caplog.at_level(logging.ERROR):
        calls.flush()
    assert made == ["first", "last"]
    assert [record.message for record in caplog.records] == ["a call for the idle event loop failed"]
