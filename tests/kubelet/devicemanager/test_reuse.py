"""Devices that the containers of a pod take over from its init containers."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kubelet import actors
from tests.kubelet.actors import TAPE, PluginCall, ScriptedPlugin, quick_settings, registered

from plugwright.kubelet import ContainerKind, ContainerSpec, Kubelet, PodSpec
from plugwright.kubelet.devicemanager.pod_devices import ReusableDevices
from plugwright.model import Options

INIT, SIDECAR, MAIN = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.MAIN


def reusable_after(*steps: tuple[ContainerKind, str], keeps_sidecars: bool = True) -> frozenset[str]:
    reusable = ReusableDevices(keeps_sidecars=keeps_sidecars)
    for kind, held in steps:
        reusable.update("pod", kind, {TAPE: held})
    return reusable.of("pod", TAPE)


def test_devices_of_an_init_container_are_reusable() -> None:  # 3.33
    assert reusable_after((INIT, "ab"), (INIT, "c")) == {"a", "b", "c"}


@pytest.mark.parametrize("kind", [SIDECAR, MAIN])
def test_devices_of_a_running_container_are_not_reusable(kind: ContainerKind) -> None:  # 3.33
    assert reusable_after((INIT, "abc"), (kind, "b")) == {"a", "c"}


def test_devices_of_a_sidecar_are_reusable_before_1_29() -> None:  # 3.33 by version
    assert reusable_after((SIDECAR, "a"), keeps_sidecars=False) == {"a"}
    assert reusable_after((INIT, "a"), (MAIN, "a"), keeps_sidecars=False) == set()


def test_another_pod_discards_the_set() -> None:  # 3.32
    reusable = ReusableDevices(keeps_sidecars=True)
    reusable.update("first", INIT, {TAPE: "a"})
    assert reusable.of("second", TAPE) == set()
    assert reusable.of("first", TAPE) == set()


@given(st.lists(st.tuples(st.sampled_from(ContainerKind), st.text("abcd"))))
def test_devices_of_running_containers_are_never_reusable(steps: list[tuple[ContainerKind, str]]) -> None:  # 3.33
    expected: set[str] = set()
    for kind, held in steps:
        expected = expected | set(held) if kind is INIT else expected - set(held)
    assert reusable_after(*steps) == expected


def container(name: str, count: int, kind: ContainerKind = MAIN) -> ContainerSpec:
    return ContainerSpec(name, {TAPE: str(count)}, kind=kind)


async def test_the_example_of_the_facts_comes_out_as_in_the_real_kubelet(node: Kubelet) -> None:  # 3.34, 3.35
    plugin = ScriptedPlugin(*"abcde", options=Options(preference=True))
    pod = PodSpec(
        "example",
        (
            container("init1", 2, INIT),
            container("sidecar", 1, SIDECAR),
            container("init2", 3, INIT),
            container("app1", 2),
            container("app2", 1),
        ),
    )
    async with registered(node, plugin):
        await node.allocatable(TAPE, 5)
        plugin.preference = ["b", "c", "d", "e"]
        admitted = await node.admit(pod)
        assert {name: actors.granted_devices(admitted, name) for name in admitted.containers} == {
            "init1": ["b", "c"],
            "sidecar": ["b"],
            "init2": ["c", "d", "e"],
            "app1": ["c", "d"],
            "app2": ["e"],
        }
        queries = [seen for seen in plugin.calls if seen.method == "GetPreferredAllocation"]
        assert queries == [  # 3.19: the other containers reuse devices without a query
            PluginCall("GetPreferredAllocation", tuple("abcde"), (), 2),
            PluginCall("GetPreferredAllocation", ("a", "c", "d", "e"), ("c",), 3),
        ]
        assert len(plugin.asked("Allocate")) == 5  # 3.35: one for every container, whatever it reuses
        assert len(actors.recorded_devices(node)) == 5
        last = await node.admit(PodSpec("last", (container("main", 1),)))
        assert actors.granted_devices(last) == ["a"]  # b, c, d and e are in use


async def test_app_containers_never_share(node: Kubelet) -> None:  # 3.34
    async with registered(node, ScriptedPlugin("a")):
        await node.allocatable(TAPE, 1)
        refusal = await actors.refusal_of(node, PodSpec("two", (container("one", 1), container("two", 1))))
        assert "Requested: 1, Available: 0" in refusal.message


async def test_devices_of_an_init_container_are_not_for_other_pods(node: Kubelet) -> None:  # 3.32, 3.59
    async with registered(node, ScriptedPlugin("a", "b")):
        await node.allocatable(TAPE, 2)
        first = await node.admit(PodSpec("first", (container("init", 2, INIT), container("main", 1))))
        assert actors.granted_devices(first) == ["a"]
        refusal = await actors.refusal_of(node, PodSpec("second", (container("main", 1),)))
        assert "Requested: 1, Available: 0" in refusal.message  # the init container's record stays as long as its pod


@pytest.mark.parametrize(("version", "got"), [("1.28", ["a"]), ("1.29", ["b"]), ("1.36", ["b"])])
async def test_a_sidecars_device_is_its_own_since_1_29(root: Path, version: str, got: list[str]) -> None:  # 3.33
    pod = PodSpec("with-sidecar", (container("sidecar", 1, SIDECAR), container("main", 1)))
    async with Kubelet(root, quick_settings(version=version)) as kubelet, registered(kubelet, ScriptedPlugin("a", "b")):
        await kubelet.allocatable(TAPE, 2)
        assert actors.granted_devices(await kubelet.admit(pod)) == got
