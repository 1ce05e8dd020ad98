"""Settings and timeouts; numbers in comments are those of the facts."""

from pathlib import Path

import pytest
from tests.kubelet.actors import TAPE, Clock, ScriptedPlugin, quick_settings, registered, until_state

from plugwright.errors import ConfigError
from plugwright.kubelet import Kubelet, KubeletSettings, Timing
from plugwright.kubelet.topology_manager import TopologyPolicy, TopologyScope


def test_times_are_those_of_a_real_kubelet() -> None:  # 0.8
    assert Timing() == Timing(
        dial=10,
        get_info=1,
        notify=5,
        pre_start=30,
        grace=300,
        reconcile=1,
        retry=0.5,
        max_retry=122,
        node_status=10,
    )


def test_the_defaults_are_those_of_a_node() -> None:  # 5.17
    settings = KubeletSettings()
    assert (settings.version, settings.policy, settings.scope) == ("1.36", TopologyPolicy.NONE, TopologyScope.CONTAINER)
    assert settings.machine == (0,)


def test_a_machines_nodes_are_counted_from_zero_and_stay() -> None:  # 1.4
    assert KubeletSettings(numa=4).machine == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"numa": 0}, "number of NUMA nodes must be 1 to 64"),
        ({"numa": 65}, "number of NUMA nodes must be 1 to 64"),
        ({"policy": "strict"}, "policy must be one of none, best-effort, restricted, single-numa-node, got 'strict'"),
        ({"scope": "node"}, "scope must be one of container, pod, got 'node'"),
        ({"policy": "restricted", "numa": 9}, "number of NUMA nodes must be at most 8, got 9"),  # 5.17
        ({"version": "1.25"}, "kubelet version must be 1.26 to 1.37"),
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        KubeletSettings(**wrong)  # type: ignore[arg-type]


async def test_node_status_is_computed_periodically(root: Path, clock: Clock) -> None:  # 7.12, 2.18
    timing = Timing(node_status=0.01)
    async with Kubelet(root, quick_settings(clock=clock, timing=timing)) as kubelet:
        async with registered(kubelet, ScriptedPlugin("a")):
            await kubelet.allocatable(TAPE, 1)
        await kubelet.allocatable(TAPE, 0)
        clock.advance(301)
        await until_state(kubelet, "removed", TAPE)  # without any query
