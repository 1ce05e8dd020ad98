"""Rankings of nodes beside the selection that asks every node."""

from hypothesis import given
from hypothesis import strategies as st
from tests.cluster.pods_and_nodes import node_object, pod_object

from plugwright.cluster.scheduling import fit
from plugwright.cluster.scheduling.fit import NodeInfo
from plugwright.cluster.scheduling.node_ranking import NodeRankings
from plugwright.cluster.scheduling.pod_request import PodRequest

NAMES = ("n1", "n2", "n10")
AVOIDED = [{"key": "old", "effect": "PreferNoSchedule"}]
PLAIN, LARGE, GREEDY = (
    PodRequest.of({"kind": "Pod", **pod_object("p", limits)})
    for limits in ({"mock/gpu": "1"}, {"cpu": "2"}, {"cpu": "1", "memory": "5Gi"})
)
STEPS = st.one_of(
    st.tuples(st.just("pod"), st.sampled_from((PLAIN, LARGE, GREEDY))),
    st.tuples(st.just("remove"), st.sampled_from(NAMES)),
    st.tuples(st.just("taint"), st.sampled_from(NAMES)),
    st.tuples(st.just("node"), st.sampled_from(NAMES)),
)


@given(st.lists(STEPS, max_size=30))
def test_the_best_node_is_the_one_that_asking_every_node_finds(steps: list[tuple[str, object]]) -> None:
    nodes: dict[str, NodeInfo] = {}
    rankings = NodeRankings()
    for step, value in steps:
        if isinstance(value, PodRequest):
            expected, _ = fit.select_node(value, nodes.values())
            best = rankings.best(value, nodes)
            if best is None:  # asks every node
                best = expected
            assert best is expected
            if best is not None:
                best.add_pod(value)
                rankings.node_changed(best.name)
            continue
        name = str(value)
        nodes.pop(name, None)
        if step != "remove":
            node = node_object(name)
            nodes[name] = NodeInfo.of({**node, "spec": {"taints": AVOIDED} if step == "taint" else {}})
        rankings.node_changed(name)


def test_nodes_that_differ_only_in_names_are_taken_in_their_order() -> None:
    nodes = {name: NodeInfo.of(node_object(name)) for name in NAMES}
    rankings, taken = NodeRankings(), []
    for _ in NAMES:
        best = rankings.best(PLAIN, nodes)
        assert best is not None
        taken.append(best.name)
        best.add_pod(PLAIN)
        rankings.node_changed(best.name)
    assert taken == ["n1", "n2", "n10"]
