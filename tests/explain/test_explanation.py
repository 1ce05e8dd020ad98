"""`why` on small worlds: the first line, the first cure, and what the cure makes of the pod."""

from typing import Any

import pytest
from tests.explain.worlds import CLASS, DRIVER, claim, device, node, pod, published, selected

from plugwright.explain.counterfactual import Situation
from plugwright.explain.explanation import explain_pod
from plugwright.explain.oracle import Oracle
from plugwright.explain.search import Search
from plugwright.explain.world import World, claim_entries

A, B = device("a", numa=0), device("b", numa=1)
MATCH = [{"requests": ["gpu"], "matchAttribute": f"{DRIVER}/numa"}]
CORDON: dict[str, Any] = {"unschedulable": True}
TAINT: dict[str, Any] = {"taints": [{"key": "gpu-only", "effect": "NoSchedule"}]}
BOTH_HELD = (claim("h1", "a", ("p1",)), claim("h2", "b", ("p2",)))

# The waiting pod is the last one. Each case: the world, words of the first line, and the kinds of the first cure.
CASES: dict[str, tuple[World, str, tuple[str, ...]]] = {
    "a holder": (World((node("n1", 2),), (pod("h", 2, "n1"), pod("w", 1))), "no node has 1 free", ("holder-ends",)),
    "too many": (World((node("n1", 2),), (pod("w", 3),)), "no node has 3 free", ("count",)),
    "two holders": (
        World((node("n1", 2),), (pod("a", 1, "n1"), pod("b", 1, "n1"), pod("w", 2))), "2 in use", ("holder-ends",),
    ),
    "unhealthy": (World((node("n1", 0, 2),), (pod("w", 2),)), "2 unhealthy or cordoned", ("recovery",)),
    "cordoned node": (World((node("n1", 2, **CORDON),), (pod("w", 2),)), "is cordoned", ("uncordon-node",)),
    "node taint": (World((node("n1", 2, **TAINT),), (pod("w", 2),)), "has the taint", ("node-toleration",)),
    "node selector": (
        World((node("n1", 2),), (pod("w", 2, nodeSelector={"zone": "x"}),)), "node selector", ("node-selector",),
    ),
    "no resource": (World((node("n1"),), (pod("w", 2),)), "no node offers example.com/gpu", ()),
    "selector": (
        World((node("n1"),), (pod("w", claim="c"),), (published(A, B),), (CLASS,),
              (claim("c", selectors=selected(f'device.attributes["{DRIVER}"].numa == 7')),)),
        "2 excluded by a selector", ("selector",),
    ),
    "constraint": (
        World((node("n1"),), (pod("w", claim="c"),), (published(A, B),), (CLASS,),
              (claim("c", constraints=MATCH, count=2),)),
        "constraint", ("count",),
    ),
    "device taint": (
        World((node("n1"),), (pod("w", claim="c"),), (published(device("a", "xid")),), (CLASS,), (claim("c"),)),
        "1 tainted", ("taint-removed",),
    ),
    "cordoned device": (
        World((node("n1"),), (pod("w", claim="c"),), (published(device("a", "plugwright.dev/cordoned")),), (CLASS,),
              (claim("c"),)),
        "1 tainted", ("uncordon-device",),
    ),
    "held by a claim": (
        World((node("n1"),), (pod("p1", on="n1", claim="h1"), pod("p2", on="n1", claim="h2"), pod("w", claim="c")),
              (published(A, B),), (CLASS,), (*BOTH_HELD, claim("c"))),
        "2 allocated to other claims", ("holder-ends",),
    ),
    "unused claim": (
        World((node("n1"),), (pod("w", claim="c"),), (published(A),), (CLASS,), (claim("h", "a"), claim("c"))),
        "1 allocated to other claims", ("unused-claim",),
    ),
    "incomplete pool": (
        World((node("n1"),), (pod("w", claim="c"),), (published(A, count=2),), (CLASS,), (claim("c"),)),
        "pool n1 is incomplete", ("pool-complete",),
    ),
    "misspelt class": (
        World((node("n1"),), (pod("w", claim="c"),), (published(A),), (CLASS,),
              (claim("c", deviceClassName="gpus.example.com"),)),
        "DeviceClass gpus.example.com does not exist", ("class",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_first_line_names_the_cause_and_the_first_cure_is_the_cheapest(name: str) -> None:
    world, words, kinds = CASES[name]
    explanation = explain_pod(world, world.pods[-1])
    assert explanation.state == "waits"
    assert words in explanation.answer
    assert (explanation.cures[0].kinds if explanation.cures else ()) == kinds


@pytest.mark.parametrize("name", CASES)
def test_questions_leave_nothing_of_their_changes_behind(name: str) -> None:
    world = CASES[name][0]
    assert explain_pod(world, world.pods[-1]) == explain_pod(world, world.pods[-1])
    oracle = Oracle(world)
    situation = Situation(world.pods[-1], tuple(claim_entries(world, world.pods[-1])))
    before = list(oracle.verdicts(situation, oracle.nodes))
    Search(oracle, situation).singles()
    assert list(oracle.verdicts(situation, oracle.nodes)) == before


def test_nodes_without_a_difference_are_asked_once() -> None:
    nodes = tuple(node(f"n{number}", 2) for number in range(200))
    holders = tuple(pod(f"h{number}", 2, f"n{number}") for number in range(200))
    explanation = explain_pod(World(nodes, (*holders, waiting := pod("w", 1))), waiting)
    assert [group.count for group in explanation.evidence] == [200]
