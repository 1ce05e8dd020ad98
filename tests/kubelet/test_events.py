"""The event log: followers get every event, and end with the kubelet."""

import asyncio
from pathlib import Path

import pytest
from tests.kubelet.actors import TAPE, ScriptedPlugin, quick_settings, refusal_of, registered

from plugwright.errors import PeerGone
from plugwright.kubelet import Kubelet
from plugwright.kubelet.events import Call, Event, EventLog, StateChange
from plugwright.model import Options
from plugwright.protocol.messages import ListedDevice
from plugwright.testing import pod_requesting


async def all_events(event_log: EventLog) -> list[Event]:
    return [event async for event in event_log.follow()]


async def test_follower_gets_the_events_before_and_after_its_start() -> None:
    event_log = EventLog()
    event_log.add(StateChange("before", "it"))
    follower = asyncio.create_task(all_events(event_log))
    await asyncio.sleep(0)
    event_log.add(StateChange("after", "it"))
    event_log.close()
    event_log.add(StateChange("last", "it"))  # an event after the close still reaches the follower
    assert [event.kind for event in await follower if isinstance(event, StateChange)] == ["before", "after", "last"]


async def test_the_events_end_with_the_kubelet(root: Path) -> None:
    async with Kubelet(root) as kubelet:
        events = kubelet.events()
        first = await anext(events)
    assert isinstance(first, StateChange)
    assert (first.kind, first.about) == ("started", "kubelet 1.36")
    assert [event async for event in events] == []


async def test_every_call_is_recorded_in_order_with_resource_and_outcome(node: Kubelet) -> None:
    async with registered(node, ScriptedPlugin("a", "b", options=Options(pre_start=True, preference=True)), "p.sock"):
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


async def test_call_that_fails_is_recorded_with_its_error(node: Kubelet) -> None:
    async with registered(node, ScriptedPlugin("a")) as plugin:
        await node.allocatable(TAPE, 1)
        plugin.errors["Allocate"] = "hw fault"
        await refusal_of(node, pod_requesting({TAPE: 1}))
    assert node.calls[-1].outcome == "hw fault (UNKNOWN)"


async def test_state_changes_of_plugins_and_pods_are_recorded(root: Path) -> None:
    async with Kubelet(root, quick_settings()) as kubelet:
        async with registered(kubelet, ScriptedPlugin("a"), "p.sock"):
            await kubelet.allocatable(TAPE, 1)
            pod = await kubelet.admit(pod_requesting({TAPE: 1}, name="good"))
            await refusal_of(kubelet, pod_requesting({TAPE: 1}, name="bad"))
            await kubelet.remove(pod)
        await kubelet.allocatable(TAPE, 0)
    changes = [(event.kind, event.about) async for event in kubelet.events() if isinstance(event, StateChange)]
    assert changes == [
        ("started", "kubelet 1.36"),
        ("registered", TAPE),
        ("list", TAPE),
        ("admitted", "default/good"),
        ("started", "default/good/main"),
        ("refused", "default/bad"),
        ("deleted", "default/good"),
        ("stopped", TAPE),
    ]


async def test_event_log_continues_over_a_restart(node: Kubelet) -> None:
    async with registered(node, ScriptedPlugin("a")):
        await node.allocatable(TAPE, 1)
        calls = node.calls
        await node.restart()
        assert node.calls == calls


async def test_follower_may_skip_earlier_events() -> None:
    event_log = EventLog()
    event_log.add(StateChange("before", "it"))
    events = event_log.follow(new=True)
    event_log.add(Call("Allocate", TAPE))
    event_log.close()
    assert [event async for event in events] == [Call("Allocate", TAPE)]


async def test_wait_for_a_missing_resource_times_out() -> None:
    with pytest.raises(PeerGone, match=r"x: a list expected, nothing after 0\.01 s"):
        await EventLog().until(lambda: False, 0.01, lambda: "x: a list expected, nothing")


def test_old_device_lists_are_dropped_before_they_fill_the_memory() -> None:
    event_log = EventLog()
    many = (ListedDevice("st0", "Healthy", None),) * 60_000
    for number in range(5):
        event_log.add(StateChange("registered", TAPE))
        event_log.add(StateChange("list", TAPE, str(number), many))
    lists = [event for event in event_log.events if isinstance(event, StateChange) and event.kind == "list"]
    assert [event.text for event in lists] == ["0", "1", "2", "3", "4"]
    assert [len(event.devices) for event in lists] == [0, 0, 60_000, 60_000, 60_000]
