"""Pods for tests."""

from pathlib import Path

import pytest
from tests.sdk.actors import TAPE
from tests.sdk.actors import ListingPlugin as Shelf

from plugwright.kubelet import ContainerKind, PodSpec
from plugwright.testing import pod_requesting, running


def requests_of(pod: PodSpec) -> list[tuple[str, str, int]]:
    return [(container.name, container.kind.value, container.requested(TAPE)) for container in pod.containers]


def test_single_container_is_named_main() -> None:
    assert requests_of(pod_requesting({TAPE: 2})) == [("main", "main", 2)]
    assert requests_of(pod_requesting({})) == [("main", "main", 0)]


def test_several_containers_have_their_own_requests() -> None:
    pod = pod_requesting({"read": {TAPE: 1}, "write": {TAPE: 2}}, init={"wind": {TAPE: 1}}, sidecars={"watch": {}})
    assert requests_of(pod) == [("wind", "init", 1), ("watch", "sidecar", 0), ("read", "main", 1), ("write", "main", 2)]
    assert {container.kind for container in pod.containers} == set(ContainerKind)


def test_resources_and_containers_do_not_mix() -> None:
    with pytest.raises(TypeError, match="got both"):
        pod_requesting({TAPE: 1, "write": {TAPE: 2}})  # type: ignore[arg-type]


async def test_pod_admitted_again_is_another_pod(tmp_path: Path) -> None:
    async with running(Shelf(), tmp_path) as kubelet:
        spec = pod_requesting({TAPE: 1})
        first = await kubelet.admit(spec)
        await kubelet.remove(first)
        second, third = await kubelet.admit(spec), await kubelet.admit(pod_requesting({TAPE: 1}, name="tape-"))
        assert [pod.name for pod in (first, second, third)] == ["pod-1", "pod-2", "tape-3"]
        assert len({pod.uid for pod in (first, second, third)}) == 3


async def test_full_name_is_kept(tmp_path: Path) -> None:
    async with running(Shelf(), tmp_path) as kubelet:
        taken = await kubelet.admit(pod_requesting({}, name="pod-1"))
        numbered = await kubelet.admit(pod_requesting({}))
        assert (taken.name, numbered.name) == ("pod-1", "pod-2")


async def test_generate_name_of_a_mapping_is_completed(tmp_path: Path) -> None:
    async with running(Shelf(), tmp_path) as kubelet:
        pod = await kubelet.admit({"metadata": {"generateName": "tape"}, "spec": {"containers": [{"name": "main"}]}})
        assert pod.name == "tape-1"
