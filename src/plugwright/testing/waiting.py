"""Waiting for a kubelet to hear of plugins, for as long as there is hope."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Coroutine
from typing import TypeVar

from plugwright.kubelet.trace import Event, State

__all__ = ["first", "listed"]

T = TypeVar("T")


async def listed(events: AsyncGenerator[Event, None], resources: Collection[str], seen: set[str]) -> None:
    """Returns when each of `resources` was listed, or any where none are named; `seen` grows with each list."""
    async for event in events:
        if isinstance(event, State) and event.kind == "list":
            seen.add(event.about)
            if seen.issuperset(resources):
                return


async def first(*waits: Coroutine[object, object, T], limit: float) -> T | None:
    """What ends first; None when nothing did in time. The others are cancelled."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        return next((task.result() for task in tasks if task in done), None)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
