"""Who follows a kubelet hears everything that happened, and is done when the kubelet is left."""

import asyncio
from pathlib import Path

import pytest
from tests.kubelet.actors import TAPE, Scripted, plugged, quick, refused

from plugwright.errors import PeerGone
from plugwright.kubelet import Kubelet
from plugwright.kubelet.events import Call, Event, EventLog, StateChange
from plugwright.model import Options
from plugwright.testing import pod_requesting


async def heard(trace: EventLog) -> list[Event]:
    return [event async for event in trace.follow()]


async def test_a_follower_hears_what_happened_before_and_after_it_came() -> None:
    trace = EventLog()
    trace.add(StateChange("before", "it"))
    follower = asyncio.create_task(heard(trace))
    await asyncio.sleep(0)
    trace.add(StateChange("after", "it"))
    trace.close()
    trace.add(StateChange("last", "it"))  # its last words are heard too
    assert [event.kind for event in await follower if isinstance(event, StateChange)] == ["before", "after", "last"]


async def test_the_events_end_with_the_kubelet(root: Path) -> None:
    async with Kubelet(root) as kubelet:
        events = kubelet.events()
        first = await anext(events)
    assert isinstance(first, StateChange)
    assert (first.kind, first.about) == ("started", "kubelet 1.36")
    assert [event async for event in events] == []


async def test_every_call_is_noted_in_order_with_who_was_asked_and_what_came_of_it(node: Kubelet) -> None:
    async with plugged(node, Scripted("a", "b", options=Options(pre_start=True, preference=True)), "p.sock"):
        await node.allocatable(TAPE, 2)
        await node.admit(pod_requesting({TAPE: 1}))
    assert [(call.method, call.asked, call.outcome) for call in node.calls] == [
        ("Register", ("p.sock",), "OK"),
        ("GetDevicePluginOptions", (), "OK"),
        ("ListAndWatch", (), "open"),
        ("GetPreferredAllocation", ("a", "b"), "OK"),
        ("Allocate", ("b",), "OK"),
        ("PreStartContainer", ("b",), "OK"),
    ]
    assert {call.resource for call in node.calls} == {TAPE}
    assert all(call.seconds >= 0 for call in node.calls)


async def test_a_call_that_fails_is_noted_with_its_error(node: Kubelet) -> None:
    async with plugged(node, Scripted("a")) as plugin:
        await node.allocatable(TAPE, 1)
        plugin.errors["Allocate"] = "hw fault"
        await refused(node, pod_requesting({TAPE: 1}))
    assert node.calls[-1].outcome == "hw fault (UNKNOWN)"


async def test_states_tell_what_became_of_plugins_and_pods(root: Path) -> None:
    async with Kubelet(root, quick()) as kubelet:
        async with plugged(kubelet, Scripted("a"), "p.sock"):
            await kubelet.allocatable(TAPE, 1)
            pod = await kubelet.admit(pod_requesting({TAPE: 1}, name="good"))
            await refused(kubelet, pod_requesting({TAPE: 1}, name="bad"))
            await kubelet.remove(pod)
        await kubelet.allocatable(TAPE, 0)
    told = [(event.kind, event.about) async for event in kubelet.events() if isinstance(event, StateChange)]
    assert told == [
        ("started", "kubelet 1.36"),
        ("registered", TAPE),
        ("list", TAPE),
        ("admitted", "default/good"),
        ("started", "default/good/main"),
        ("refused", "default/bad"),
        ("deleted", "default/good"),
        ("stopped", TAPE),
    ]


async def test_the_trace_goes_on_over_a_restart(node: Kubelet) -> None:
    async with plugged(node, Scripted("a")):
        await node.allocatable(TAPE, 1)
        calls = node.calls
        await node.restart()
        assert node.calls == calls


async def test_who_comes_late_may_hear_only_what_is_new() -> None:
    trace = EventLog()
    trace.add(StateChange("before", "it"))
    events = trace.follow(new=True)
    trace.add(Call("Allocate", TAPE))
    trace.close()
    assert [event async for event in events] == [Call("Allocate", TAPE)]


async def test_what_does_not_come_about_is_said_in_time() -> None:
    with pytest.raises(PeerGone, match=r"no plugin listed x within 0\.01 s"):
        await EventLog().until(lambda: False, 0.01, "no plugin listed x")
