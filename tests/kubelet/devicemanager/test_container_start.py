"""Starts and restarts of containers; numbers in comments are those of the facts."""

from pathlib import Path

import pytest
from tests.kubelet.actors import OTHER, TAPE, Clock, ScriptedPlugin, granted_devices, quick_settings, registered

from plugwright.errors import ContainerWaiting, KubeletError
from plugwright.kubelet import Kubelet, Phase, Pod
from plugwright.model import Options
from plugwright.testing import pod_requesting

PREPARES = Options(pre_start=True)
WAITS = "CreateContainerConfigError"


async def waiting(kubelet: Kubelet, pod: Pod) -> str:
    """Why its container cannot be started again."""
    with pytest.raises(ContainerWaiting) as raised:
        await kubelet.restart_container(pod, "main")
    assert raised.value.reason == pod.state("main").reason == WAITS  # 3.53
    assert not pod.state("main").running
    return raised.value.message


async def test_pre_start_container_is_called_before_every_start_and_allocate_once(
    node: Kubelet,
) -> None:  # 3.47 to 3.49
    async with registered(node, ScriptedPlugin("a", "b", "c", options=PREPARES)) as plugin:
        await node.allocatable(TAPE, 3)
        pod = await node.admit(pod_requesting({TAPE: 2}))
        for _ in range(2):
            await node.restart_container(pod, "main")
        assert plugin.methods[2:] == ["Allocate", *["PreStartContainer"] * 3]
        assert plugin.asked("PreStartContainer") == [("a", "b")] * 3  # every recorded device
        assert pod.state("main").starts == 3
        assert granted_devices(pod) == ["a", "b"]


async def test_pre_start_container_is_not_called_without_the_option(node: Kubelet) -> None:  # 3.47
    async with registered(node, ScriptedPlugin("a")) as plugin:
        await node.allocatable(TAPE, 1)
        await node.admit(pod_requesting({TAPE: 1}))
        assert plugin.methods[2:] == ["Allocate"]


async def test_pre_start_container_is_not_called_for_a_container_without_devices(node: Kubelet) -> None:  # 3.47
    async with registered(node, ScriptedPlugin("a", options=PREPARES)) as plugin:
        await node.allocatable(TAPE, 1)
        pod = await node.admit(pod_requesting({TAPE: 0}))
        assert pod.phase is Phase.RUNNING
        assert plugin.methods == ["GetDevicePluginOptions", "ListAndWatch"]


async def test_each_resource_is_prepared_by_its_own_plugin(node: Kubelet) -> None:  # 3.47
    one, two = ScriptedPlugin("a", options=PREPARES), ScriptedPlugin("x", resource=OTHER, options=PREPARES)
    async with registered(node, one), registered(node, two):
        await node.allocatable(TAPE, 1)
        await node.allocatable(OTHER, 1)
        await node.admit(pod_requesting({TAPE: 1, OTHER: 1}))
        assert (one.asked("PreStartContainer"), two.asked("PreStartContainer")) == ([("a",)], [("x",)])


async def test_a_container_waits_while_its_plugin_refuses_and_the_pod_is_admitted(node: Kubelet) -> None:  # 3.48, 3.53
    async with registered(node, ScriptedPlugin("a", options=PREPARES)) as plugin:
        await node.allocatable(TAPE, 1)
        plugin.errors["PreStartContainer"] = "not ready"
        pod = await node.admit(pod_requesting({TAPE: 1}))
        words = "device plugin PreStartContainer rpc failed with err: rpc error: code = Unknown desc = not ready"
        assert (pod.phase, pod.state("main").reason, pod.state("main").message) == (Phase.PENDING, WAITS, words)
        with pytest.raises(ContainerWaiting):
            pod.container("main")
        plugin.errors.clear()
        await node.restart_container(pod, "main")
        assert granted_devices(pod) == ["a"]
        assert len(plugin.asked("Allocate")) == 1  # 3.49


