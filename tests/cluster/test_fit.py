"""Which node a pod goes to, and the words for why it goes to none: those are the real scheduler's own, of 1.36.4."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cluster.pods_and_nodes import node_object, pod_object

from plugwright.cluster import fit
from plugwright.cluster.fit import Room, Wish

NOT_HELPFUL = "Preemption is not helpful for scheduling."
THREE = [node_object(name, labels={"zone": name}) for name in ("n1", "n2", "n3")]
TAINT = {"key": "k", "value": "v", "effect": "NoSchedule"}


def wish(asked: Mapping[str, str] | None = None, **spec: object) -> Wish:
    pod = pod_object("p", asked, **spec)
    for container in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]:
        resources = container.setdefault("resources", {})
        resources.setdefault("requests", dict(resources.get("limits", {})))  # as the server fills it in
    return fit.wish(pod)


def rooms(*nodes: Any) -> list[Room]:
    return [Room.of(node) for node in nodes or THREE]


def said(asked: Wish, *nodes: Any) -> str:
    found, refused = fit.best(asked, rooms(*nodes))
    assert found is None
    return fit.unschedulable(refused)


def affinity(*terms: Mapping[str, object]) -> Mapping[str, object]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"nodeAffinity": required}


def expression(key: str, operator: str, *values: str) -> Mapping[str, object]:
    return {"key": key, "operator": operator, "values": list(values)}


NAMED = {"matchFields": [expression("metadata.name", "In", "n1")]}
NOBODY = {"matchFields": [expression("metadata.name", "In", "nx")]}
ZONE = {"matchExpressions": [expression("zone", "In", "n1")]}
PLUGIN = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
SELECTOR = "node(s) didn't match Pod's node affinity/selector"


@pytest.mark.parametrize(
    ("asked", "reasons"),
    [
        (wish({"mock/gpu": "4"}), "3 Insufficient mock/gpu"),
        (wish({"example.com/x": "1"}), "3 Insufficient example.com/x"),
        (
            wish({"mock/gpu": "4", "cpu": "100", "memory": "100Gi", "example.com/x": "1"}),
            "3 Insufficient cpu, 3 Insufficient example.com/x, 3 Insufficient memory, 3 Insufficient mock/gpu",
        ),
        (wish(nodeSelector={"foo": "bar"}), f"3 {SELECTOR}"),
        (wish({"mock/gpu": "4"}, affinity=affinity(ZONE)), f"1 Insufficient mock/gpu, 2 {SELECTOR}"),
        (wish({"mock/gpu": "4"}, affinity=affinity(NAMED)), f"1 Insufficient mock/gpu, 2 {PLUGIN}"),
        (wish({"mock/gpu": "1"}, affinity=affinity(NOBODY)), f"3 {PLUGIN}"),
    ],
)
def test_a_pod_that_fits_nowhere_is_told_why_as_the_real_scheduler_says_it(asked: Wish, reasons: str) -> None:
    available = "0/3 nodes are available:"
    assert said(asked) == (
        f"{available} {reasons}. no new claims to deallocate, preemption: {available} 3 {NOT_HELPFUL}"
    )


def test_full_nodes_are_told_from_those_that_never_fit() -> None:
    """As said of a tainted, a cordoned and a full node."""
    tainted, cordoned, full = rooms(
        node_object("n1", taints=[TAINT]), node_object("n2", unschedulable=True), node_object("n3")
    )
    full.take(wish({"mock/gpu": "2"}))
    _, refused = fit.best(wish({"mock/gpu": "1"}), [tainted, cordoned, full])
    assert fit.unschedulable(refused) == (
        "0/3 nodes are available: 1 Insufficient mock/gpu, 1 node(s) had untolerated taint(s), "
        "1 node(s) were unschedulable. no new claims to deallocate, preemption: 0/3 nodes are available: "
        "1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling."
    )


def test_a_node_has_room_for_so_many_pods() -> None:
    (room,) = rooms(node_object("m1", {"cpu": "4", "memory": "8Gi", "pods": "1"}))
    room.take(wish())
    _, refused = fit.best(wish(), [room])
    assert fit.unschedulable(refused) == (
        "0/1 nodes are available: 1 Too many pods. no new claims to deallocate, "
        "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    )


def test_without_nodes_there_is_nothing_to_count() -> None:
    assert fit.unschedulable([]) == "no nodes available to schedule pods"


def test_asking_for_none_of_an_unknown_resource_is_no_obstacle() -> None:
    found, _ = fit.best(wish({"example.com/x": "0"}), rooms())
    assert found is not None


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        ({"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "k", "value": "other"}, False),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_a_taint_keeps_pods_away_that_do_not_tolerate_it(toleration: Mapping[str, str], fits: bool) -> None:
    found, _ = fit.best(wish(tolerations=[toleration]), rooms(node_object("n1", taints=[TAINT])))
    assert (found is not None) is fits


def test_a_node_that_is_not_ready_takes_no_pod() -> None:
    assert "1 node(s) had untolerated taint(s)" in said(wish(), node_object("n1", ready="Unknown"))


@pytest.mark.parametrize(
    ("expressed", "fits"),
    [
        (expression("zone", "In", "n1", "n9"), True),
        (expression("zone", "NotIn", "n1"), False),
        (expression("none", "NotIn", "n1"), True),
        (expression("zone", "Exists"), True),
        (expression("zone", "DoesNotExist"), False),
        (expression("size", "Gt", "3"), True),
        (expression("size", "Lt", "3"), False),
        (expression("zone", "Gt", "3"), False),
    ],
)
def test_expressions_select_nodes_by_their_labels(expressed: Mapping[str, object], fits: bool) -> None:
    node = node_object("n1", labels={"zone": "n1", "size": "4"})
    found, _ = fit.best(wish(affinity=affinity({"matchExpressions": [expressed]})), rooms(node))
    assert (found is not None) is fits


def test_a_term_without_expressions_selects_nothing() -> None:
    assert SELECTOR in said(wish(affinity=affinity({})))


def test_what_is_preferred_decides_between_nodes_that_fit() -> None:
    preference = {"weight": 1, "preference": {"matchExpressions": [expression("zone", "In", "n3")]}}
    preferred = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}}
    found, _ = fit.best(wish(affinity=preferred), rooms())
    assert found is not None
    assert found.name == "n3"


def test_a_node_to_be_avoided_is_taken_last() -> None:
    soft = {"key": "k", "effect": "PreferNoSchedule"}
    found, _ = fit.best(wish(), rooms(node_object("n1", taints=[soft]), node_object("n2")))
    assert found is not None
    assert found.name == "n2"


def test_equal_nodes_are_taken_in_the_order_of_their_numbers() -> None:
    nodes = rooms(*(node_object(f"node-{number}") for number in (10, 2, 1)))
    taken = []
    for _ in range(3):
        found, _ = fit.best(wish(), nodes)
        assert found is not None
        found.take(wish())
        taken.append(found.name)
    assert taken == ["node-1", "node-2", "node-10"]


def test_an_init_container_counts_where_it_needs_more_than_the_others() -> None:
    def container(name: str, count: str, **more: str) -> Mapping[str, object]:
        return {"name": name, "resources": {"requests": {"mock/gpu": count}}, **more}

    inits = [container("sidecar", "1", restartPolicy="Always"), container("init", "4")]
    found = wish({"mock/gpu": "2"}, initContainers=inits)
    assert found.requests["mock/gpu"] == 5


amounts = st.dictionaries(st.sampled_from(["cpu", "memory", "mock/gpu"]), st.integers(0, 6), max_size=3)


@given(offers=st.lists(amounts, min_size=1, max_size=5), pods=st.lists(amounts, max_size=20))
def test_no_node_is_ever_given_more_than_it_has(offers: list[Mapping[str, int]], pods: list[Mapping[str, int]]) -> None:
    nodes = rooms(*(node_object(f"n{i}", _texts({"pods": 4, **offer})) for i, offer in enumerate(offers)))
    for asked in pods:
        found, refused = fit.best(wish(_texts(asked)), nodes)
        assert (found is None) == (len(refused) == len(nodes))
        if found is not None:
            found.take(wish(_texts(asked)))
    for room in nodes:
        assert room.pods <= 4
        assert all(used <= room.allocatable.get(resource, 0) for resource, used in room.used.items())


@given(pods=st.lists(amounts, max_size=10))
def test_what_came_and_went_leaves_nothing_behind(pods: list[Mapping[str, int]]) -> None:
    (room,) = rooms(node_object("n1"))
    for asked in pods:
        room.take(wish(_texts(asked)))
    for asked in reversed(pods):
        room.take(wish(_texts(asked)), -1)
    assert (room.pods, room.weight, set(room.used.values()) - {0}) == (0, (0, 0), set())


@given(pods=st.lists(amounts, max_size=12), order=st.randoms(use_true_random=False))
def test_the_choice_does_not_depend_on_the_order_of_the_nodes(pods: list[Mapping[str, int]], order: Any) -> None:
    one, other = rooms(), rooms()
    for asked in pods:
        order.shuffle(other)
        found, again = (fit.best(wish(_texts(asked)), nodes)[0] for nodes in (one, other))
        assert (found and found.name) == (again and again.name)
        for room in (found, again):
            if room is not None:
                room.take(wish(_texts(asked)))


def _texts(numbers: Mapping[str, int]) -> dict[str, str]:
    return {name: str(number) for name, number in numbers.items()}
