"""Allocation for a container over real sockets; numbers in comments are those of the facts."""

import asyncio
from pathlib import Path

import pytest
from tests.kubelet.actors import (
    OTHER,
    TAPE,
    Clock,
    PluginCall,
    ScriptedPlugin,
    checkpoint_of,
    device,
    granted_devices,
    quick_settings,
    recorded_devices,
    refusal_of,
    register,
    registered,
    states,
    until_state,
)

from plugwright.kubelet import ContainerSpec, Kubelet, PodSpec
from plugwright.kubelet.metrics import MetricName
from plugwright.model import Allocation, Options
from plugwright.protocol import device_plugin, messages, pod_resources
from plugwright.protocol.registration import RegisterRequest
from plugwright.testing import pod_requesting

FAILED = "Pod was rejected: Allocate failed due to {}, which is unexpected"
PREFERS = Options(preference=True)


async def allocations(kubelet: Kubelet, resource: str = TAPE) -> float:
    return kubelet.metrics.value(MetricName.ALLOCATION_SECONDS, resource_name=resource)


async def test_only_limits_request_devices(node: Kubelet) -> None:  # 3.8
    async with registered(node, ScriptedPlugin("a")) as plugin:
        await node.allocatable(TAPE, 1)
        await node.admit(PodSpec("pod", (ContainerSpec("main", requests={TAPE: "1"}),)))
        assert plugin.asked("Allocate") == []


async def test_resource_that_is_not_registered_is_skipped(node: Kubelet) -> None:  # 3.10
    async with registered(node, ScriptedPlugin("a")):
        await node.allocatable(TAPE, 1)
        pod = await node.admit(pod_requesting({TAPE: 1, OTHER: 1, "cpu": 1}))
        assert granted_devices(pod) == ["a"]


async def test_resource_that_is_held_is_a_device_resource_without_its_plugin(node: Kubelet, clock: Clock) -> None:
    """3.10, 3.15."""
    async with registered(node, ScriptedPlugin("a")):
        await node.allocatable(TAPE, 1)
        holder = await node.admit(pod_requesting({TAPE: 1}))
    await node.allocatable(TAPE, 0)
    clock.advance(301)
    node.node()
    refusal = await refusal_of(node, pod_requesting({TAPE: 1}))
    assert refusal.message == FAILED.format(f"cannot allocate unregistered device {TAPE}")
    await node.remove(holder)
    refusal = await refusal_of(node, pod_requesting({TAPE: 1}))  # the record is dropped by this attempt
    refusal = await refusal_of(node, pod_requesting({TAPE: 1}))
    assert refusal.reason == f"OutOf{TAPE}"


async def test_devices_of_removed_pods_are_freed_before_the_selection(node: Kubelet) -> None:  # 3.11, 3.57, 3.58
    async with registered(node, ScriptedPlugin("a")):
        await node.allocatable(TAPE, 1)
        await node.remove(await node.admit(pod_requesting({TAPE: 1})))
        assert granted_devices(await node.admit(pod_requesting({TAPE: 1}))) == ["a"]


async def test_removal_itself_frees_nothing(root: Path) -> None:  # 3.58, 3.60, 3.61
    async with Kubelet(root, quick_settings()) as kubelet, registered(kubelet, ScriptedPlugin("a", "b")) as plugin:
        await kubelet.allocatable(TAPE, 2)
        pod = await kubelet.admit(pod_requesting({TAPE: 1}))
        calls = list(plugin.calls)
        await kubelet.remove(pod)
        assert plugin.calls == calls
        async with pod_resources.connect(kubelet.paths.pod_resources_socket) as client:
            await client.held_devices()  # which frees them
        assert list(recorded_devices(kubelet)) == [("main", TAPE)]  # on disk it stays until the next write
        await kubelet.admit(pod_requesting({"other": {TAPE: 1}}))
        assert list(recorded_devices(kubelet)) == [("other", TAPE)]
    assert len(await states(kubelet, "freed")) == 1


async def test_a_list_of_pod_resources_during_an_allocate_gives_its_device_out_again(node: Kubelet) -> None:  # 3.58
    async with registered(node, ScriptedPlugin("a", "b", options=PREFERS)) as plugin:
        await node.allocatable(TAPE, 2)
        ended = await node.admit(pod_requesting({TAPE: 1}))
        assert granted_devices(ended) == ["b"]
        held = plugin.hold("Allocate")
        async with asyncio.TaskGroup() as tasks, pod_resources.connect(node.paths.pod_resources_socket) as client:
            admitting = tasks.create_task(node.admit(pod_requesting({TAPE: 1})))
            await held.asked.wait()
            await node.remove(ended)
            await client.held_devices()  # frees the device of the pod that has ended, and takes back the open one's
            held.free.set()
            first = await admitting
        plugin.preference = ["a"]
        second = await node.admit(pod_requesting({TAPE: 1}))
        assert granted_devices(first) == granted_devices(second) == ["a"]


