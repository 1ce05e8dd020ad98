"""Every finding, with the plugin or the pod that causes it; numbers are those of the facts."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.kubelet.actors import (
    OTHER,
    TAPE,
    ScriptedPlugin,
    device,
    quick_settings,
    refusal_of,
    register,
    registered,
    serving_in_registry,
    until_finding,
)

from plugwright.errors import KubeletFindings, PeerRefused
from plugwright.kubelet import ContainerSpec, Kubelet, PodSpec
from plugwright.model import Allocation, Options
from plugwright.protocol import device_plugin, pod_resources
from plugwright.protocol.messages import ListedDevice
from plugwright.protocol.registration import RegisterRequest
from plugwright.testing import pod_requesting

Trouble = Callable[[Kubelet], Awaitable[object]]


async def listing(kubelet: Kubelet, *devices: ListedDevice) -> None:
    async with registered(kubelet, ScriptedPlugin(*devices)):
        await kubelet.capacity(TAPE)


async def an_endpoint_elsewhere(kubelet: Kubelet) -> None:
    async with device_plugin.serve(ScriptedPlugin("a"), kubelet.paths.root / "out.sock"):
        await register(kubelet, RegisterRequest(TAPE, "../out.sock"))


async def a_failed_second_registration(kubelet: Kubelet) -> None:
    second = ScriptedPlugin("b")
    second.errors["GetDevicePluginOptions"] = "not now"
    async with registered(kubelet, ScriptedPlugin("a")):
        with pytest.raises(PeerRefused):
            async with registered(kubelet, second, "second.sock"):
                pass


async def an_older_socket_that_goes(kubelet: Kubelet) -> None:
    async with serving_in_registry(kubelet, ScriptedPlugin("a")) as path:
        await kubelet.allocatable(TAPE, 1)
        async with registered(kubelet, ScriptedPlugin("b", "c")):
            await kubelet.allocatable(TAPE, 2)
            path.unlink()
            await until_finding(kubelet, "1.52")


async def an_odd_word_for_health(kubelet: Kubelet) -> None:
    await listing(kubelet, device("a", health="healthy"))


async def a_device_healthy_and_unhealthy(kubelet: Kubelet) -> None:
    await listing(kubelet, device("a"), device("a", health="Unhealthy"))


async def an_older_stream_that_ends(kubelet: Kubelet) -> None:
    old = ScriptedPlugin("a")
    async with registered(kubelet, old, "old.sock"), registered(kubelet, ScriptedPlugin("b"), "new.sock"):
        old.end()
        await until_finding(kubelet, "2.22")


async def a_held_device_dropped(kubelet: Kubelet) -> None:
    async with registered(kubelet, ScriptedPlugin(device("a", 0))) as plugin:
        await kubelet.allocatable(TAPE, 1)
        await kubelet.admit(pod_requesting({TAPE: 1}))
        plugin.send()
        await kubelet.capacity(TAPE, 0)


async def a_device_dropped_in_the_middle_of_allocate(kubelet: Kubelet) -> None:
    async with registered(kubelet, ScriptedPlugin("a")) as plugin:
        await kubelet.allocatable(TAPE, 1)
        hold = plugin.hold("Allocate")
        admitting = asyncio.create_task(kubelet.admit(pod_requesting({TAPE: 1})))
        await hold.asked.wait()
        plugin.send()
        await kubelet.capacity(TAPE, 0)
        hold.free.set()
        await admitting


async def an_answer_without_containers(kubelet: Kubelet) -> None:
    plugin = ScriptedPlugin("a")
    plugin.answer = lambda _: []
    async with registered(kubelet, plugin):
        await kubelet.allocatable(TAPE, 1)
        await refusal_of(kubelet, pod_requesting({TAPE: 1}))


async def two_answers_that_differ(kubelet: Kubelet) -> None:
    one, two = ScriptedPlugin("a"), ScriptedPlugin("x", resource=OTHER)
    one.answer = lambda _: [Allocation(env={"MODE": "slow"})]
    two.answer = lambda _: [Allocation(env={"MODE": "fast"})]
    async with registered(kubelet, one), registered(kubelet, two):
        await kubelet.allocatable(TAPE, 1)
        await kubelet.allocatable(OTHER, 1)
        await kubelet.admit(pod_requesting({TAPE: 1, OTHER: 1}))


async def a_resource_of_nobody(kubelet: Kubelet) -> None:
    await kubelet.admit(pod_requesting({OTHER: 1}))


async def a_topology_without_nodes(kubelet: Kubelet) -> None:
    async with registered(kubelet, ScriptedPlugin(ListedDevice("a", "Healthy", ()))):
        await kubelet.allocatable(TAPE, 1)
        async with pod_resources.connect(kubelet.paths.pod_resources_socket) as client:
            assert await client.allocatable() == []


async def a_request_without_a_limit(kubelet: Kubelet) -> None:
    await kubelet.admit(PodSpec("pod", (ContainerSpec("main", requests={TAPE: "1"}),)))


TROUBLES: dict[Trouble, tuple[str, str]] = {
    an_endpoint_elsewhere: ("1.29", "dials it all the same"),
    a_failed_second_registration: ("1.37", "forgets the older one"),
    an_older_socket_that_goes: ("1.52", "cuts off that other plugin"),
    an_odd_word_for_health: ("2.6", "takes everything but Healthy for unhealthy"),
    a_device_healthy_and_unhealthy: ("2.8", "counts such a device twice"),
    an_older_stream_that_ends: ("2.22", "tears down the newer connection"),
    a_held_device_dropped: ("2.25", "crashes when that pod is admitted again"),
    a_device_dropped_in_the_middle_of_allocate: ("2.25", "crashes when the response arrives"),
    an_answer_without_containers: ("3.43", "marked as in use until its next clean-up"),
    two_answers_that_differ: ("3.54", "keeps one of them, at random"),
    a_resource_of_nobody: ("3.63", "starts the pod without any such device"),
    a_topology_without_nodes: ("6.11", "leaves such a device out of GetAllocatableResources"),
    a_request_without_a_limit: ("10.4", "the API server refuses it"),
}
NAMES = [trouble.__name__.replace("_", " ") for trouble in TROUBLES]


@pytest.mark.parametrize("trouble", TROUBLES, ids=NAMES)
async def test_trouble_of_a_real_kubelet_is_a_finding_and_survived(node: Kubelet, trouble: Trouble) -> None:
    await trouble(node)
    fact, really = TROUBLES[trouble]
    [finding] = node.findings
    assert finding.fact == fact
    assert really in finding.really
    assert str(finding).endswith(f"a real kubelet {finding.really} (docs/kubelet-behaviour.md#{fact})")
    assert await until_finding(node, fact) == finding  # in the event log too
    async with registered(node, ScriptedPlugin("fine", resource="example.com/fine")):
        await node.allocatable("example.com/fine", 1)  # it goes on


@pytest.mark.parametrize("trouble", TROUBLES, ids=NAMES)
async def test_finding_is_an_error_in_strict_mode(root: Path, trouble: Trouble) -> None:
    fact, _ = TROUBLES[trouble]
    with pytest.raises(KubeletFindings, match=rf"#{fact}\)"):
        async with Kubelet(root, quick_settings(strict=True)) as kubelet:
            await trouble(kubelet)


async def test_in_strict_mode_the_pod_that_asks_for_trouble_is_the_one_that_raises(root: Path) -> None:
    async with Kubelet(root, quick_settings(strict=True)) as kubelet:
        with pytest.raises(KubeletFindings) as raised:
            await kubelet.admit(pod_requesting({OTHER: 1, "example.com/third": 1}, name="pod"))
        assert len(raised.value.findings) == 2
        await kubelet.remove(kubelet.pods[0])  # what was raised is not raised again


async def test_a_test_that_has_failed_keeps_its_own_error(root: Path) -> None:
    async def fail() -> None:
        async with Kubelet(root, quick_settings(strict=True)) as kubelet:
            await listing(kubelet, device("a", health="odd"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


async def test_a_good_plugin_and_a_good_pod_give_no_finding(root: Path) -> None:
    plugin = ScriptedPlugin(device("a", 0), device("b", health="Unhealthy"), options=Options(True, True))
    async with Kubelet(root, quick_settings(strict=True)) as kubelet, registered(kubelet, plugin):
        await kubelet.allocatable(TAPE, 1)
        pod = await kubelet.admit(pod_requesting({TAPE: 1}))
        plugin.send(device("a", 0, health="Unhealthy"))  # no pod holds b
        await kubelet.allocatable(TAPE, 0)
        await kubelet.restart()
        await kubelet.remove(pod)
        assert kubelet.findings == ()
