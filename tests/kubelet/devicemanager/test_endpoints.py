"""Endpoints: dialling, lists and the end of a stream; numbers in comments are those of the facts."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived
from tests.kubelet.actors import (
    TAPE,
    Clock,
    ScriptedPlugin,
    checkpoint_of,
    device,
    quick_settings,
    refusal_of,
    register,
    registered,
    states,
    until_call,
    until_finding,
    until_state,
)

from plugwright.errors import AllocationFailed, PeerRefused
from plugwright.kubelet import Kubelet
from plugwright.kubelet.devicemanager.devices import DeviceCount
from plugwright.model import Options
from plugwright.protocol import device_plugin
from plugwright.protocol.messages import ListedDevice
from plugwright.protocol.registration import RegisterRequest
from plugwright.protocol.transport import MESSAGE_LIMIT
from plugwright.testing import pod_requesting

GRACE = 300.0


async def gone(kubelet: Kubelet, *devices: str) -> None:
    """A plugin that was here, and is not any more."""
    async with registered(kubelet, ScriptedPlugin(*devices)):
        await kubelet.allocatable(TAPE, len(devices))
    await kubelet.allocatable(TAPE, 0)


async def test_the_kubelet_calls_itself_localhost(node: Kubelet) -> None:  # 2.1
    headers: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = H2Connection(H2Configuration(client_side=False, header_encoding="ascii"))
        while data := await reader.read(4096):
            for event in connection.receive_data(data):
                if isinstance(event, RequestReceived) and not headers.done():
                    headers.set_result({str(name): str(value) for name, value in event.headers})
                    writer.close()

    async with await asyncio.start_unix_server(answer, node.paths.device_plugins / "raw.sock"):
        with pytest.raises(PeerRefused, match="failed to get device plugin options"):
            await register(node, RegisterRequest(TAPE, "raw.sock"))
        received = await headers
    assert received[":authority"] == "localhost"
    assert received[":path"] == "/v1beta1.DevicePlugin/GetDevicePluginOptions"


async def test_the_call_for_options_ends_with_the_plugins_own_call(node: Kubelet) -> None:  # 2.2
    plugin = ScriptedPlugin("a")
    hold = plugin.hold("GetDevicePluginOptions")
    async with device_plugin.serve(plugin, node.paths.device_plugins / "p.sock"):
        registering = asyncio.create_task(register(node, RegisterRequest(TAPE, "p.sock")))
        await hold.asked.wait()
        registering.cancel()
        assert (await until_call(node, "GetDevicePluginOptions")).outcome == "CancelledError"
        assert plugin.methods == ["GetDevicePluginOptions"]


async def test_the_stream_outlives_the_call_that_registered(node: Kubelet) -> None:  # 2.4
    plugin = ScriptedPlugin("a")
    async with device_plugin.serve(plugin, node.paths.device_plugins / "p.sock"):
        await register(node, RegisterRequest(TAPE, "p.sock"), timeout=60)
        await node.allocatable(TAPE, 1)
        plugin.send("a", "b")
        assert await node.allocatable(TAPE, 2) == 2


async def test_every_list_replaces_the_last(node: Kubelet) -> None:  # 2.5, 2.10
    async with registered(node, ScriptedPlugin("a", "b", "c")) as plugin:
        assert await node.allocatable(TAPE, 3) == 3
        plugin.send("a", device("d", health="Unhealthy"))
        assert await node.capacity(TAPE, 2) == 2
        assert node.node() == {TAPE: DeviceCount(2, 1)}
        assert checkpoint_of(node).registered == {TAPE: ("a",)}


async def test_devices_in_use_do_not_lower_allocatable(node: Kubelet) -> None:  # 2.10
    async with registered(node, ScriptedPlugin("a", "b")):
        await node.allocatable(TAPE, 2)
        await node.admit(pod_requesting({TAPE: 2}))
        assert node.node() == {TAPE: DeviceCount(2, 2)}


async def test_any_device_id_is_accepted(node: Kubelet) -> None:  # 2.7, 2.8, 2.9
    odd = ["", "x" * 300, "two words", "twice", "twice"]
    async with registered(node, ScriptedPlugin(*odd)):
        assert await node.allocatable(TAPE, 4) == 4
        pod = await node.admit(pod_requesting({TAPE: 4}))
        assert set(pod.container("main").env["TAPE"].split(",")) == set(odd)


async def test_an_empty_list_shows_the_resource(node: Kubelet) -> None:  # 2.11
    async with registered(node, ScriptedPlugin()):
        assert await node.capacity(TAPE) == 0
        assert checkpoint_of(node).registered == {TAPE: ()}


async def test_resource_is_unknown_before_its_first_list(node: Kubelet) -> None:  # 2.12
    plugin = ScriptedPlugin("a")
    hold = plugin.hold("ListAndWatch")
    async with registered(node, plugin):
        await hold.asked.wait()
        assert node.node() == {}
        assert not node.paths.checkpoint.exists()
        hold.free.set()
        assert await node.allocatable(TAPE, 1) == 1


async def test_counts_stay_until_the_new_list(node: Kubelet) -> None:  # 2.3, 2.13
    old, new = ScriptedPlugin("a", "b"), ScriptedPlugin("a", "b", "c", options=Options(preference=True))
    hold = new.hold("ListAndWatch")
    async with registered(node, old, "old.sock"):
        await node.allocatable(TAPE, 2)
        async with registered(node, new, "new.sock"):
            await hold.asked.wait()
            assert node.node() == {TAPE: DeviceCount(2, 2)}
            await node.admit(pod_requesting({TAPE: 1}))
            assert new.methods[-2:] == ["GetPreferredAllocation", "Allocate"]  # its options count, and it is called
            assert old.methods == ["GetDevicePluginOptions", "ListAndWatch"]
            hold.free.set()
            assert await node.allocatable(TAPE, 3) == 3


async def test_every_list_is_written_changed_or_not(node: Kubelet) -> None:  # 2.14
    async with registered(node, ScriptedPlugin("a")) as plugin:
        await node.allocatable(TAPE, 1)
        node.paths.checkpoint.unlink()
        plugin.send("a")
        async for event in node.events(new=True):
            if getattr(event, "kind", "") == "list":
                break
        assert checkpoint_of(node).registered == {TAPE: ("a",)}


ENDS: dict[str, Callable[[ScriptedPlugin], None]] = {
    "returned": lambda plugin: plugin.end(),
    "failed": lambda plugin: plugin.end("broken"),
    "too large": lambda plugin: plugin.send("x" * (MESSAGE_LIMIT + 1)),  # 2.16
}


@pytest.mark.parametrize("end", ENDS)
async def test_end_of_the_stream_marks_all_unhealthy_and_is_not_retried(node: Kubelet, end: str) -> None:
    """2.15, 2.16."""
    plugin = ScriptedPlugin("a", device("b", health="Unhealthy"))
    async with registered(node, plugin):
        await node.allocatable(TAPE, 1)
        ENDS[end](plugin)
        assert await node.allocatable(TAPE, 0) == 0
        assert await node.capacity(TAPE) == 2
        await plugin.streams.until(lambda opened: opened == 0)  # the plugin sees its stream ended too
        assert plugin.methods == ["GetDevicePluginOptions", "ListAndWatch"]


async def test_a_plugin_that_is_gone_keeps_its_capacity(node: Kubelet) -> None:  # 2.15
    await gone(node, "a", "b")
    assert node.node() == {TAPE: DeviceCount(2, 0)}
    assert checkpoint_of(node).registered == {TAPE: ("a", "b")}  # 4.31: nothing is written then


async def test_a_stopped_plugin_is_not_called(node: Kubelet) -> None:  # 2.17
    await gone(node, "a")
    with pytest.raises(AllocationFailed, match=r"endpoint .*has been stopped"):
        await node.allocate(TAPE, ["a"])


async def test_resource_is_removed_five_minutes_after_its_plugin(node: Kubelet, clock: Clock) -> None:  # 2.18, 2.19
    await gone(node, "a")
    clock.advance(GRACE)
    assert node.node() == {TAPE: DeviceCount(1, 0)}
    assert TAPE in (checkpoint_of(node).registered or {})
    clock.advance(0.1)
    assert node.node() == {TAPE: DeviceCount(0, 0)}
    assert checkpoint_of(node).registered == {}
    clock.advance(10 * GRACE)
    assert node.node() == {TAPE: DeviceCount(0, 0)}  # the key stays


async def test_a_resource_is_called_removed_once(root: Path, clock: Clock) -> None:  # 2.18
    async with Kubelet(root, quick_settings(clock=clock)) as kubelet:
        await gone(kubelet, "a")
        clock.advance(2 * GRACE)
        for _ in range(3):
            kubelet.node()
    assert [state.about for state in await states(kubelet, "removed")] == [TAPE]


async def test_a_plugin_that_comes_back_in_time_is_not_dropped(node: Kubelet, clock: Clock) -> None:  # 2.18, 2.23
    await gone(node, "a")
    clock.advance(GRACE - 1)
    async with registered(node, ScriptedPlugin("a", "b")):
        assert await node.allocatable(TAPE, 2) == 2
        clock.advance(10 * GRACE)
        assert node.node() == {TAPE: DeviceCount(2, 2)}


async def test_a_dropped_resource_comes_back_with_its_plugin(node: Kubelet, clock: Clock) -> None:  # 2.18, 2.23
    await gone(node, "a")
    clock.advance(2 * GRACE)
    node.node()
    async with registered(node, ScriptedPlugin("a")):
        assert await node.allocatable(TAPE, 1) == 1
        await node.admit(pod_requesting({TAPE: 1}))


async def test_a_dropped_resource_refuses_pods_by_its_zero(node: Kubelet, clock: Clock) -> None:  # 2.19, 10.18
    await gone(node, "a")
    clock.advance(2 * GRACE)
    node.node()
    assert (await refusal_of(node, pod_requesting({TAPE: 1}))).reason == f"OutOf{TAPE}"


async def test_a_stream_without_a_list_shows_zero_and_is_dropped(node: Kubelet, clock: Clock) -> None:  # 2.21
    plugin = ScriptedPlugin()
    plugin.end()
    async with registered(node, plugin):
        assert await node.capacity(TAPE, 0) == 0
        assert node.node() == {TAPE: DeviceCount(0, 0)}
        clock.advance(2 * GRACE)
        node.node()
        await until_state(node, "removed", TAPE)
        assert plugin.methods == ["GetDevicePluginOptions", "ListAndWatch"]


async def test_two_plugins_of_one_resource_both_list_and_the_newer_is_called(node: Kubelet) -> None:  # 2.22
    old, new = ScriptedPlugin("a"), ScriptedPlugin("b", "c")
    async with registered(node, old, "old.sock"):
        await node.allocatable(TAPE, 1)
        async with registered(node, new, "new.sock"):
            await node.allocatable(TAPE, 2)
            old.send("a", "b", "c")
            assert await node.allocatable(TAPE, 3) == 3
            new.send("b", "c")
            assert await node.allocatable(TAPE, 2) == 2
            await node.admit(pod_requesting({TAPE: 1}))
            assert (old.asked("Allocate"), new.asked("Allocate")) == ([], [("b",)])
            assert (old.streams.value, new.streams.value) == (1, 1)


@pytest.mark.parametrize(("version", "facts"), [("1.36", ["2.22"]), ("1.37", [])])
async def test_end_of_the_older_stream_leaves_the_newer_with_a_finding(
    root: Path, version: str, facts: list[str]
) -> None:  # 2.22
    new = ScriptedPlugin("b", "c")
    async with (
        Kubelet(root, quick_settings(version=version)) as kubelet,
        device_plugin.serve(new, kubelet.paths.device_plugins / "new.sock"),
    ):
        old = ScriptedPlugin("a")
        async with registered(kubelet, old, "old.sock"):
            await kubelet.allocatable(TAPE, 1)
            await register(kubelet, RegisterRequest(TAPE, "new.sock"))
            await kubelet.allocatable(TAPE, 2)
        for fact in facts:
            await until_finding(kubelet, fact)
        await kubelet.admit(pod_requesting({TAPE: 1}))
        assert kubelet.node() == {TAPE: DeviceCount(2, 2)}
        assert new.streams.value == 1
        assert [finding.fact for finding in kubelet.findings] == facts


async def test_since_1_37_the_older_plugin_takes_over_when_the_newer_ends(root: Path) -> None:  # 2.22
    old = ScriptedPlugin("a", "b")
    async with Kubelet(root, quick_settings(version="1.37")) as kubelet:
        async with registered(kubelet, old, "old.sock"):
            await kubelet.allocatable(TAPE, 2)
            async with registered(kubelet, ScriptedPlugin("a", "b", "c"), "new.sock"):
                await kubelet.allocatable(TAPE, 3)
            assert (await until_state(kubelet, "promoted", TAPE))[-1].text == "calls go to old.sock"
            assert kubelet.node() == {TAPE: DeviceCount(3, 3)}  # as the last list said, until there is another
            old.send("a", "b")
            await kubelet.allocatable(TAPE, 2)
            await kubelet.admit(pod_requesting({TAPE: 1}))
            assert len(old.asked("Allocate")) == 1
        assert await kubelet.allocatable(TAPE, 0) == 0
        assert kubelet.findings == ()


async def test_end_of_the_older_stream_after_the_newer_has_no_effect(node: Kubelet) -> None:  # 2.22
    old = ScriptedPlugin("a")
    async with registered(node, old, "old.sock"):
        await node.allocatable(TAPE, 1)
        async with registered(node, ScriptedPlugin("b", "c"), "new.sock"):
            await node.allocatable(TAPE, 2)
        await node.allocatable(TAPE, 0)
        old.end()
        await old.streams.until(lambda opened: opened == 0)
        async with registered(node, ScriptedPlugin("d"), "last.sock"):
            assert await node.allocatable(TAPE, 1) == 1
    assert node.findings == ()


async def test_the_usual_restart_of_a_plugin_works(node: Kubelet) -> None:  # 2.23, 3.74
    await gone(node, "a", "b")
    async with registered(node, ScriptedPlugin("a", "b"), "again.sock"):
        assert await node.allocatable(TAPE, 2) == 2
    assert node.findings == ()


async def test_device_dropped_during_allocate_is_a_finding(node: Kubelet) -> None:  # 2.25
    async with registered(node, ScriptedPlugin("a", "b")) as plugin:
        await node.allocatable(TAPE, 2)
        hold = plugin.hold("Allocate")
        admitting = asyncio.create_task(node.admit(pod_requesting({TAPE: 1})))
        await hold.asked.wait()
        plugin.send("b")
        await node.capacity(TAPE, 1)
        hold.free.set()
        pod = await admitting
        assert pod.container("main").env == {"TAPE": "a"}  # recorded, where a real kubelet crashes
    [finding] = node.findings
    assert (finding.fact, finding.really) == ("2.25", "crashes when the response arrives")


@pytest.mark.parametrize(
    ("version", "held", "facts"),
    [("1.36", device("a", 0), ["2.25"]), ("1.36", device("a"), []), ("1.33", device("a", 0), [])],
    ids=["with a NUMA node", "without one", "before 1.34"],
)
async def test_held_device_that_is_dropped_is_a_finding(
    root: Path, version: str, held: ListedDevice, facts: list[str]
) -> None:  # 2.25
    async with (
        Kubelet(root, quick_settings(version=version)) as kubelet,
        registered(kubelet, ScriptedPlugin(held)) as plugin,
    ):
        await kubelet.allocatable(TAPE, 1)
        await kubelet.admit(pod_requesting({TAPE: 1}))
        plugin.send("other", "another")
        await kubelet.allocatable(TAPE, 2)
        assert [finding.fact for finding in kubelet.findings] == facts
