"""A node's status round by round: what is set by hand, what a plugin backs, and what it leaves."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from plugwright.cluster import node_status
from plugwright.cluster.node_status import Identity, Machine, Shape, Supply
from plugwright.cluster.store import Object
from plugwright.kubelet.devicemanager.devices import DeviceCount

NODE = Identity("node-1", 0, Shape(labels={"zone": "a"}), Machine("m", "b", "6.1", "arm64"))
NONE = Supply({})
FIRST, LATER = "2026-11-15T12:00:00Z", "2026-11-15T12:00:10Z"


def after(status: Object, supply: Supply = NONE) -> Object:
    return node_status.round_of(status, NODE, supply, LATER)


def counts(status: Object, resource: str) -> tuple[str | None, str | None]:
    return status["capacity"].get(resource), status["allocatable"].get(resource)


def with_capacity(**given: str) -> Object:
    status = node_status.created(NODE, NONE, FIRST)["status"]
    return {
        **status,
        "capacity": {**status["capacity"], **{key.replace("_", "/"): each for key, each in given.items()}},
    }


def test_a_new_node_looks_like_one() -> None:
    node = node_status.created(NODE, Supply({"mock/gpu": DeviceCount(10, 9)}), FIRST)
    assert node["metadata"]["labels"] == {
        "beta.kubernetes.io/arch": "arm64",
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": "arm64",
        "kubernetes.io/hostname": "node-1",
        "kubernetes.io/os": "linux",
        "zone": "a",
    }
    status = node["status"]
    assert [(each["type"], each["status"], each["reason"]) for each in status["conditions"]] == [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID"),
        ("Ready", "True", "KubeletReady"),
    ]
    assert counts(status, "mock/gpu") == ("10", "9")
    assert (status["nodeInfo"]["bootID"], status["nodeInfo"]["kubeletVersion"]) == ("b", "v1.36.4")


def test_capacity_set_by_hand_becomes_allocatable() -> None:
    assert counts(after(with_capacity(example_dongle="4")), "example/dongle") == ("4", "4")


def test_what_has_no_capacity_any_more_is_not_allocatable() -> None:
    status = after(with_capacity(example_dongle="4"))
    del status["capacity"]["example/dongle"]
    assert counts(after(status), "example/dongle") == (None, None)


def test_what_a_plugin_backs_is_put_back() -> None:
    assert counts(after(with_capacity(mock_gpu="99"), Supply({"mock/gpu": DeviceCount(10, 8)})), "mock/gpu") == (
        "10",
        "8",
    )


def test_what_a_plugin_left_becomes_0_and_is_not_put_back_once_it_was_removed() -> None:
    status = after(with_capacity(mock_gpu="10"), Supply({}, {"mock/gpu"}))
    assert counts(status, "mock/gpu") == ("0", "0")
    del status["capacity"]["mock/gpu"]
    assert counts(after(status, Supply({}, {"mock/gpu"})), "mock/gpu") == (None, None)


def test_the_machine_itself_is_not_changed_by_hand() -> None:
    assert counts(after(with_capacity(cpu="1000")), "cpu") == ("16", "16")


def test_times_stay_while_nothing_changes() -> None:
    status = with_capacity()
    again = after(status)
    assert {each["lastTransitionTime"] for each in again["conditions"]} == {FIRST}
    assert {each["lastHeartbeatTime"] for each in again["conditions"]} == {LATER}
    assert node_status.is_same(status, again)


def test_a_node_that_was_silent_is_ready_again() -> None:
    status = with_capacity()
    silent = {**status, "conditions": [{**each, "status": "Unknown"} for each in status["conditions"]]}
    again = after(silent)
    assert {each["lastTransitionTime"] for each in again["conditions"]} == {LATER}
    assert not node_status.is_same(silent, again)


def test_conditions_of_others_stay() -> None:
    status = with_capacity()
    foreign = {"type": "KernelDeadlock", "status": "False"}
    assert foreign in after({**status, "conditions": [*status["conditions"], foreign]})["conditions"]


def test_every_node_and_every_pod_has_an_address_of_its_own() -> None:
    nodes = [Identity(f"node-{number}", number) for number in range(300)]
    assert len({each.address for each in nodes}) == 300
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
    supply = Supply(
        {name: DeviceCount(most, min(most, few)) for name, (most, few) in served.items()}, gone - served.keys()
    )
    status = with_capacity()
    status["capacity"] |= {name: str(number) for name, number in by_hand.items()}
    once = after(status, supply)
    assert after(once, supply) == once
    assert once["capacity"].keys() == once["allocatable"].keys()
