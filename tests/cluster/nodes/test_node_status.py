"""A node's status round by round: capacity set by hand, of a plugin, and of a removed plugin."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from plugwright.apiserver.store import Object
from plugwright.cluster.nodes import node_status
from plugwright.cluster.nodes.node_status import HostInfo, NodeIdentity, NodeShape, PluginResources
from plugwright.kubelet.devicemanager.devices import DeviceCount

NODE = NodeIdentity("node-1", 0, NodeShape(labels={"zone": "a"}), HostInfo("m", "b", "6.1", "arm64"))
NONE = PluginResources({})
FIRST, LATER = "2026-11-15T12:00:00Z", "2026-11-15T12:00:10Z"


def after(status: Object, resources: PluginResources = NONE) -> Object:
    return node_status.updated_status(status, NODE, resources, LATER)


def counts(status: Object, resource: str) -> tuple[str | None, str | None]:
    return status["capacity"].get(resource), status["allocatable"].get(resource)


def with_capacity(**capacity: str) -> Object:
    status = node_status.new_node(NODE, NONE, FIRST)["status"]
    return {
        **status,
        "capacity": {**status["capacity"], **{key.replace("_", "/"): value for key, value in capacity.items()}},
    }


def test_a_new_node_has_the_labels_conditions_and_counts_of_a_real_one() -> None:
    node = node_status.new_node(NODE, PluginResources({"mock/gpu": DeviceCount(10, 9)}), FIRST)
    assert node["metadata"]["labels"] == {
        "beta.kubernetes.io/arch": "arm64",
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": "arm64",
        "kubernetes.io/hostname": "node-1",
        "kubernetes.io/os": "linux",
        "zone": "a",
    }
    status = node["status"]
    assert [(condition["type"], condition["status"], condition["reason"]) for condition in status["conditions"]] == [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID"),
        ("Ready", "True", "KubeletReady"),
    ]
    assert counts(status, "mock/gpu") == ("10", "9")
    assert (status["nodeInfo"]["bootID"], status["nodeInfo"]["kubeletVersion"]) == ("b", "v1.36.4")


def test_capacity_set_by_hand_becomes_allocatable() -> None:
    assert counts(after(with_capacity(example_dongle="4")), "example/dongle") == ("4", "4")


def test_a_resource_without_capacity_is_not_allocatable() -> None:
    status = after(with_capacity(example_dongle="4"))
    del status["capacity"]["example/dongle"]
    assert counts(after(status), "example/dongle") == (None, None)


def test_capacity_of_a_plugin_s_resource_is_put_back() -> None:
    assert counts(
        after(with_capacity(mock_gpu="99"), PluginResources({"mock/gpu": DeviceCount(10, 8)})), "mock/gpu"
    ) == (
        "10",
        "8",
    )


def test_a_removed_plugin_s_resource_becomes_0_and_stays_away_once_it_is_deleted() -> None:
    status = after(with_capacity(mock_gpu="10"), PluginResources({}, {"mock/gpu"}))
    assert counts(status, "mock/gpu") == ("0", "0")
    del status["capacity"]["mock/gpu"]
    assert counts(after(status, PluginResources({}, {"mock/gpu"})), "mock/gpu") == (None, None)


def test_cpu_set_by_hand_is_put_back() -> None:
    assert counts(after(with_capacity(cpu="1000")), "cpu") == ("16", "16")


def test_transition_times_stay_while_nothing_changes() -> None:
    status = with_capacity()
    again = after(status)
    assert {condition["lastTransitionTime"] for condition in again["conditions"]} == {FIRST}
    assert {condition["lastHeartbeatTime"] for condition in again["conditions"]} == {LATER}
    assert node_status.differs_only_in_heartbeats(status, again)


def test_a_node_that_was_silent_is_ready_again() -> None:
    status = with_capacity()
    silent = {**status, "conditions": [{**condition, "status": "Unknown"} for condition in status["conditions"]]}
    again = after(silent)
    assert {condition["lastTransitionTime"] for condition in again["conditions"]} == {LATER}
    assert not node_status.differs_only_in_heartbeats(silent, again)


def test_conditions_of_other_components_stay() -> None:
    status = with_capacity()
    foreign = {"type": "KernelDeadlock", "status": "False"}
    assert foreign in after({**status, "conditions": [*status["conditions"], foreign]})["conditions"]


def test_addresses_of_nodes_and_pods_are_unique() -> None:
    nodes = [NodeIdentity(f"node-{number}", number) for number in range(300)]
    assert len({node.address for node in nodes}) == 300
    taken: list[str] = []
    for node in nodes:
        for _ in range(3):
            taken.append(node.pod_address(taken))
    assert len(set(taken)) == len(taken)


keys = st.sampled_from(["example.com/a", "example.com/b", "mock/gpu"])
amounts = st.integers(0, 9)


@given(
    by_hand=st.dictionaries(keys, amounts),
    served=st.dictionaries(keys, st.tuples(amounts, amounts)),
    gone=st.sets(keys),
)
def test_a_second_round_changes_nothing(
    by_hand: Mapping[str, int], served: Mapping[str, tuple[int, int]], gone: set[str]
) -> None:
    resources = PluginResources(
        {name: DeviceCount(most, min(most, few)) for name, (most, few) in served.items()}, gone - served.keys()
    )
    status = with_capacity()
    status["capacity"] |= {name: str(number) for name, number in by_hand.items()}
    once = after(status, resources)
    assert after(once, resources) == once
    assert once["capacity"].keys() == once["allocatable"].keys()