@pytest.mark.parametrize("asks", [pod_requesting({"cpu": 1}), pod_requesting({OTHER: 1})], ids=["cpu", "unknown"])
async def test_a_pod_without_devices_frees_nothing(root: Path, asks: PodSpec) -> None:  # 3.58
    async with Kubelet(root, quick_settings()) as kubelet, registered(kubelet, ScriptedPlugin("a")):
        await kubelet.allocatable(TAPE, 1)
        await kubelet.remove(await kubelet.admit(pod_requesting({TAPE: 1})))
        await kubelet.admit(asks)
    assert await states(kubelet, "freed") == []


async def test_a_finished_pod_gives_its_devices_back(node: Kubelet) -> None:  # 3.59
    async with registered(node, ScriptedPlugin("a")):
        await node.allocatable(TAPE, 1)
        node.finish(await node.admit(pod_requesting({TAPE: 1})))
        assert granted_devices(await node.admit(pod_requesting({TAPE: 1}))) == ["a"]


@pytest.mark.parametrize("count", [0, 1])
async def test_request_of_zero_is_refused_without_healthy_devices(node: Kubelet, count: int) -> None:  # 3.16, 3.18
    async with registered(node, ScriptedPlugin(device("a", health="Unhealthy"))):
        await node.capacity(TAPE, 1)
        refusal = await refusal_of(node, pod_requesting({TAPE: count}))
        words = f"no healthy devices present; cannot allocate unhealthy devices {TAPE}"
        assert refusal.message == FAILED.format(words)


async def test_request_of_zero_gets_no_device(node: Kubelet) -> None:  # 3.18
    async with registered(node, ScriptedPlugin("a")) as plugin:
        await node.allocatable(TAPE, 1)
        await node.admit(pod_requesting({TAPE: 0}))
        assert plugin.asked("Allocate") == []
        assert recorded_devices(node) == {}


async def test_refusal_before_1_28_only_counts_devices(root: Path) -> None:  # 3.16, 3.20 by version
    ill = ScriptedPlugin(device("a", health="Unhealthy"))
    async with Kubelet(root, quick_settings(version="1.27.1")) as kubelet, registered(kubelet, ill):
        await kubelet.capacity(TAPE, 1)
        refusal = await refusal_of(kubelet, pod_requesting({TAPE: 1}))
    words = f"requested number of devices unavailable for {TAPE}. Requested: 1, Available: 0"
    assert refusal.message == FAILED.format(words)


async def test_too_many_are_refused_with_both_numbers(node: Kubelet) -> None:  # 3.20, 3.64
    async with registered(node, ScriptedPlugin("a", "b")) as plugin:
        await node.allocatable(TAPE, 2)
        await node.admit(pod_requesting({TAPE: 1}))
        refusal = await refusal_of(node, pod_requesting({TAPE: 2}))
        words = f"requested number of devices unavailable for {TAPE}. Requested: 2, Available: 1"
        assert (refusal.reason, refusal.message) == ("UnexpectedAdmissionError", FAILED.format(words))
        assert len(plugin.asked("Allocate")) == 1


async def test_unhealthy_device_is_not_allocated(node: Kubelet) -> None:  # 3.20
    async with registered(node, ScriptedPlugin(device("a", health="Unhealthy"), "b")):
        await node.allocatable(TAPE, 1)
        assert granted_devices(await node.admit(pod_requesting({TAPE: 1}))) == ["b"]


async def test_the_plugin_is_asked_for_its_preference_only_if_it_has_one(node: Kubelet) -> None:  # 3.25, 3.28
    async with registered(node, ScriptedPlugin("a", "b")) as plugin:
        await node.allocatable(TAPE, 2)
        await node.admit(pod_requesting({TAPE: 2}))
        assert plugin.methods[2:] == ["Allocate"]
    async with registered(node, ScriptedPlugin("x", "y", resource=OTHER, options=PREFERS)) as other:
        await node.allocatable(OTHER, 2)
        await node.admit(pod_requesting({OTHER: 2}))
        assert other.calls[2:] == [
            PluginCall("GetPreferredAllocation", ("x", "y"), (), 2),
            PluginCall("Allocate", ("x", "y")),
        ]


