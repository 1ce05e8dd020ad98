"""Restarts of the kubelet and of the machine; numbers in comments are those of the facts."""

import asyncio
from pathlib import Path

import pytest
from tests.kubelet.actors import (
    OTHER,
    TAPE,
    Clock,
    ScriptedPlugin,
    checkpoint_of,
    granted_devices,
    quick_settings,
    recorded_devices,
    refusal_of,
    registered,
    until_state,
)

from plugwright.errors import KubeletError
from plugwright.kubelet import Kubelet, KubeletSettings, Phase, Pod, PodSpec, Timing
from plugwright.kubelet.devicemanager.devices import DeviceCount
from plugwright.protocol import pod_resources
from plugwright.testing import pod_requesting

NONE_HEALTHY = f"no healthy devices present; cannot allocate unhealthy devices {TAPE}"


async def holding(kubelet: Kubelet, *devices: str, count: int = 1) -> Pod:
    """A pod that runs with devices of a plugin that has gone again."""
    async with registered(kubelet, ScriptedPlugin(*devices)):
        await kubelet.allocatable(TAPE, len(devices))
        pod = await kubelet.admit(pod_requesting({TAPE: count}))
    await kubelet.allocatable(TAPE, 0)
    return pod


async def test_resource_has_no_devices_until_its_plugin_is_back(node: Kubelet) -> None:  # 1.20, 1.21
    await holding(node, "a", "b")
    await node.restart()
    assert node.node() == {TAPE: DeviceCount(0, 0)}
    refusal = await refusal_of(node, pod_requesting({TAPE: 1}))
    assert NONE_HEALTHY in refusal.message
    async with registered(node, ScriptedPlugin("a", "b")):
        assert await node.allocatable(TAPE, 2) == 2


async def test_held_devices_stay_held_over_a_restart(node: Kubelet) -> None:  # 1.22
    pod = await holding(node, "a", "b")
    await node.restart()
    async with registered(node, ScriptedPlugin("a", "b")):
        await node.allocatable(TAPE, 2)
        assert granted_devices(await node.admit(pod_requesting({TAPE: 1}))) == ["b"]
        assert granted_devices(pod) == ["a"]


async def test_restart_begins_a_new_grace_period_for_a_missing_plugin(
    node: Kubelet, clock: Clock
) -> None:  # 1.20, 1.23
    await holding(node, "a")
    clock.advance(299)
    await node.restart()
    clock.advance(299)
    assert node.node() == {TAPE: DeviceCount(0, 0)}
    assert TAPE in (checkpoint_of(node).registered or {})
    clock.advance(2)
    node.node()
    await until_state(node, "removed", TAPE)
    assert checkpoint_of(node).registered == {}
    assert node.node() == {TAPE: DeviceCount(0, 0)}


async def test_kubelet_without_a_checkpoint_starts_empty(node: Kubelet) -> None:  # 1.24
    assert not node.paths.checkpoint.exists()
    assert node.node() == {}


@pytest.mark.parametrize("text", ["", "{}", "not json", '{"Data":{},"Checksum":1}'])
async def test_unusable_checkpoint_is_recorded_and_the_kubelet_starts_empty(root: Path, text: str) -> None:  # 1.6, 1.24
    async with Kubelet(root, quick_settings()) as kubelet:
        kubelet.paths.checkpoint.write_text(text)
        await kubelet.restart()
        assert kubelet.node() == {}
        changes = await until_state(kubelet, "checkpoint")
        assert "starting empty" in changes[-1].text
        async with registered(kubelet, ScriptedPlugin("a")):
            await kubelet.allocatable(TAPE, 1)
            assert checkpoint_of(kubelet).registered == {TAPE: ("a",)}  # the next write replaces it


async def test_a_running_container_is_admitted_without_its_plugin(node: Kubelet) -> None:  # 3.14, 3.62, 3.68
    pod = await holding(node, "a")
    await node.restart()
    assert pod.phase is Phase.RUNNING
    assert granted_devices(pod) == ["a"]
    assert list(recorded_devices(node)) == [("main", TAPE)]


async def test_running_container_causes_no_call(node: Kubelet) -> None:  # 3.14, 3.49
    plugin = ScriptedPlugin("a")
    async with registered(node, plugin):
        await node.allocatable(TAPE, 1)
        pod = await node.admit(pod_requesting({TAPE: 1}))
        await node.restart()
        assert plugin.methods == ["GetDevicePluginOptions", "ListAndWatch", "Allocate"]
        assert pod.state("main").starts == 1


