"""The plugin watcher over plugins_registry; numbers in comments are those of the facts."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kubelet.actors import (
    LIMIT,
    OTHER,
    TAPE,
    Clock,
    ScriptedInfo,
    ScriptedPlugin,
    quick_settings,
    registered,
    serving_in_registry,
    until_finding,
    until_state,
)

from plugwright.kubelet import Kubelet
from plugwright.kubelet.devicemanager.devices import DeviceCount
from plugwright.kubelet.metrics import MetricName
from plugwright.protocol import device_plugin
from plugwright.protocol.registration import PluginInfo
from plugwright.testing import pod_requesting

ACCEPTED = (True, "")


def announcing(name: str = TAPE, **more: object) -> ScriptedInfo:
    return ScriptedInfo(PluginInfo(name, **more))  # type: ignore[arg-type]


async def notification(announcing: ScriptedInfo) -> tuple[bool, str]:
    return await asyncio.wait_for(announcing.notifications.get(), LIMIT)


async def test_socket_is_found_registered_and_notified(node: Kubelet) -> None:  # 1.39, 1.42, 1.47, 1.51
    plugin, info = ScriptedPlugin("a", "b"), announcing()
    async with serving_in_registry(node, plugin, info):
        assert await notification(info) == ACCEPTED
        assert await node.allocatable(TAPE, 2) == 2
        await node.admit(pod_requesting({TAPE: 1}))
        assert plugin.methods == ["GetDevicePluginOptions", "ListAndWatch", "Allocate"]
        assert node.metrics.value(MetricName.REGISTRATIONS, resource_name=TAPE) == 0


async def test_the_directory_is_made_and_never_cleaned(node: Kubelet) -> None:  # 1.40
    kept = node.paths.plugins_registry / "kept"
    async with serving_in_registry(node, ScriptedPlugin("a")):
        await node.allocatable(TAPE, 1)
        kept.touch()
        await node.restart()
        assert kept.exists()
        assert await node.allocatable(TAPE, 1) == 1  # found again, by itself


async def test_sockets_in_folders_are_found_too(node: Kubelet) -> None:  # 1.40
    async with serving_in_registry(node, ScriptedPlugin("a"), name="vendor/deep/plugin.sock"):
        assert await node.allocatable(TAPE, 1) == 1


async def test_hidden_names_and_other_files_are_ignored(node: Kubelet) -> None:  # 1.41
    hidden = announcing(OTHER)
    (node.paths.plugins_registry / "regular.sock").touch()
    async with (
        serving_in_registry(node, ScriptedPlugin("x", resource=OTHER), hidden, ".hidden.sock"),
        serving_in_registry(node, ScriptedPlugin("a")),
    ):
        await node.allocatable(TAPE, 1)
        assert hidden.asked == 0
        assert {call.resource for call in node.calls if call.method == "GetInfo"} == {"found.sock"}


async def test_socket_that_is_created_again_is_registered_again(node: Kubelet) -> None:  # 1.42, 1.49
    async with serving_in_registry(node, ScriptedPlugin("a")):
        await node.allocatable(TAPE, 1)
    assert await node.allocatable(TAPE, 0) == 0
    async with serving_in_registry(node, ScriptedPlugin("a", "b")):
        assert await node.allocatable(TAPE, 2) == 2


async def test_after_the_stream_has_ended_the_socket_still_counts_as_registered(node: Kubelet) -> None:  # 1.49
    plugin, info = ScriptedPlugin("a"), announcing()
    async with serving_in_registry(node, plugin, info):
        await node.allocatable(TAPE, 1)
        plugin.end()
        await node.allocatable(TAPE, 0)
        async with serving_in_registry(node, ScriptedPlugin("x", resource=OTHER), name="later.sock"):
            await node.allocatable(OTHER, 1)  # the directory was reconciled in between
        assert info.asked == 1
        assert plugin.methods == ["GetDevicePluginOptions", "ListAndWatch"]


async def test_a_removed_socket_ends_the_stream_of_a_plugin_that_still_runs(node: Kubelet) -> None:  # 1.50
    plugin = ScriptedPlugin("a")
    async with serving_in_registry(node, plugin) as path:
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
async def test_notification_of_a_refusal_has_the_kubelets_text(node: Kubelet, announcement: PluginInfo) -> None:
    """1.39, 1.45, 1.46."""
    info = ScriptedInfo(announcement)
    async with serving_in_registry(node, ScriptedPlugin("a"), info) as path:
        words = REFUSALS[announcement].format(path=path)
        assert await notification(info) == (False, f"RegisterPlugin error -- {words}")
        assert node.node() == {}


async def test_notification_of_failing_options_has_the_kubelets_text(node: Kubelet) -> None:  # 1.46
    plugin, info = ScriptedPlugin("a"), announcing()
    plugin.errors["GetDevicePluginOptions"] = "not now"
    async with serving_in_registry(node, plugin, info):
        registered, words = await notification(info)
        assert not registered
        assert words == (
            "RegisterPlugin error -- plugin registration failed with err: "
            "failed to get device plugin options: rpc error: code = Unknown desc = not now"
        )


async def test_one_good_version_among_others_is_enough(node: Kubelet) -> None:  # 1.45
    info = announcing(versions=("v1alpha1", "v1beta1"))
    async with serving_in_registry(node, ScriptedPlugin("a"), info):
        assert await notification(info) == ACCEPTED


async def test_an_endpoint_is_a_path_as_it_is(node: Kubelet) -> None:  # 1.44
    plugin, elsewhere = ScriptedPlugin("a"), node.paths.root / "elsewhere.sock"
    info = announcing(endpoint=str(elsewhere))
    async with device_plugin.serve(plugin, elsewhere), serving_in_registry(node, ScriptedPlugin("wrong"), info) as path:
        await node.allocatable(TAPE, 1)
        await node.admit(pod_requesting({TAPE: 1}))
        assert plugin.asked("Allocate") == [("a",)]
        path.unlink()
        assert await node.allocatable(TAPE, 0) == 0  # 1.50: by the socket in the registry, not by the endpoint
    assert node.findings == ()


async def test_failed_registration_is_retried_from_the_beginning(node: Kubelet, clock: Clock) -> None:  # 1.43
    plugin, info = ScriptedPlugin("a"), announcing("tape")
    async with serving_in_registry(node, plugin, info):
        assert (await notification(info))[0] is False
        info.announcement = PluginInfo(TAPE)
        await looked_through(node, 0)
        clock.advance(1)
        assert await notification(info) == ACCEPTED
        assert await node.allocatable(TAPE, 1) == 1


async def test_retry_waits_twice_as_long_up_to_a_limit(root: Path, clock: Clock) -> None:  # 1.43
    timing = replace(quick_settings().timing, retry=0.5, max_retry=2.0)
    info = announcing("tape")
    async with (
        Kubelet(root, quick_settings(clock=clock, timing=timing)) as kubelet,
        serving_in_registry(kubelet, ScriptedPlugin("a"), info),
    ):
        await notification(info)
        for number, wait in enumerate((0.5, 1.0, 2.0, 2.0)):
            await looked_through(kubelet, number)
            clock.advance(wait - 0.1)
            await looked_through(kubelet, number + 10)
            assert info.asked == number + 1
            clock.advance(0.2)
            await notification(info)


async def looked_through(kubelet: Kubelet, number: int) -> None:
    """Returns after a reconciliation, which has found another socket."""
    resource = f"example.com/look-{number}"
    async with serving_in_registry(kubelet, ScriptedPlugin(resource=resource), name=f"{number}.sock"):
        await until_state(kubelet, "registered", resource)


async def test_a_plugin_that_fails_the_notification_is_cut_off_again(node: Kubelet, clock: Clock) -> None:  # 1.47
    plugin, info = ScriptedPlugin("a"), announcing()
    info.error = "I do not care"
    async with serving_in_registry(node, plugin, info):
        assert await notification(info) == ACCEPTED
        await until_state(node, "stopped", TAPE)
        info.error = ""
        await looked_through(node, 0)
        clock.advance(1)
        assert await notification(info) == ACCEPTED  # and tried again
        assert await node.allocatable(TAPE, 1) == 1


async def test_plugin_that_answers_get_info_too_late_is_not_notified(root: Path) -> None:  # 1.48
    info = announcing()
    info.slow = asyncio.Event()
    timing = replace(quick_settings().timing, get_info=0.05)
    async with (
        Kubelet(root, quick_settings(timing=timing)) as kubelet,
        serving_in_registry(kubelet, ScriptedPlugin("a"), info),
    ):
        await until_state(kubelet, "refused", "found.sock")
        assert info.notifications.empty()
        info.slow.set()
        assert await notification(info) == ACCEPTED
        outcomes = [call.outcome for call in kubelet.calls if call.method == "GetInfo"]
        assert (outcomes[0] == "OK", outcomes[-1] == "OK") == (False, True)


async def test_removal_of_the_older_of_two_sockets_is_a_finding(node: Kubelet) -> None:  # 1.52
    newer = ScriptedPlugin("b", "c")
    async with AsyncExitStack() as stack:
        async with serving_in_registry(node, ScriptedPlugin("a"), name="older.sock"):
            await node.allocatable(TAPE, 1)
            await stack.enter_async_context(serving_in_registry(node, newer, name="newer.sock"))
            await node.allocatable(TAPE, 2)
        await until_finding(node, "1.52")
        assert node.node() == {TAPE: DeviceCount(2, 2)}  # where a real kubelet cuts off the newer one
        assert newer.streams.value == 1


async def test_since_1_37_the_older_of_two_sockets_goes_alone(root: Path) -> None:  # 1.52
    newer, older = ScriptedPlugin("b", "c"), ScriptedPlugin("a")
    async with Kubelet(root, quick_settings(version="1.37")) as kubelet:
        async with AsyncExitStack() as stack:
            async with serving_in_registry(kubelet, older, name="older.sock"):
                await kubelet.allocatable(TAPE, 1)
                await stack.enter_async_context(serving_in_registry(kubelet, newer, name="newer.sock"))
                await kubelet.allocatable(TAPE, 2)
            await older.streams.until(lambda opened: opened == 0)
            assert kubelet.node() == {TAPE: DeviceCount(2, 2)}
            assert newer.streams.value == 1
        assert await kubelet.allocatable(TAPE, 0) == 0
        assert kubelet.findings == ()


async def test_plugin_that_registered_itself_is_ignored_by_the_watcher(node: Kubelet) -> None:  # 1.52
    async with serving_in_registry(node, ScriptedPlugin("a")) as path:
        await node.allocatable(TAPE, 1)
        async with registered(node, ScriptedPlugin("b", "c")):
            await node.allocatable(TAPE, 2)
            path.unlink()
            await until_finding(node, "1.52")
            assert node.node() == {TAPE: DeviceCount(2, 2)}


async def test_sockets_are_counted_as_found_and_as_registered(node: Kubelet) -> None:  # section 9
    def count(state: str, path: Path) -> float:
        return node.metrics.value(MetricName.WATCHED_PLUGINS, socket_path=str(path), state=f"{state}_state_of_world")

    info = announcing("tape")
    async with (
        serving_in_registry(node, ScriptedPlugin("x", resource=OTHER)) as good,
        serving_in_registry(node, ScriptedPlugin("a"), info, "bad.sock") as bad,
    ):
        await notification(info)
        await node.allocatable(OTHER, 1)
        await until_state(node, "registered", OTHER)
        assert [count("desired", good), count("actual", good)] == [1, 1]
        assert [count("desired", bad), count("actual", bad)] == [1, 0]
        good.unlink()
        await node.allocatable(OTHER, 0)
        assert [count("desired", good), count("actual", good)] == [0, 0]


async def test_sockets_are_found_in_a_directory_that_was_removed_and_made_again(node: Kubelet) -> None:
    async with serving_in_registry(node, ScriptedPlugin("a")):
        await node.allocatable(TAPE, 1)
    await node.allocatable(TAPE, 0)
    node.paths.plugins_registry.rmdir()
    async with serving_in_registry(node, ScriptedPlugin("a", "b")):
        await node.allocatable(TAPE, 2)


async def test_a_folder_that_comes_and_goes_later_is_looked_into(node: Kubelet) -> None:  # 1.40
    async with serving_in_registry(node, ScriptedPlugin("a")):
        await node.allocatable(TAPE, 1)
        async with serving_in_registry(node, ScriptedPlugin("x", resource=OTHER), name="later/found.sock"):
            await node.allocatable(OTHER, 1)
        await node.allocatable(OTHER, 0)
