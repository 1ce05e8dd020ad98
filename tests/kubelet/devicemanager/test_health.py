"""The health of a pod's devices in its status; numbers in comments are those of the facts."""

from pathlib import Path

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
from tests.kubelet.actors import (
    OTHER,
    TAPE,
    Clock,
    ScriptedPlugin,
    device,
    quick_settings,
    registered,
    states,
    until_state,
)

from plugwright.kubelet import Kubelet, Phase, Pod
from plugwright.kubelet.devicemanager.devices import DeviceStore
from plugwright.kubelet.devicemanager.manager import devices_with_changed_health
from plugwright.testing import pod_requesting

ILL = "Unhealthy"


def health(kubelet: Kubelet, pod: Pod, container: str = "main") -> dict[str, str]:
    return {device.device_id: device.health.value for device in kubelet.device_health(pod).get(container, ())}


async def test_pod_status_has_the_health_of_the_pods_devices(node: Kubelet) -> None:  # 7.2, 7.3, 7.6
    async with (
        registered(node, ScriptedPlugin("b", "a")) as plugin,
        registered(node, ScriptedPlugin("x", resource=OTHER)),
    ):
        await node.allocatable(TAPE, 2)
        await node.allocatable(OTHER, 1)
        pod = await node.admit(pod_requesting({TAPE: 2, OTHER: 1}))
        plugin.send("a", device("b", health=ILL))
        await node.allocatable(TAPE, 1)
        health = [
            (device.resource, device.device_id, device.health.value) for device in node.device_health(pod)["main"]
        ]
        assert health == [(OTHER, "x", "Healthy"), (TAPE, "a", "Healthy"), (TAPE, "b", ILL)]


async def test_init_containers_and_sidecars_have_no_device_health(node: Kubelet) -> None:  # 7.3
    async with registered(node, ScriptedPlugin("a", "b", "c")):
        await node.allocatable(TAPE, 3)
        pod = await node.admit(
            pod_requesting(
                {"main": {TAPE: 1}, "plain": {"cpu": 1}}, init={"init": {TAPE: 1}}, sidecars={"side": {TAPE: 1}}
            )
        )
        assert {name: len(devices) for name, devices in node.device_health(pod).items()} == {"main": 1, "plain": 0}


@pytest.mark.parametrize("word", ["Unhealthy", "healthy", "", "Unknown"])
async def test_every_other_health_is_reported_as_unhealthy(node: Kubelet, word: str) -> None:  # 7.4, 7.11
    async with registered(node, ScriptedPlugin("a")) as plugin:
        await node.allocatable(TAPE, 1)
        pod = await node.admit(pod_requesting({TAPE: 1}))
        plugin.send(device("a", health=word))
        await node.allocatable(TAPE, 0)
        assert health(node, pod) == {"a": ILL}


async def test_device_that_is_not_listed_is_reported_as_healthy(node: Kubelet, clock: Clock) -> None:  # 7.4, 7.5, 2.20
    async with registered(node, ScriptedPlugin("a", "b")) as plugin:
        await node.allocatable(TAPE, 2)
        pod = await node.admit(pod_requesting({TAPE: 2}))
        plugin.send(device("b", health=ILL))
        await node.allocatable(TAPE, 0)
        assert health(node, pod) == {"a": "Healthy", "b": ILL}
    clock.advance(301)
    node.node()
    assert health(node, pod) == {"a": "Healthy", "b": ILL}  # the last known value outlives the resource
    await node.restart()
    assert health(node, pod) == {"a": "Healthy", "b": "Healthy"}


async def test_a_crashed_plugins_devices_keep_their_health(node: Kubelet) -> None:  # 7.5, 7.7
    async with registered(node, ScriptedPlugin("a")):
        await node.allocatable(TAPE, 1)
        pod = await node.admit(pod_requesting({TAPE: 1}))
    await node.allocatable(TAPE, 0)
    assert health(node, pod) == {"a": "Healthy"}