async def test_an_init_container_that_waits_holds_up_the_others(node: Kubelet) -> None:  # 3.53
    async with registered(node, ScriptedPlugin("a", options=PREPARES)) as plugin:
        await node.allocatable(TAPE, 1)
        plugin.errors["PreStartContainer"] = "not ready"
        pod = await node.admit(pod_requesting({"main": {"cpu": 1}}, init={"init": {TAPE: 1}}))
        assert (pod.state("init").reason, pod.state("main").reason) == (WAITS, "PodInitializing")


def lost(root: Path) -> tuple[Kubelet, Pod]:
    """A pod that runs and of which no record is left, and a kubelet without any plugin."""
    pod = pod_requesting({TAPE: 1}, name="lost")
    kubelet = Kubelet(root, quick_settings(), pods=[pod])
    return kubelet, kubelet.pods[0]


async def test_devices_that_are_not_recorded_are_allocated_at_the_start(root: Path) -> None:  # 3.49
    kubelet, pod = lost(root)
    async with kubelet, registered(kubelet, ScriptedPlugin("a")) as plugin:
        await kubelet.allocatable(TAPE, 1)
        await kubelet.restart_container(pod, "main")
        assert granted_devices(pod) == ["a"]
        assert plugin.asked("Allocate") == [("a",)]


async def test_pre_start_container_needs_recorded_devices(root: Path) -> None:  # 3.50
    kubelet, pod = lost(root)
    async with kubelet, registered(kubelet, ScriptedPlugin("a", options=PREPARES)) as plugin:
        await kubelet.allocatable(TAPE, 1)
        assert await waiting(kubelet, pod) == (
            f"no devices found allocated in local cache for pod {pod.uid}, container main, resource {TAPE}"
        )
        assert "PreStartContainer" not in plugin.methods


async def test_container_restart_before_the_plugins_return_causes_no_call(node: Kubelet) -> None:  # 3.49, 3.51
    async with registered(node, ScriptedPlugin("a", options=PREPARES)) as plugin:
        await node.allocatable(TAPE, 1)
        pod = await node.admit(pod_requesting({TAPE: 1}))
        calls = list(plugin.calls)
        await node.restart()
        await node.restart_container(pod, "main")
        assert granted_devices(pod) == ["a"]  # from the stored answer
        assert plugin.calls == calls


async def test_stopped_plugin_blocks_only_containers_that_need_pre_start(node: Kubelet) -> None:  # 3.52, 2.17
    quiet, strict = ScriptedPlugin("a"), ScriptedPlugin("x", resource=OTHER, options=PREPARES)
    async with registered(node, quiet), registered(node, strict):
        await node.allocatable(TAPE, 1)
        await node.allocatable(OTHER, 1)
        tape, other = await node.admit(pod_requesting({TAPE: 1})), await node.admit(pod_requesting({OTHER: 1}))
    await node.allocatable(TAPE, 0)
    await node.allocatable(OTHER, 0)
    await node.restart_container(tape, "main")
    assert granted_devices(tape) == ["a"]
    message = await waiting(node, other)
    assert message.startswith("device plugin PreStartContainer rpc failed with err: endpoint ")
    assert message.endswith(" has been stopped")


async def test_container_does_not_start_once_its_plugin_is_gone_for_five_minutes(
    node: Kubelet, clock: Clock
) -> None:  # 3.52
    async with registered(node, ScriptedPlugin("a")):
        await node.allocatable(TAPE, 1)
        pod = await node.admit(pod_requesting({TAPE: 1}))
    await node.allocatable(TAPE, 0)
    clock.advance(301)
    node.node()
    assert pod.state("main").running  # a running container is left alone
    assert await waiting(node, pod) == f"endpoint not found in cache for a registered resource: {TAPE}"
    async with registered(node, ScriptedPlugin("a")):
        await node.allocatable(TAPE, 1)
        await node.restart_container(pod, "main")
        assert granted_devices(pod) == ["a"]


async def test_a_pod_of_another_node_is_refused(node: Kubelet) -> None:
    pod = await node.admit(pod_requesting({"cpu": 1}))
    with pytest.raises(KubeletError, match="has no container 'other', only main"):
        pod.container("other")
    await node.remove(pod)
    with pytest.raises(KubeletError, match="is not on this node"):
        await node.restart_container(pod, "main")
