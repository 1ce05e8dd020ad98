"""Pod admission and its refusals; numbers in comments are those of the facts."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.kubelet.actors import (
    OTHER,
    TAPE,
    ScriptedPlugin,
    device,
    granted_devices,
    quick_settings,
    recorded_devices,
    refusal_of,
    registered,
)

from plugwright.errors import ContainerWaiting
from plugwright.kubelet import ContainerKind, ContainerSpec, Kubelet, Phase, PodSpec
from plugwright.kubelet.metrics import MetricName
from plugwright.testing import pod_requesting

NUMA = (device("a", 0), device("b", 1), device("c", 1))
NOT_ALIGNED = "Pod was rejected: Resources cannot be allocated with Topology locality"


def two_tapes(name: str) -> PodSpec:
    return pod_requesting({TAPE: 2}, name=name)


async def test_devices_are_allocated_before_the_fit_check(root: Path) -> None:  # 3.1, 3.46, 3.66
    """A pod that runs without a record, as after a lost checkpoint, uses devices that no pod holds."""
    async with (
        Kubelet(root, quick_settings(), pods=[two_tapes("older")]) as kubelet,
        registered(kubelet, ScriptedPlugin("a", "b")) as plugin,
    ):
        await kubelet.allocatable(TAPE, 2)
        refusal = await refusal_of(kubelet, pod_requesting({TAPE: 1}))
        assert plugin.asked("Allocate") == [("a",)]
        assert refusal.reason == f"OutOf{TAPE}"
        assert refusal.message == (
            f"Pod was rejected: Node didn't have enough resource: {TAPE}, requested: 1, used: 2, capacity: 2"
        )


async def test_a_pod_keeps_what_its_first_containers_got_while_it_is_admitted(node: Kubelet) -> None:  # 3.2
    async with registered(node, ScriptedPlugin("a", "b")):
        await node.allocatable(TAPE, 2)
        await node.admit(pod_requesting({"one": {TAPE: 1}, "two": {TAPE: 1}}))
        assert recorded_devices(node) == {("one", TAPE): {-1: ("a",)}, ("two", TAPE): {-1: ("b",)}}


async def test_init_containers_are_first_then_the_others_as_they_are_written(node: Kubelet) -> None:  # 3.4
    async with registered(node, ScriptedPlugin(*"abcdef")) as plugin:
        await node.allocatable(TAPE, 6)
        document = {
            "metadata": {"name": "pod"},
            "spec": {
                "containers": [_container("z", 1), _container("y", 2)],
                "initContainers": [_container("b", 3), {**_container("c", 1), "restartPolicy": "Always"}],
                "ephemeralContainers": [_container("debugger", 5)],
            },
        }
        await node.admit(document)
        assert [len(ids) for ids in plugin.asked("Allocate")] == [3, 1, 1, 2]


def _container(name: str, count: int) -> dict[str, object]:
    return {"name": name, "resources": {"limits": {TAPE: count}}}


@pytest.mark.parametrize(
    ("policy", "got"),
    [
        ("none", ["a", "b"]),  # 5.18: without a mask NUMA does not matter
        ("best-effort", ["b", "c"]),
        ("restricted", ["b", "c"]),
        ("single-numa-node", ["b", "c"]),
    ],
)
async def test_hints_decide_which_devices_a_container_gets(
    root: Path, policy: str, got: list[str]
) -> None:  # 3.5, 3.23
    async with (
        Kubelet(root, quick_settings(policy=policy, numa=2)) as kubelet,
        registered(kubelet, ScriptedPlugin(*NUMA)),
    ):
        await kubelet.allocatable(TAPE, 3)
        assert granted_devices(await kubelet.admit(two_tapes("pod"))) == got


@pytest.mark.parametrize(("scope", "got"), [("container", [["a"], ["b"]]), ("pod", [["b"], ["c"]])])
async def test_in_pod_scope_all_containers_have_one_mask(root: Path, scope: str, got: list[list[str]]) -> None:  # 3.5
    settings = quick_settings(policy="single-numa-node", scope=scope, numa=2)
    async with Kubelet(root, settings) as kubelet, registered(kubelet, ScriptedPlugin(*NUMA)):
        await kubelet.allocatable(TAPE, 3)
        pod = await kubelet.admit(pod_requesting({"one": {TAPE: 1}, "two": {TAPE: 1}}))
        assert [granted_devices(pod, "one"), granted_devices(pod, "two")] == got


@pytest.mark.parametrize(
    ("policy", "is_admitted"),
    [("none", True), ("best-effort", True), ("restricted", True), ("single-numa-node", False)],
)
async def test_a_pod_that_needs_two_nodes(root: Path, policy: str, is_admitted: bool) -> None:  # 3.65
    async with (
        Kubelet(root, quick_settings(policy=policy, numa=2)) as kubelet,
        registered(kubelet, ScriptedPlugin(*NUMA)) as plugin,
    ):
        await kubelet.allocatable(TAPE, 3)
        pod = pod_requesting({TAPE: 3})
        if is_admitted:
            assert granted_devices(await kubelet.admit(pod)) == ["a", "b", "c"]
            return
        refusal = await refusal_of(kubelet, pod)
        assert (refusal.reason, refusal.message) == ("TopologyAffinityError", NOT_ALIGNED)
        assert plugin.asked("Allocate") == []
        assert kubelet.metrics.value(MetricName.ADMISSION_ERRORS) == 1
        assert kubelet.metrics.value(MetricName.REJECTIONS, reason="TopologyAffinityError") == 1


async def test_reusable_devices_count_for_the_hints(root: Path) -> None:  # 3.5, 5.5, T7
    four = (device("a", 0), device("b", 0), device("c", 1), device("d", 1))
    pod = PodSpec(
        "pod", (ContainerSpec("init", {TAPE: "1"}, kind=ContainerKind.INIT), ContainerSpec("main", {TAPE: "2"}))
    )
    async with (
        Kubelet(root, quick_settings(policy="restricted", numa=2)) as kubelet,
        registered(kubelet, ScriptedPlugin(*four)),
    ):
        await kubelet.allocatable(TAPE, 4)
        admitted = await kubelet.admit(pod)
        assert (granted_devices(admitted, "init"), granted_devices(admitted)) == (["a"], ["a", "b"])


async def test_pod_with_an_unknown_resource_is_admitted_with_a_finding(node: Kubelet) -> None:  # 3.10, 3.63
    pod = await node.admit(pod_requesting({OTHER: 1}, name="pod"))
    assert pod.phase is Phase.RUNNING
    assert pod.container("main").env == {}
    [finding] = node.findings
    assert (finding.fact, finding.about) == ("3.63", "default/pod")
    assert OTHER in finding.happened


@pytest.mark.parametrize("asks", [{OTHER: 0}, {"cpu": 2}], ids=["none of it", "no extended resource"])
async def test_request_of_zero_of_an_unknown_resource_is_no_finding(
    node: Kubelet, asks: dict[str, int]
) -> None:  # 3.63
    await node.admit(pod_requesting(asks))
    assert node.findings == ()


async def test_a_refused_pod_has_failed_for_good(node: Kubelet) -> None:  # 3.64, 3.67
    async with registered(node, ScriptedPlugin("a")):
        await node.allocatable(TAPE, 1)
        refusal = await refusal_of(node, two_tapes("greedy"))
        [pod] = node.pods
        assert (pod.phase, pod.reason, pod.message) == (Phase.FAILED, "UnexpectedAdmissionError", refusal.message)
        with pytest.raises(ContainerWaiting):
            pod.container("main")
        await node.restart()
        assert pod.phase is Phase.FAILED
        assert node.metrics.value(MetricName.ADMISSIONS) == 0  # nor was it tried again


async def test_a_refused_pod_uses_nothing(node: Kubelet) -> None:  # 3.59, 3.67
    async with registered(node, ScriptedPlugin("a", "b")):
        await node.allocatable(TAPE, 2)
        await refusal_of(node, pod_requesting({TAPE: 3}))
        assert granted_devices(await node.admit(two_tapes("modest"))) == ["a", "b"]


async def test_request_of_zero_fits_whatever_is_used(node: Kubelet) -> None:  # 3.62, 10.19
    modest = await node.admit(pod_requesting({TAPE: 0}))
    async with registered(node, ScriptedPlugin("a")):
        await node.allocatable(TAPE, 1)
        await node.admit(pod_requesting({TAPE: 1}))
    await node.restart()
    assert modest.phase is Phase.RUNNING  # though allocatable is 0, and another pod uses 1


async def test_refusals_are_counted_by_their_reason(node: Kubelet) -> None:
    async with registered(node, ScriptedPlugin("a")):
        await node.allocatable(TAPE, 1)
        await refusal_of(node, two_tapes("greedy"))
        assert node.metrics.value(MetricName.REJECTIONS, reason="UnexpectedAdmissionError") == 1
        assert node.metrics.value(MetricName.ADMISSIONS) == 1
        assert node.metrics.value(MetricName.ADMISSION_ERRORS) == 0  # of a topology policy there is none


async def test_a_pod_made_again_under_its_name_is_a_new_one(node: Kubelet) -> None:
    async with registered(node, ScriptedPlugin("a", "b")) as plugin:
        await node.allocatable(TAPE, 2)
        for count in (1, 2):
            pod = await node.admit(pod_requesting({TAPE: count}, name="backup"))
            await node.remove(pod)
        assert plugin.asked("Allocate") == [("a",), ("a", "b")]


async def test_a_pod_that_comes_again_with_its_own_uid_finds_what_it_held(node: Kubelet) -> None:  # 3.2, 3.57, 3.58
    async with registered(node, ScriptedPlugin("a", "b")) as plugin:
        await node.allocatable(TAPE, 2)
        for _ in range(2):
            pod = await node.admit(replace(pod_requesting({TAPE: 1}, name="static"), uid="0-1-2"))
            assert granted_devices(pod) == ["a"]
            await node.remove(pod)
        assert plugin.asked("Allocate") == [("a",)]