async def test_lists_come_in_while_a_preference_is_awaited(node: Kubelet) -> None:  # 3.28
    async with registered(node, ScriptedPlugin("a", "b", options=PREFERS)) as plugin:
        await node.allocatable(TAPE, 2)
        hold = plugin.hold("GetPreferredAllocation")
        admitting = asyncio.create_task(node.admit(pod_requesting({TAPE: 1})))
        await hold.asked.wait()
        plugin.send("a", "b", "c")
        assert await node.allocatable(TAPE, 3) == 3
        hold.free.set()
        assert granted_devices(await admitting) == ["b"]


async def test_a_preference_that_fails_refuses_the_pod(node: Kubelet) -> None:  # 3.30
    async with registered(node, ScriptedPlugin("a", options=PREFERS)) as plugin:
        await node.allocatable(TAPE, 1)
        plugin.errors["GetPreferredAllocation"] = "no idea"
        refusal = await refusal_of(node, pod_requesting({TAPE: 1}))
        words = "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unknown desc = no idea"
        assert refusal.message == FAILED.format(words)
        assert node.findings == ()  # nothing had been taken before: nothing leaks


async def test_aligned_devices_leaked_by_a_failing_preference_are_a_finding(root: Path) -> None:  # 3.30, 3.43
    plugin = ScriptedPlugin(device("near", 0), "any", options=PREFERS)
    async with Kubelet(root, quick_settings(policy="best-effort")) as kubelet, registered(kubelet, plugin):
        await kubelet.allocatable(TAPE, 2)
        plugin.errors["GetPreferredAllocation"] = "no idea"
        await refusal_of(kubelet, pod_requesting({TAPE: 2}))
        assert [finding.fact for finding in kubelet.findings] == ["3.43"]
        plugin.errors.clear()
        assert granted_devices(await kubelet.admit(pod_requesting({TAPE: 2}))) == ["any", "near"]


async def test_every_container_and_resource_is_a_call_of_its_own(node: Kubelet) -> None:  # 3.36, 3.46
    async with (
        registered(node, ScriptedPlugin("a", "b")) as tape,
        registered(node, ScriptedPlugin("x", "y", resource=OTHER)) as other,
    ):
        await node.allocatable(TAPE, 2)
        await node.allocatable(OTHER, 2)
        await node.admit(pod_requesting({"one": {TAPE: 1, OTHER: 1}, "two": {TAPE: 1, OTHER: 1}}))
        assert tape.asked("Allocate") == [("a",), ("b",)]
        assert other.asked("Allocate") == [("x",), ("y",)]


async def test_durations_are_recorded_of_failures_too(node: Kubelet) -> None:  # 3.38
    async with registered(node, ScriptedPlugin("a")) as plugin:
        await node.allocatable(TAPE, 1)
        plugin.errors["Allocate"] = "hw fault"
        refusal = await refusal_of(node, pod_requesting({TAPE: 1}))
        assert refusal.message == FAILED.format("rpc error: code = Unknown desc = hw fault")  # 3.39
        assert await allocations(node) == 1
        plugin.errors.clear()
        assert granted_devices(await node.admit(pod_requesting({TAPE: 1}))) == ["a"]  # 3.39: it is free again
        assert await allocations(node) == 2


async def test_response_without_containers_is_refused_with_a_finding(node: Kubelet) -> None:  # 3.40, 3.43
    async with registered(node, ScriptedPlugin("a")) as plugin:
        await node.allocatable(TAPE, 1)
        usual, plugin.answer = plugin.answer, lambda _: []
        refusal = await refusal_of(node, pod_requesting({TAPE: 1}))
        assert "no containers return in allocation response" in refusal.message
        assert [finding.fact for finding in node.findings] == ["3.43"]
        plugin.answer = usual
        assert granted_devices(await node.admit(pod_requesting({TAPE: 1}))) == ["a"]  # not leaked here


async def test_first_of_several_responses_is_used(node: Kubelet) -> None:  # 3.41
    async with registered(node, ScriptedPlugin("a")) as plugin:
        await node.allocatable(TAPE, 1)
        plugin.answer = lambda _: [Allocation(env={"TAPE": "first"}), Allocation(env={"TAPE": "second"})]
        assert granted_devices(await node.admit(pod_requesting({TAPE: 1}))) == ["first"]