async def test_pod_status_is_updated_when_a_device_changes(root: Path) -> None:  # 7.7, 2.24
    async with (
        Kubelet(root, quick_settings()) as kubelet,
        registered(kubelet, ScriptedPlugin("a", "b", "free")) as plugin,
    ):
        await kubelet.allocatable(TAPE, 3)
        pod = await kubelet.admit(pod_requesting({TAPE: 2}))
        plugin.send(device("a", health=ILL), "b", device("free", health=ILL))
        await kubelet.allocatable(TAPE, 1)
        plugin.send(device("a", health=ILL), "free")  # b vanished: no status is updated
        await kubelet.capacity(TAPE, 2)
        plugin.send(device("a", health=ILL), "b", "free")  # b is back: its pod is
        await kubelet.capacity(TAPE, 3)
    changes = [(state.about, state.text) for state in await states(kubelet, "health")]
    assert changes == [(pod.uid, "a is Unhealthy"), (pod.uid, "b is Healthy")]


async def test_lost_plugin_updates_no_pod_status(root: Path) -> None:  # 7.7
    async with Kubelet(root, quick_settings()) as kubelet:
        async with registered(kubelet, ScriptedPlugin("a")):
            await kubelet.allocatable(TAPE, 1)
            await kubelet.admit(pod_requesting({TAPE: 1}))
        await kubelet.allocatable(TAPE, 0)
    assert await states(kubelet, "health") == []


async def test_a_pod_is_found_by_the_devices_name_whatever_the_resource(node: Kubelet) -> None:  # 7.8
    async with (
        registered(node, ScriptedPlugin("same")),
        registered(node, ScriptedPlugin("same", resource=OTHER)) as other,
    ):
        await node.allocatable(TAPE, 1)
        await node.allocatable(OTHER, 1)
        pod = await node.admit(pod_requesting({TAPE: 1}))
        other.send(device("same", health=ILL))
        changes = await until_state(node, "health")
        assert changes[-1].about == pod.uid  # which holds none of it
        assert health(node, pod) == {"same": "Healthy"}


async def test_since_1_37_a_pod_is_found_by_resource_and_name(root: Path) -> None:  # 7.8
    async with (
        Kubelet(root, quick_settings(version="1.37")) as kubelet,
        registered(kubelet, ScriptedPlugin("same")) as held,
        registered(kubelet, ScriptedPlugin("same", resource=OTHER)) as other,
    ):
        await kubelet.allocatable(TAPE, 1)
        await kubelet.allocatable(OTHER, 1)
        pod = await kubelet.admit(pod_requesting({TAPE: 1}))
        other.send(device("same", health=ILL))
        await kubelet.allocatable(OTHER, 0)
        held.send(device("same", health=ILL))
        changes = await until_state(kubelet, "health", pod.uid)
        assert [change.kind for change in changes].count("health") == 1
        assert [change.about for change in changes if change.kind == "list"][-1] == TAPE


async def test_a_pod_runs_on_whatever_its_devices_are(node: Kubelet) -> None:  # 7.10
    async with registered(node, ScriptedPlugin("a")) as plugin:
        await node.allocatable(TAPE, 1)
        pod = await node.admit(pod_requesting({TAPE: 1}))
        plugin.send(device("a", health=ILL))
        await until_state(node, "health", pod.uid)
        assert (pod.phase, pod.state("main").running) == (Phase.RUNNING, True)


@pytest.mark.parametrize(("version", "count"), [("1.35", 0), ("1.36", 1)])
async def test_pod_status_has_device_health_since_1_36(root: Path, version: str, count: int) -> None:  # 7.1
    async with (
        Kubelet(root, quick_settings(version=version)) as kubelet,
        registered(kubelet, ScriptedPlugin("a", "b")) as plugin,
    ):
        await kubelet.allocatable(TAPE, 2)
        pod = await kubelet.admit(pod_requesting({TAPE: 1}))
        plugin.send(device("a", health=ILL), "b")
        await kubelet.allocatable(TAPE, 1)
        assert len(health(kubelet, pod)) == count
    assert len(await states(kubelet, "health")) == count


LISTS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["Healthy", "Unhealthy", "odd"]))


@drawn(LISTS, LISTS)
def test_devices_with_changed_health_are_new_or_have_another_health(
    before: dict[str, str], after: dict[str, str]
) -> None:
    """2.24, 7.7."""
    store = DeviceStore()
    store.update(TAPE, [device(name, health=word) for name, word in before.items()])
    old = store.of(TAPE)
    store.update(TAPE, [device(name, health=word) for name, word in after.items()])
    expected = sorted(name for name, word in after.items() if before.get(name) != word)
    assert devices_with_changed_health(old, store.of(TAPE)) == expected
