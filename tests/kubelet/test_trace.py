"""Who follows a kubelet hears everything that happened, and is done when the kubelet is left."""

import asyncio
from pathlib import Path

from plugwright.kubelet import Kubelet
from plugwright.kubelet.trace import Event, State, Trace


async def heard(trace: Trace) -> list[Event]:
    return [event async for event in trace.follow()]


async def test_a_follower_hears_what_happened_before_and_after_it_came() -> None:
    trace = Trace()
    trace.add(State("before", "it"))
    follower = asyncio.create_task(heard(trace))
    await asyncio.sleep(0)
    trace.add(State("after", "it"))
    trace.close()
    trace.add(State("last", "it"))  # its last words are heard too
    assert [event.kind for event in await follower if isinstance(event, State)] == ["before", "after", "last"]


async def test_the_events_end_with_the_kubelet(root: Path) -> None:
    async with Kubelet(root) as kubelet:
        events = kubelet.events()
        first = await anext(events)
    assert isinstance(first, State)
    assert (first.kind, first.about) == ("started", "kubelet 1.36")
    assert [event async for event in events] == []