async def test_a_resource_dropped_while_its_preference_is_awaited(node: Kubelet, clock: Clock) -> None:  # 3.42
    """Possible with two plugins: the older one still answers when the newer one has been gone for long."""
    older = ScriptedPlugin("a", options=PREFERS)
    async with registered(node, older, "older.sock"):
        await node.allocatable(TAPE, 1)
        hold = older.hold("GetPreferredAllocation")
        admitting = asyncio.create_task(refusal_of(node, pod_requesting({TAPE: 1})))
        await hold.asked.wait()
        async with registered(node, ScriptedPlugin("a", "b"), "newer.sock"):
            await node.allocatable(TAPE, 2)
        await node.allocatable(TAPE, 0)
        clock.advance(301)
        node.node()
        hold.free.set()
        assert (await admitting).message == FAILED.format(f"unknown Device Plugin {TAPE}")


async def test_devices_are_recorded_under_each_of_their_nodes(node: Kubelet) -> None:  # 3.44
    plugin = ScriptedPlugin(device("both", 0, 1), device("one", 1), "none")
    async with registered(node, plugin):
        await node.allocatable(TAPE, 3)
        await node.admit(pod_requesting({TAPE: 3}))
        assert recorded_devices(node) == {("main", TAPE): {-1: ("none",), 0: ("both",), 1: ("both", "one")}}
        [entry] = checkpoint_of(node).entries or ()
        assert messages.decode(entry.answer or b"").env == {"TAPE": "both,none,one"}


async def test_the_record_is_on_disk_before_the_pod_is_admitted(node: Kubelet) -> None:  # 3.45
    async with registered(node, ScriptedPlugin("a", options=Options(pre_start=True))) as plugin:
        await node.allocatable(TAPE, 1)
        hold = plugin.hold("PreStartContainer")  # the first that happens after admission
        admitting = asyncio.create_task(node.admit(pod_requesting({TAPE: 1})))
        await hold.asked.wait()
        assert recorded_devices(node) == {("main", TAPE): {-1: ("a",)}}
        hold.free.set()
        await admitting


async def test_checkpoint_is_not_written_without_an_allocate_call(node: Kubelet) -> None:  # 3.45
    async with registered(node, ScriptedPlugin("a")):
        await node.allocatable(TAPE, 1)
        await node.admit(pod_requesting({TAPE: 1}))
        node.paths.checkpoint.unlink()
        await node.admit(pod_requesting({TAPE: 0}))
        assert not node.paths.checkpoint.exists()


async def test_a_checkpoint_that_cannot_be_written_refuses_the_pod(node: Kubelet) -> None:  # 3.45, 4.34
    async with registered(node, ScriptedPlugin("a")) as plugin:
        await node.allocatable(TAPE, 1)
        node.paths.checkpoint.unlink()
        node.paths.checkpoint.mkdir()
        refusal = await refusal_of(node, pod_requesting({TAPE: 1}))
        assert refusal.reason == "UnexpectedAdmissionError"
        assert 'failed to write checkpoint file "kubelet_internal_checkpoint": ' in refusal.message
        plugin.send("a", "b")
        assert await node.allocatable(TAPE, 2) == 2  # a list is taken all the same
        await until_state(node, "checkpoint")
        node.paths.checkpoint.rmdir()
        await node.admit(pod_requesting({TAPE: 2}))  # 3.46: what was recorded went with the refused pod


async def test_first_of_two_resources_stays_recorded_until_the_pod_is_freed(root: Path) -> None:  # 3.46
    async with Kubelet(root, quick_settings()) as kubelet:
        one, two = ScriptedPlugin("x", resource=OTHER), ScriptedPlugin("a")
        async with registered(kubelet, one), registered(kubelet, two):
            await kubelet.allocatable(OTHER, 1)
            await kubelet.allocatable(TAPE, 1)
            two.errors["Allocate"] = "hw fault"
            refusal = await refusal_of(kubelet, pod_requesting({OTHER: 1, TAPE: 1}))
            assert "hw fault" in refusal.message
            assert one.asked("Allocate") == [("x",)]
            two.errors.clear()
            pod = await kubelet.admit(pod_requesting({OTHER: 1, TAPE: 1}))
            assert (granted_devices(pod, resource=OTHER), granted_devices(pod)) == (["x"], ["a"])
    assert len(await states(kubelet, "freed")) == 1


async def test_registering_again_during_allocate_changes_nothing(node: Kubelet) -> None:  # 3.37, 2.22
    async with registered(node, ScriptedPlugin("a")) as plugin:
        await node.allocatable(TAPE, 1)
        hold = plugin.hold("Allocate")
        admitting = asyncio.create_task(node.admit(pod_requesting({TAPE: 1})))
        await hold.asked.wait()
        async with device_plugin.serve(ScriptedPlugin("a"), node.paths.device_plugins / "new.sock"):
            await register(node, RegisterRequest(TAPE, "new.sock"))
            hold.free.set()
            assert granted_devices(await admitting) == ["a"]
