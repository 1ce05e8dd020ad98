"""RunContainerOptions merged from several responses; numbers in comments are those of the facts."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kubelet.actors import OTHER, TAPE, ScriptedPlugin, quick_settings, registered

from plugwright.kubelet import ContainerSpec, Kubelet, PodSpec
from plugwright.kubelet.pod_table import merge_responses
from plugwright.model import Allocation, DeviceNode, Mount
from plugwright.protocol.messages import AllocateResponse, DeviceSpec, MountSpec
from plugwright.testing import pod_requesting

TEXTS = st.dictionaries(st.sampled_from("ABC"), st.sampled_from("xyz"))


def answer(env: Mapping[str, str] | None = None, **more: object) -> AllocateResponse:
    nothing: dict[str, object] = {"mounts": (), "nodes": (), "annotations": {}, "cdi": ()}
    return AllocateResponse(env=env or {}, **{**nothing, **more})  # type: ignore[arg-type]


def test_nothing_is_merged_from_no_answer() -> None:  # 3.54
    granted, conflicts = merge_responses([], {})
    assert (granted.env, granted.mounts, granted.nodes, granted.annotations, granted.cdi) == ({}, (), (), {}, ())
    assert conflicts == []


def test_answers_of_several_resources_come_together() -> None:  # 3.54
    one = answer({"A": "1"}, annotations={"a": "1"}, cdi=("v/c=1",))
    two = answer({"B": "2"}, annotations={"b": "2"}, cdi=("v/c=2",))
    granted, conflicts = merge_responses([one, two], {})
    assert granted.env == {"A": "1", "B": "2"}
    assert granted.annotations == {"a": "1", "b": "2"}
    assert granted.cdi == ("v/c=1", "v/c=2")
    assert conflicts == []


def test_first_of_two_values_is_kept_and_the_other_is_a_conflict() -> None:  # 3.54
    granted, conflicts = merge_responses(
        [answer({"A": "1"}, annotations={"k": "x"}), answer({"A": "2"}, annotations={"k": "y"})], {}
    )
    assert granted.env == {"A": "1"}
    assert granted.annotations == {"k": "x"}
    assert list(map(str, conflicts)) == [
        "env A is '1' in one answer and '2' in another",
        "annotation k is 'x' in one answer and 'y' in another",
    ]


def test_device_nodes_conflict_by_their_host_path_only() -> None:  # 3.54
    kept = DeviceSpec("/dev/st0", "/dev/tape", "r")
    granted, conflicts = merge_responses(
        [answer(nodes=(kept,)), answer(nodes=(DeviceSpec("/dev/st0", "/dev/tape", "rw"),))], {}
    )
    assert granted.nodes == (kept,)
    assert conflicts == []
    granted, conflicts = merge_responses(
        [answer(nodes=(kept,)), answer(nodes=(DeviceSpec("/dev/st1", "/dev/tape", "r"),))], {}
    )
    assert granted.nodes == (kept,)
    assert [conflict.option for conflict in conflicts] == ["device node"]


def test_mounts_conflict_by_their_host_path_only() -> None:  # 3.54
    kept = MountSpec("/lib/a", "/lib", read_only=True)
    granted, conflicts = merge_responses([answer(mounts=(kept, MountSpec("/lib/a", "/lib", read_only=False)))], {})
    assert granted.mounts == (kept,)
    assert conflicts == []
    granted, conflicts = merge_responses(
        [answer(mounts=(kept,)), answer(mounts=(MountSpec("/lib/b", "/lib", True),))], {}
    )
    assert granted.mounts == (kept,)
    assert [(conflict.option, conflict.key) for conflict in conflicts] == [("mount", "/lib")]


def test_repeated_cdi_name_is_no_conflict() -> None:  # 3.54
    granted, conflicts = merge_responses([answer(cdi=("v/c=1", "v/c=1")), answer(cdi=("v/c=1", "v/c=0"))], {})
    assert granted.cdi == ("v/c=1", "v/c=0")
    assert conflicts == []


def test_the_pods_own_variables_win() -> None:  # 3.55
    granted, conflicts = merge_responses([answer({"A": "plugin", "B": "plugin"})], {"A": "pod"})
    assert granted.env == {"A": "pod", "B": "plugin"}
    assert conflicts == []


@given(st.lists(TEXTS, max_size=4), TEXTS)
def test_first_response_wins_and_every_other_value_is_a_conflict(
    envs: list[dict[str, str]], own: dict[str, str]
) -> None:
    granted, conflicts = merge_responses([answer(env) for env in envs], own)
    first = {key: value for env in reversed(envs) for key, value in env.items()}
    assert granted.env == {**first, **own}
    lost = [(key, value) for env in envs for key, value in env.items() if first[key] != value]
    assert [(conflict.key, conflict.dropped) for conflict in conflicts] == lost


def with_everything(_: object) -> list[Allocation]:
    return [
        Allocation(
            env={"MODE": "fast"},
            mounts=[Mount("/opt/lib", "/lib/x", read_only=True)],
            nodes=[DeviceNode("/dev/st0", "/dev/tape", "rm")],
            annotations={"note": "here"},
            cdi=["vendor.com/class=one"],
        )
    ]


async def test_a_container_is_started_with_all_that_the_plugin_answered(node: Kubelet) -> None:  # 3.54
    plugin = ScriptedPlugin("a")
    plugin.answer = with_everything
    async with registered(node, plugin):
        await node.allocatable(TAPE, 1)
        pod = await node.admit(PodSpec("pod", (ContainerSpec("main", {TAPE: "1"}, env={"OWN": "1"}),)))
    granted = pod.container("main")
    assert granted.env == {"MODE": "fast", "OWN": "1"}
    assert granted.mounts == (MountSpec("/opt/lib", "/lib/x", read_only=True),)
    assert granted.nodes == (DeviceSpec("/dev/st0", "/dev/tape", "rm"),)
    assert granted.annotations == {"note": "here"}
    assert granted.cdi == ("vendor.com/class=one",)


async def test_a_container_without_devices_gets_nothing_from_them(node: Kubelet) -> None:  # 3.54
    async with registered(node, ScriptedPlugin("a")):
        await node.allocatable(TAPE, 1)
        pod = await node.admit(pod_requesting({"with": {TAPE: 1}, "without": {TAPE: 0}}))
        assert pod.container("without").env == {}


async def test_a_conflict_of_two_plugins_is_a_finding(node: Kubelet) -> None:  # 3.54
    one, two = ScriptedPlugin("a"), ScriptedPlugin("a", resource=OTHER)
    one.answer = lambda _: [Allocation(env={"MODE": "slow"})]
    two.answer = lambda _: [Allocation(env={"MODE": "fast"})]
    async with registered(node, one), registered(node, two):
        await node.allocatable(TAPE, 1)
        await node.allocatable(OTHER, 1)
        pod = await node.admit(pod_requesting({TAPE: 1, OTHER: 1}))
    assert pod.container("main").env == {"MODE": "fast"}  # sorted by resource, where a real kubelet casts dice
    assert [finding.fact for finding in node.findings] == ["3.54"]


@pytest.mark.parametrize(("version", "names"), [("1.27", ()), ("1.28", ("vendor.com/class=one",))])
async def test_cdi_names_are_passed_on_since_1_28(root: Path, version: str, names: tuple[str, ...]) -> None:  # 3.56
    plugin = ScriptedPlugin("a")
    plugin.answer = with_everything
    async with Kubelet(root, quick_settings(version=version)) as kubelet, registered(kubelet, plugin):
        await kubelet.allocatable(TAPE, 1)
        pod = await kubelet.admit(pod_requesting({TAPE: 1}))
        assert pod.container("main").cdi == names
        assert [finding.fact for finding in kubelet.findings] == ([] if names else ["3.56"])
