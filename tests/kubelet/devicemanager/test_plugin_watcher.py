"""Plugins that the kubelet finds in plugins_registry; the numbers are those of the facts."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kubelet.actors import LIMIT, OTHER, TAPE, Announcing, Clock, Scripted, found, heard, plugged, quick, said

from plugwright.kubelet import Kubelet
from plugwright.kubelet.devicemanager.devices import DeviceCount
from plugwright.kubelet.metrics import MetricName
from plugwright.protocol import device_plugin
from plugwright.protocol.registration import PluginInfo
from plugwright.testing import pod_requesting

ACCEPTED = (True, "")


def announcing(name: str = TAPE, **more: object) -> Announcing:
    return Announcing(PluginInfo(name, **more))  # type: ignore[arg-type]


async def told(announcing: Announcing) -> tuple[bool, str]:
    return await asyncio.wait_for(announcing.told.get(), LIMIT)


async def test_a_socket_is_found_registered_and_told(node: Kubelet) -> None:  # 1.39, 1.42, 1.47, 1.51
    plugin, who = Scripted("a", "b"), announcing()
    async with found(node, plugin, who):
        assert await told(who) == ACCEPTED
        assert await node.allocatable(TAPE, 2) == 2
        await node.admit(pod_requesting({TAPE: 1}))
        assert plugin.methods == ["GetDevicePluginOptions", "ListAndWatch", "Allocate"]
        assert node.metrics.value(MetricName.REGISTRATIONS, resource_name=TAPE) == 0


async def test_the_directory_is_made_and_never_cleaned(node: Kubelet) -> None:  # 1.40
    kept = node.paths.plugins_registry / "kept"
    async with found(node, Scripted("a")):
        await node.allocatable(TAPE, 1)
        kept.touch()
        await node.restart()
        assert kept.exists()
        assert await node.allocatable(TAPE, 1) == 1  # found again, by itself


async def test_sockets_in_folders_are_found_too(node: Kubelet) -> None:  # 1.40
    async with found(node, Scripted("a"), name="vendor/deep/plugin.sock"):
        assert await node.allocatable(TAPE, 1) == 1


async def test_hidden_names_and_other_files_are_passed_over(node: Kubelet) -> None:  # 1.41
    hidden = announcing(OTHER)
    (node.paths.plugins_registry / "regular.sock").touch()
    async with found(node, Scripted("x", resource=OTHER), hidden, ".hidden.sock"), found(node, Scripted("a")):
        await node.allocatable(TAPE, 1)
        assert hidden.asked == 0
        assert {call.resource for call in node.calls if call.method == "GetInfo"} == {"found.sock"}


async def test_a_socket_made_anew_is_registered_anew(node: Kubelet) -> None:  # 1.42, 1.49
    async with found(node, Scripted("a")):
        await node.allocatable(TAPE, 1)
    assert await node.allocatable(TAPE, 0) == 0
    async with found(node, Scripted("a", "b")):
        assert await node.allocatable(TAPE, 2) == 2


async def test_after_the_stream_has_ended_the_socket_still_counts_as_registered(node: Kubelet) -> None:  # 1.49
    plugin, who = Scripted("a"), announcing()
    async with found(node, plugin, who):
        await node.allocatable(TAPE, 1)
        plugin.end()
        await node.allocatable(TAPE, 0)
        async with found(node, Scripted("x", resource=OTHER), name="later.sock"):
            await node.allocatable(OTHER, 1)  # the directory was looked through in between
        assert who.asked == 1
        assert plugin.methods == ["GetDevicePluginOptions", "ListAndWatch"]


async def test_a_removed_socket_ends_the_stream_of_a_plugin_that_still_runs(node: Kubelet) -> None:  # 1.50
    plugin = Scripted("a")
    async with found(node, plugin) as path:
        await node.allocatable(TAPE, 1)
        path.unlink()
        assert await node.allocatable(TAPE, 0) == 0
        await plugin.streams.until(lambda opened: opened == 0)
        assert node.node() == {TAPE: DeviceCount(1, 0)}


REFUSALS = {
    PluginInfo(TAPE, kind="CSIPlugin"): "no handler registered for plugin type: CSIPlugin at socket {path}",
    PluginInfo(TAPE, versions=("v1alpha1", "v2")): "plugin validation failed with err: "
    "manager version, v1beta1, is not among plugin supported versions [v1alpha1 v2]",
    PluginInfo("tape"): "plugin validation failed with err: "
    'invalid name of device plugin socket: the ResourceName "tape" is invalid',
    PluginInfo(TAPE, endpoint="/nowhere.sock"): "plugin registration failed with err: "
    "failed to dial device plugin: context deadline exceeded",
}


@pytest.mark.parametrize("announcement", REFUSALS, ids=["type", "version", "name", "connection"])
async def test_a_refusal_is_told_in_the_kubelets_words(node: Kubelet, announcement: PluginInfo) -> None:
    """1.39, 1.45, 1.46."""
    who = Announcing(announcement)
    async with found(node, Scripted("a"), who) as path:
        words = REFUSALS[announcement].format(path=path)
        assert await told(who) == (False, f"RegisterPlugin error -- {words}")
        assert node.node() == {}


async def test_options_that_fail_are_told_too(node: Kubelet) -> None:  # 1.46
    plugin, who = Scripted("a"), announcing()
    plugin.errors["GetDevicePluginOptions"] = "not now"
    async with found(node, plugin, who):
        registered, words = await told(who)
        assert not registered
        assert words == (
            "RegisterPlugin error -- plugin registration failed with err: "
            "failed to get device plugin options: rpc error: code = Unknown desc = not now"
        )


async def test_one_good_version_among_others_is_enough(node: Kubelet) -> None:  # 1.45
    who = announcing(versions=("v1alpha1", "v1beta1"))
    async with found(node, Scripted("a"), who):
        assert await told(who) == ACCEPTED


async def test_an_endpoint_is_a_path_as_it_is(node: Kubelet) -> None:  # 1.44
    plugin, elsewhere = Scripted("a"), node.paths.root / "elsewhere.sock"
    who = announcing(endpoint=str(elsewhere))
    async with device_plugin.serve(plugin, elsewhere), found(node, Scripted("wrong"), who) as path:
        await node.allocatable(TAPE, 1)
        await node.admit(pod_requesting({TAPE: 1}))
        assert plugin.asked("Allocate") == [("a",)]
        path.unlink()
        assert await node.allocatable(TAPE, 0) == 0  # 1.50: by the socket in the registry, not by the endpoint
    assert node.findings == ()


async def test_what_fails_is_tried_again_from_the_beginning(node: Kubelet, clock: Clock) -> None:  # 1.43
    plugin, who = Scripted("a"), announcing("tape")
    async with found(node, plugin, who):
        assert (await told(who))[0] is False
        who.announcement = PluginInfo(TAPE)
        await looked_through(node, 0)
        clock.advance(1)
        assert await told(who) == ACCEPTED
        assert await node.allocatable(TAPE, 1) == 1


async def test_each_retry_waits_twice_as_long_up_to_a_limit(root: Path, clock: Clock) -> None:  # 1.43
    timing = replace(quick().timing, retry=0.5, max_retry=2.0)
    who = announcing("tape")
    async with Kubelet(root, quick(clock=clock, timing=timing)) as kubelet, found(kubelet, Scripted("a"), who):
        await told(who)
        for number, wait in enumerate((0.5, 1.0, 2.0, 2.0)):
            await looked_through(kubelet, number)
            clock.advance(wait - 0.1)
            await looked_through(kubelet, number + 10)
            assert who.asked == number + 1
            clock.advance(0.2)
            await told(who)


async def looked_through(kubelet: Kubelet, number: int) -> None:
    """Returns when the directory was looked through since: another socket was found in it."""
    resource = f"example.com/look-{number}"
    async with found(kubelet, Scripted(resource=resource), name=f"{number}.sock"):
        await heard(kubelet, "registered", resource)


async def test_a_plugin_that_fails_the_notification_is_cut_off_again(node: Kubelet, clock: Clock) -> None:  # 1.47
    plugin, who = Scripted("a"), announcing()
    who.error = "I do not care"
    async with found(node, plugin, who):
        assert await told(who) == ACCEPTED
        await heard(node, "stopped", TAPE)
        who.error = ""
        await looked_through(node, 0)
        clock.advance(1)
        assert await told(who) == ACCEPTED  # and tried again
        assert await node.allocatable(TAPE, 1) == 1


async def test_who_does_not_say_in_time_who_it_is_is_not_told_either(root: Path) -> None:  # 1.48
    who = announcing()
    who.slow = asyncio.Event()
    timing = replace(quick().timing, get_info=0.05)
    async with Kubelet(root, quick(timing=timing)) as kubelet, found(kubelet, Scripted("a"), who):
        await heard(kubelet, "refused", "found.sock")
        assert who.told.empty()
        who.slow.set()
        assert await told(who) == ACCEPTED
        outcomes = [call.outcome for call in kubelet.calls if call.method == "GetInfo"]
        assert (outcomes[0] == "OK", outcomes[-1] == "OK") == (False, True)


async def test_of_two_sockets_for_one_resource_the_older_may_go_and_it_is_said(node: Kubelet) -> None:  # 1.52
    newer = Scripted("b", "c")
    async with AsyncExitStack() as stack:
        async with found(node, Scripted("a"), name="older.sock"):
            await node.allocatable(TAPE, 1)
            await stack.enter_async_context(found(node, newer, name="newer.sock"))
            await node.allocatable(TAPE, 2)
        await said(node, "1.52")
        assert node.node() == {TAPE: DeviceCount(2, 2)}  # where a real kubelet cuts off the newer one
        assert newer.streams.value == 1


async def test_a_plugin_that_registered_by_itself_is_no_business_of_the_watchers(node: Kubelet) -> None:  # 1.52
    async with found(node, Scripted("a")) as path:
        await node.allocatable(TAPE, 1)
        async with plugged(node, Scripted("b", "c")):
            await node.allocatable(TAPE, 2)
            path.unlink()
            await said(node, "1.52")
            assert node.node() == {TAPE: DeviceCount(2, 2)}


async def test_sockets_are_counted_as_found_and_as_registered(node: Kubelet) -> None:  # section 9
    def count(state: str, path: Path) -> float:
        return node.metrics.value(MetricName.WATCHED_PLUGINS, socket_path=str(path), state=f"{state}_state_of_world")

    who = announcing("tape")
    async with found(node, Scripted("x", resource=OTHER)) as good, found(node, Scripted("a"), who, "bad.sock") as bad:
        await told(who)
        await node.allocatable(OTHER, 1)
        await heard(node, "registered", OTHER)
        assert [count("desired", good), count("actual", good)] == [1, 1]
        assert [count("desired", bad), count("actual", bad)] == [1, 0]
        good.unlink()
        await node.allocatable(OTHER, 0)
        assert [count("desired", good), count("actual", good)] == [0, 0]