@pytest.mark.parametrize(
    ("version", "phase"),
    [("1.27.5", Phase.FAILED), ("1.27.6", Phase.RUNNING), ("1.28", Phase.RUNNING)],
)
async def test_older_kubelets_refused_running_containers(root: Path, version: str, phase: Phase) -> None:  # 3.14, 3.68
    async with Kubelet(root, quick_settings(version=version)) as kubelet:
        pod = await holding(kubelet, "a")
        await kubelet.restart()
        assert pod.phase is phase


async def test_many_pods_keep_what_they_hold_though_the_node_says_zero(node: Kubelet) -> None:  # 3.62
    async with registered(node, ScriptedPlugin("a", "b", "c")):
        await node.allocatable(TAPE, 3)
        pods = [await node.admit(pod_requesting({TAPE: 1})) for _ in range(3)]
    await node.allocatable(TAPE, 0)
    await node.restart()
    assert [pod.phase for pod in pods] == [Phase.RUNNING] * 3
    assert node.node() == {TAPE: DeviceCount(0, 0)}


async def test_a_container_that_does_not_run_is_refused_without_its_plugin(node: Kubelet) -> None:  # 3.16, 3.69
    pod = await holding(node, "a")
    node.stop_container(pod, "main")
    await node.restart()
    assert (pod.phase, pod.reason) == (Phase.FAILED, "UnexpectedAdmissionError")
    assert NONE_HEALTHY in pod.message


async def test_a_pod_that_runs_is_refused_for_its_init_container_without_the_plugin(
    node: Kubelet,
) -> None:  # 3.14, 3.16
    async with registered(node, ScriptedPlugin("a")):
        await node.allocatable(TAPE, 1)
        pod = await node.admit(pod_requesting({"cpu": 1}, init={"first": {TAPE: 1}}))
        assert pod.state("main").running
    await node.allocatable(TAPE, 0)
    await node.restart()
    assert (pod.phase, pod.reason) == (Phase.FAILED, "UnexpectedAdmissionError")
    assert NONE_HEALTHY in pod.message


async def test_after_a_reboot_nothing_runs_and_all_are_refused(node: Kubelet) -> None:  # 3.69
    pods = [await holding(node, "a"), await node.admit(pod_requesting({"cpu": 1}))]
    await node.restart(reboot=True)
    assert [pod.phase for pod in pods] == [Phase.FAILED, Phase.RUNNING]  # the other has no devices


async def test_a_resource_that_was_dropped_is_refused_as_unregistered(
    node: Kubelet, clock: Clock
) -> None:  # 3.15, 3.69
    pod = await holding(node, "a")
    clock.advance(301)
    node.node()
    await node.restart(reboot=True)
    assert f"cannot allocate unregistered device {TAPE}" in pod.message


async def test_a_changed_request_is_refused(root: Path) -> None:  # 3.13
    async with Kubelet(root, quick_settings()) as kubelet:
        pod = await holding(kubelet, "a", "b")
        changed = PodSpec(pod.name, pod_requesting({TAPE: 2}).containers)
    async with Kubelet(root, quick_settings(), pods=[changed]) as kubelet:
        [pod] = kubelet.pods
        words = f'pod "{pod.uid}" container "main" changed request for resource "{TAPE}" from 1 to 2'
        assert pod.message == f"Pod was rejected: Allocate failed due to {words}, which is unexpected"


async def test_pods_that_have_ended_are_not_admitted_again(node: Kubelet) -> None:  # 3.71
    done, failed = await holding(node, "a", "b"), pod_requesting({TAPE: 3}, name="failed")
    node.finish(done)
    refusal = await refusal_of(node, failed)
    await node.restart()
    assert [(pod.phase, pod.message) for pod in node.pods] == [
        (Phase.SUCCEEDED, ""),
        (Phase.FAILED, refusal.message),
    ]


async def test_devices_of_a_pod_deleted_meanwhile_are_freed_by_the_next_allocation(node: Kubelet) -> None:  # 3.57, 3.72
    pod = await holding(node, "a")
    await node.stop()
    await node.remove(pod)
    await node.start()
    assert list(recorded_devices(node)) == [("main", TAPE)]
    async with registered(node, ScriptedPlugin("a")):
        await node.allocatable(TAPE, 1)
        assert granted_devices(await node.admit(pod_requesting({TAPE: 1}))) == ["a"]


