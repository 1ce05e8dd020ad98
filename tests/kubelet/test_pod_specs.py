"""Pod specs: reading, requests and violations; numbers in comments are those of the facts."""

import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kubelet.actors import OTHER, TAPE, ScriptedPlugin, registered

from plugwright.errors import InvalidPod, KubeletError
from plugwright.kubelet import ContainerKind, ContainerSpec, Kubelet, PodSpec
from plugwright.kubelet.pods import read, violations


def manifest(**spec: object) -> dict[str, object]:
    return {"kind": "Pod", "metadata": {"name": "pod"}, "spec": {"containers": [{"name": "main"}], **spec}}


def wanting(limits: Mapping[str, object], **more: object) -> dict[str, object]:
    return {"name": "main", "resources": {"limits": dict(limits), **more}}


def test_init_containers_come_first_in_the_order_they_are_written_and_ephemeral_ones_never() -> None:  # 3.4
    pod = read(
        manifest(
            containers=[{"name": "app"}, {"name": "other"}],
            initContainers=[{"name": "z"}, {"name": "side", "restartPolicy": "Always"}, {"name": "a"}],
            ephemeralContainers=[{"name": "debugger"}],
        )
    )
    assert [(container.name, container.kind) for container in pod.containers] == [
        ("z", ContainerKind.INIT),
        ("side", ContainerKind.SIDECAR),
        ("a", ContainerKind.INIT),
        ("app", ContainerKind.MAIN),
        ("other", ContainerKind.MAIN),
    ]


def test_only_limits_count_and_are_rounded_up() -> None:  # 3.8
    [container] = read(manifest(containers=[wanting({TAPE: "1500m"}, requests={OTHER: 3})])).containers
    assert container.requested(TAPE) == 2
    assert container.requested(OTHER) == 0
    assert read(manifest(containers=[wanting({}, requests={OTHER: 3})])).resources == []


@given(st.integers(0, 10**15))
def test_a_fraction_is_rounded_up_whatever_it_is(thousandths: int) -> None:  # 3.8
    container = ContainerSpec("main", {TAPE: f"{thousandths}m"})
    assert container.requested(TAPE) == -(-thousandths // 1000)


def test_effective_request_of_a_pod_is_its_peak() -> None:  # 5.2
    pod = PodSpec(
        "pod",
        (
            ContainerSpec("sidecar", {TAPE: "1"}, kind=ContainerKind.SIDECAR),
            ContainerSpec("init", {TAPE: "3"}, kind=ContainerKind.INIT),
            ContainerSpec("one", {TAPE: "1"}),
            ContainerSpec("two", {TAPE: "1"}),
        ),
    )
    assert pod.requested(TAPE) == 4


@pytest.mark.parametrize(
    ("resources", "texts"),
    [
        ({"limits": {TAPE: 2}}, []),
        ({"limits": {TAPE: 0}}, []),
        ({"limits": {TAPE: 2}, "requests": {TAPE: "2000m"}}, []),
        ({"limits": {"cpu": "500m"}, "requests": {"cpu": "100m"}}, []),
        ({"limits": {TAPE: "500m"}}, ["must be an integer"]),  # 10.3
        ({"limits": {TAPE: "-1"}}, ["must not be negative"]),  # 10.3
        ({"requests": {TAPE: 1}}, ["Limit must be set for non overcommitable resources"]),  # 10.4
        ({"limits": {TAPE: 2}, "requests": {TAPE: 1}}, [f"must be equal to {TAPE} limit of 2"]),  # 10.4
    ],
)
def test_violations_have_the_api_servers_texts(resources: object, texts: list[str]) -> None:
    pod = read(manifest(containers=[{"name": "main", "resources": resources}]))
    assert [text for _, text in violations(pod)] == texts


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("text", "a pod must be an object"),
        ({"kind": "Deployment"}, "kind must be Pod"),
        ({"kind": "Pod", "spec": {"containers": [{"name": "main"}]}}, "metadata.name is missing"),
        ({"metadata": {"name": "pod"}}, "must have at least one container"),
        (manifest(containers={}), "must be a list"),
        (manifest(containers=[{}]), "must have a name"),
        (manifest(containers=[{"name": "a"}, {"name": "a"}]), "two containers are named 'a'"),
        (manifest(initContainers=[{"name": "main"}]), "two containers are named 'main'"),
        (
            manifest(containers=[wanting({TAPE: "many"})]),
            re.escape(f"main.resources.limits[{TAPE}]: a quantity must look like 2 or 500m, got 'many'"),
        ),
        (manifest(containers=[{"name": "main", "resources": "many"}]), "main.resources must be an object"),
    ],
)
def test_invalid_pod_is_refused_with_the_reason(document: object, text: str) -> None:
    with pytest.raises(InvalidPod, match=text):
        read(document)


def test_the_same_pod_has_the_same_uid_in_every_run() -> None:
    first, second = PodSpec("pod", ()), PodSpec("pod", (), namespace="other")
    assert first.uid == PodSpec("pod", ()).uid
    assert first.uid != second.uid
    assert PodSpec("pod", (), uid="given").uid == "given"


async def test_a_generated_name_is_completed_with_a_number(node: Kubelet) -> None:
    document = manifest() | {"metadata": {"generateName": "job-"}}
    names = [(await node.admit(document)).name for _ in range(2)]
    assert names == ["job-1", "job-2"]


async def test_pod_with_a_used_name_is_refused(node: Kubelet) -> None:
    await node.admit(manifest())
    with pytest.raises(KubeletError, match="pod default/pod already exists"):
        await node.admit(manifest())


async def test_fraction_and_a_different_request_are_admitted_with_a_finding(node: Kubelet) -> None:  # 3.8, 10.3, 10.4
    async with registered(node, ScriptedPlugin("a", "b")) as plugin:
        await node.allocatable(TAPE, 2)
        await node.admit(manifest(containers=[wanting({TAPE: "1500m"}, requests={TAPE: 1})]))
        assert plugin.asked("Allocate") == [("a", "b")]
        assert [(finding.fact, finding.happened) for finding in node.findings] == [
            ("10.4", "must be an integer"),
            ("10.4", f"must be equal to {TAPE} limit of 1500m"),
        ]


def test_variable_with_value_from_does_not_hide_a_plugins() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    pod = read({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "env": env}]}})
    assert pod.containers[0].env == {"A": "1"}
