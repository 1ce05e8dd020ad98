"""Pods as tests ask for them."""

from pathlib import Path

import pytest
from tests.sdk.actors import TAPE, Shelf

from plugwright.kubelet import ContainerKind, PodSpec
from plugwright.testing import pod_requesting, running


def shown(pod: PodSpec) -> list[tuple[str, str, int]]:
    return [(each.name, each.kind.value, each.requested(TAPE)) for each in pod.containers]


def test_one_container_is_called_main() -> None:
    assert shown(pod_requesting({TAPE: 2})) == [("main", "main", 2)]
    assert shown(pod_requesting({})) == [("main", "main", 0)]


def test_several_containers_have_their_own_wishes() -> None:
    pod = pod_requesting({"read": {TAPE: 1}, "write": {TAPE: 2}}, init={"wind": {TAPE: 1}}, sidecars={"watch": {}})
    assert shown(pod) == [("wind", "init", 1), ("watch", "sidecar", 0), ("read", "main", 1), ("write", "main", 2)]
    assert {each.kind for each in pod.containers} == set(ContainerKind)


def test_wishes_and_containers_do_not_mix() -> None:
    with pytest.raises(TypeError, match="not both"):
        pod_requesting({TAPE: 1, "write": {TAPE: 2}})  # type: ignore[arg-type]


async def test_the_same_pod_can_be_asked_for_again_and_is_another_one(tmp_path: Path) -> None:
    async with running(Shelf(), tmp_path) as kubelet:
        spec = pod_requesting({TAPE: 1})
        first = await kubelet.admit(spec)
        await kubelet.remove(first)
        second, third = await kubelet.admit(spec), await kubelet.admit(pod_requesting({TAPE: 1}, name="tape-"))
        assert [pod.name for pod in (first, second, third)] == ["pod-1", "pod-2", "tape-3"]
        assert len({pod.uid for pod in (first, second, third)}) == 3


async def test_a_name_of_ones_own_is_kept(tmp_path: Path) -> None:
    async with running(Shelf(), tmp_path) as kubelet:
        taken = await kubelet.admit(pod_requesting({}, name="pod-1"))
        numbered = await kubelet.admit(pod_requesting({}))
        assert (taken.name, numbered.name) == ("pod-1", "pod-2")


async def test_a_pod_may_leave_its_name_to_the_kubelet_as_to_an_api_server(tmp_path: Path) -> None:
    async with running(Shelf(), tmp_path) as kubelet:
        pod = await kubelet.admit({"metadata": {"generateName": "tape"}, "spec": {"containers": [{"name": "main"}]}})
        assert pod.name == "tape-1"