async def test_no_device_is_freed_before_all_pods_are_known(node: Kubelet) -> None:  # 3.14, 3.57
    first, second = await holding(node, "a", "b"), await node.admit(pod_requesting({"cpu": 1}))
    assert second.phase is Phase.RUNNING
    await node.restart()
    async with pod_resources.connect(node.paths.pod_resources_socket) as client:
        held = {holding.device_id for holding in await client.held_devices()}
    assert held == {"a"}
    assert granted_devices(first) == ["a"]


async def test_with_a_lost_checkpoint_a_pod_is_admitted_without_devices(node: Kubelet) -> None:  # 3.73
    pod = await holding(node, "a", "b")
    await node.stop()
    node.paths.checkpoint.unlink()
    await node.start()
    assert pod.phase is Phase.RUNNING
    await node.restart(reboot=True)
    assert pod.phase is Phase.RUNNING
    assert pod.container("main").env == {}


async def test_pod_after_a_lost_checkpoint_is_refused_by_the_nodes_allocatable(
    node: Kubelet, clock: Clock
) -> None:  # 3.73
    pod = await holding(node, "a")
    clock.advance(301)
    assert node.node() == {TAPE: DeviceCount(0, 0)}
    await node.stop()
    node.paths.checkpoint.unlink()
    await node.start()
    assert (pod.phase, pod.reason) == (Phase.FAILED, f"OutOf{TAPE}")


async def test_a_removed_resource_stays_in_the_nodes_status(node: Kubelet, clock: Clock) -> None:  # 2.19, 10.18
    async with registered(node, ScriptedPlugin("a")):
        await node.allocatable(TAPE, 1)
    await node.allocatable(TAPE, 0)
    clock.advance(301)
    node.node()
    await node.restart()
    assert node.node() == {TAPE: DeviceCount(0, 0)}
    assert (await refusal_of(node, pod_requesting({TAPE: 1}))).reason == f"OutOf{TAPE}"


async def test_restart_of_a_plugin_leaves_running_pods_alone(node: Kubelet) -> None:  # 3.74
    pod = await holding(node, "a", "b")
    async with registered(node, ScriptedPlugin("a", "b")) as plugin:
        await node.allocatable(TAPE, 2)
        assert (pod.phase, pod.state("main").running, pod.state("main").starts) == (Phase.RUNNING, True, 1)
        assert plugin.methods == ["GetDevicePluginOptions", "ListAndWatch"]


async def test_pods_without_devices_are_admitted_again_without_any_call(node: Kubelet) -> None:
    pod = await node.admit(pod_requesting({"cpu": 1, OTHER: 0}))
    await node.restart(reboot=True)
    assert (pod.phase, pod.state("main").starts) == (Phase.RUNNING, 1)


async def test_stop_raises_every_error_that_has_ended_the_kubelet(root: Path) -> None:
    is_broken, failed = False, 0

    def clock() -> float:
        nonlocal failed
        if is_broken:
            failed += 1
            raise RuntimeError(f"no time, {failed}")
        return 0.0

    async with Kubelet(root, quick_settings()) as before, registered(before, ScriptedPlugin("a")):
        await before.allocatable(TAPE, 1)
    # A resource without its plugin is looked at in every round of the event loop, and so is plugins_registry: both
    # read the clock, and fail in the same round.
    kubelet = Kubelet(root, KubeletSettings(clock=clock, timing=Timing(node_status=0, reconcile=0)))
    await kubelet.start()
    is_broken = True
    while failed < 2:
        await asyncio.sleep(0)
    with pytest.RaisesGroup(RuntimeError, RuntimeError, flatten_subgroups=True):
        await kubelet.stop()


async def test_stop_raises_the_one_error_that_has_ended_the_kubelet(root: Path) -> None:
    is_broken = asyncio.Event()

    def clock() -> float:
        if is_broken.is_set():
            raise RuntimeError("no time")
        return 0.0

    kubelet = Kubelet(root, KubeletSettings(clock=clock, timing=Timing(node_status=3600, reconcile=0)))
    await kubelet.start()
    is_broken.set()
    for _ in range(5):
        await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="no time"):
        await kubelet.stop()


async def test_a_kubelet_killed_during_allocate_refuses_nothing(node: Kubelet) -> None:
    plugin = ScriptedPlugin("a")
    held = plugin.hold("Allocate")
    async with registered(node, plugin):
        await node.allocatable(TAPE, 1)
        admitting = asyncio.create_task(node.admit(pod_requesting({TAPE: 1})))
        await held.asked.wait()
        await node.restart()
        with pytest.raises(KubeletError, match="the kubelet was stopped while it admitted default/"):
            await admitting
        assert node.pods == ()
        held.free.set()
