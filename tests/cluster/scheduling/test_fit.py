"""The fit rules: the node that a pod gets, and the real scheduler's messages (of 1.36.4) where it gets none."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cluster.pods_and_nodes import node_object, pod_object

from plugwright.cluster.scheduling import fit
from plugwright.cluster.scheduling.fit import NodeInfo, PodRequest

NOT_HELPFUL = "Preemption is not helpful for scheduling."
THREE = [node_object(name, labels={"zone": name}) for name in ("n1", "n2", "n3")]
TAINT = {"key": "k", "value": "v", "effect": "NoSchedule"}


def request(requests: Mapping[str, str] | None = None, **spec: object) -> PodRequest:
    pod = pod_object("p", requests, **spec)
    for container in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]:
        resources = container.setdefault("resources", {})
        resources.setdefault("requests", dict(resources.get("limits", {})))  # the API server's default
    return PodRequest.of(pod)


def infos(*nodes: Any) -> list[NodeInfo]:
    return [NodeInfo.of(node) for node in nodes or THREE]


def message_for(pod: PodRequest, *nodes: Any) -> str:
    chosen, failures = fit.select_node(pod, infos(*nodes))
    assert chosen is None
    return fit.failed_scheduling_message(failures.values())


def affinity(*terms: Mapping[str, object]) -> Mapping[str, object]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"nodeAffinity": required}


def expression(key: str, operator: str, *values: str) -> Mapping[str, object]:
    return {"key": key, "operator": operator, "values": list(values)}


NAMED = {"matchFields": [expression("metadata.name", "In", "n1")]}
NO_NODE = {"matchFields": [expression("metadata.name", "In", "nx")]}
ZONE = {"matchExpressions": [expression("zone", "In", "n1")]}
PLUGIN = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
SELECTOR = "node(s) didn't match Pod's node affinity/selector"


@pytest.mark.parametrize(
    ("pod", "reasons"),
    [
        (request({"mock/gpu": "4"}), "3 Insufficient mock/gpu"),
        (request({"example.com/x": "1"}), "3 Insufficient example.com/x"),
        (
            request({"mock/gpu": "4", "cpu": "100", "memory": "100Gi", "example.com/x": "1"}),
            "3 Insufficient cpu, 3 Insufficient example.com/x, 3 Insufficient memory, 3 Insufficient mock/gpu",
        ),
        (request(nodeSelector={"foo": "bar"}), f"3 {SELECTOR}"),
        (request({"mock/gpu": "4"}, affinity=affinity(ZONE)), f"1 Insufficient mock/gpu, 2 {SELECTOR}"),
        (request({"mock/gpu": "4"}, affinity=affinity(NAMED)), f"1 Insufficient mock/gpu, 2 {PLUGIN}"),
        (request({"mock/gpu": "1"}, affinity=affinity(NO_NODE)), f"3 {PLUGIN}"),
    ],
)
def test_a_pod_that_fits_nowhere_gets_the_real_scheduler_s_message(pod: PodRequest, reasons: str) -> None:
    available = "0/3 nodes are available:"
    assert message_for(pod) == (
        f"{available} {reasons}. no new claims to deallocate, preemption: {available} 3 {NOT_HELPFUL}"
    )


def test_full_nodes_are_distinguished_from_those_that_never_fit() -> None:
    tainted, cordoned, full = infos(
        node_object("n1", taints=[TAINT]), node_object("n2", unschedulable=True), node_object("n3")
    )
    full.add_pod(request({"mock/gpu": "2"}))
    _, failures = fit.select_node(request({"mock/gpu": "1"}), [tainted, cordoned, full])
    assert fit.failed_scheduling_message(failures.values()) == (
        "0/3 nodes are available: 1 Insufficient mock/gpu, 1 node(s) had untolerated taint(s), "
        "1 node(s) were unschedulable. no new claims to deallocate, preemption: 0/3 nodes are available: "
        "1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling."
    )


def test_a_node_takes_no_more_pods_than_its_allocatable() -> None:
    (node,) = infos(node_object("m1", {"cpu": "4", "memory": "8Gi", "pods": "1"}))
    node.add_pod(request())
    _, failures = fit.select_node(request(), [node])
    assert fit.failed_scheduling_message(failures.values()) == (
        "0/1 nodes are available: 1 Too many pods. no new claims to deallocate, "
        "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    )


def test_a_cluster_without_nodes_has_a_message_of_its_own() -> None:
    assert fit.failed_scheduling_message([]) == "no nodes available to schedule pods"


def test_a_request_for_zero_of_an_unknown_resource_is_ignored() -> None:
    chosen, _ = fit.select_node(request({"example.com/x": "0"}), infos())
    assert chosen is not None


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
def test_a_taint_keeps_away_pods_without_a_matching_toleration(toleration: Mapping[str, str], fits: bool) -> None:
    chosen, _ = fit.select_node(request(tolerations=[toleration]), infos(node_object("n1", taints=[TAINT])))
    assert (chosen is not None) is fits


def test_a_node_that_is_not_ready_takes_no_pod() -> None:
    assert "1 node(s) had untolerated taint(s)" in message_for(request(), node_object("n1", ready="Unknown"))


@pytest.mark.parametrize(
    ("label", "fits"),
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
def test_expressions_select_nodes_by_their_labels(label: Mapping[str, object], fits: bool) -> None:
    node = node_object("n1", labels={"zone": "n1", "size": "4"})
    chosen, _ = fit.select_node(request(affinity=affinity({"matchExpressions": [label]})), infos(node))
    assert (chosen is not None) is fits


def test_a_term_without_expressions_matches_no_node() -> None:
    assert SELECTOR in message_for(request(affinity=affinity({})))


def test_preferred_affinity_decides_between_nodes_that_fit() -> None:
    preference = {"weight": 1, "preference": {"matchExpressions": [expression("zone", "In", "n3")]}}
    preferred = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}}
    chosen, _ = fit.select_node(request(affinity=preferred), infos())
    assert chosen is not None
    assert chosen.name == "n3"


def test_a_node_with_a_prefer_no_schedule_taint_is_chosen_last() -> None:
    soft = {"key": "k", "effect": "PreferNoSchedule"}
    chosen, _ = fit.select_node(request(), infos(node_object("n1", taints=[soft]), node_object("n2")))
    assert chosen is not None
    assert chosen.name == "n2"


def test_equal_nodes_are_chosen_in_the_order_of_their_numbers() -> None:
    nodes = infos(*(node_object(f"node-{number}") for number in (10, 2, 1)))
    taken = []
    for _ in range(3):
        chosen, _ = fit.select_node(request(), nodes)
        assert chosen is not None
        chosen.add_pod(request())
        taken.append(chosen.name)
    assert taken == ["node-1", "node-2", "node-10"]


def test_an_init_container_counts_where_it_needs_more_than_the_others() -> None:
    def container(name: str, count: str, **more: str) -> Mapping[str, object]:
        return {"name": name, "resources": {"requests": {"mock/gpu": count}}, **more}

    inits = [container("sidecar", "1", restartPolicy="Always"), container("init", "4")]
    pod = request({"mock/gpu": "2"}, initContainers=inits)
    assert pod.requests["mock/gpu"] == 5


amounts = st.dictionaries(st.sampled_from(["cpu", "memory", "mock/gpu"]), st.integers(0, 6), max_size=3)


@given(offers=st.lists(amounts, min_size=1, max_size=5), pods=st.lists(amounts, max_size=20))
def test_a_node_never_gets_more_than_its_allocatable(
    offers: list[Mapping[str, int]], pods: list[Mapping[str, int]]
) -> None:
    nodes = infos(*(node_object(f"n{i}", _texts({"pods": 4, **offer})) for i, offer in enumerate(offers)))
    for requests in pods:
        chosen, failures = fit.select_node(request(_texts(requests)), nodes)
        assert (chosen is None) == (len(failures) == len(nodes))
        if chosen is not None:
            chosen.add_pod(request(_texts(requests)))
    for node in nodes:
        assert node.pods <= 4
        assert all(used <= node.allocatable.get(resource, 0) for resource, used in node.requested.items())


@given(pods=st.lists(amounts, max_size=10))
def test_a_node_whose_pods_were_removed_has_nothing_requested(pods: list[Mapping[str, int]]) -> None:
    (node,) = infos(node_object("n1"))
    for requests in pods:
        node.add_pod(request(_texts(requests)))
    for requests in reversed(pods):
        node.remove_pod(request(_texts(requests)))
    assert (node.pods, node.scored, set(node.requested.values()) - {0}) == (0, (0, 0), set())


@given(pods=st.lists(amounts, max_size=12), order=st.randoms(use_true_random=False))
def test_the_choice_does_not_depend_on_the_order_of_the_nodes(pods: list[Mapping[str, int]], order: Any) -> None:
    one, other = infos(), infos()
    for requests in pods:
        order.shuffle(other)
        chosen, again = (fit.select_node(request(_texts(requests)), nodes)[0] for nodes in (one, other))
        assert (chosen and chosen.name) == (again and again.name)
        for node in (chosen, again):
            if node is not None:
                node.add_pod(request(_texts(requests)))


def _texts(numbers: Mapping[str, int]) -> dict[str, str]:
    return {name: str(number) for name, number in numbers.items()}
