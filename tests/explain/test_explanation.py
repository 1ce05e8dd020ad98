"""`why` on small worlds: the first line, the first cure, and what the cure makes of the pod."""

from typing import Any

import pytest
from tests.explain.worlds import CLASS, DRIVER, claim, device, node, pod, published, selected

from plugwright.explain.counterfactual import Situation
from plugwright.explain.explanation import brief, explain_pod
from plugwright.explain.oracle import Oracle
from plugwright.explain.search import Search
from plugwright.explain.world import ApiObject, World, claim_entries

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


def nominated(name: str, gpus: int, priority: int) -> ApiObject:
    return {**pod(name, gpus, priority=priority), "status": {"nominatedNodeName": "n1"}}


def test_a_pod_that_has_preempted_others_waits_for_their_end() -> None:
    victims = [pod(f"low-{number}", 1, "n1") for number in range(2)]
    for victim in victims:
        victim["metadata"] |= {"namespace": "team-b", "deletionTimestamp": "2026-11-19T20:00:00Z"}  # type: ignore[index]
    other = pod("stays", 1, "n1", priority=9)
    waiting = nominated("w", 2, priority=5)
    found = explain_pod(World((node("n1", 3),), (*victims, other, waiting)), waiting)
    assert found.answer == (
        "waits: low-0 (team-b), low-1 (team-b) end on n1 to make room; until then no node has 2 free example.com/gpu "
        "(n1 has 0 of 3 example.com/gpu free: 3 in use)"
    )
    assert found.reason == "preemption"
    assert found.cures[0].text == "runs on n1 if low-0 (team-b, being deleted), low-1 (team-b, being deleted) end"
    assert brief(Oracle(World((node("n1", 3),), (*victims, other, waiting))), waiting)[1:] == (
        found.answer, "preemption"
    )  # fmt: skip
    kept = explain_pod(World((node("n1", 3),), (pod("big", 3, "n1"), waiting)), waiting)
    assert kept.answer.startswith("waits: the scheduler keeps n1 for it; until it is free, no node has 2 free")


@pytest.mark.parametrize(("priority", "state"), [(0, "waits"), (5, "waits"), (6, "fits")])
def test_a_node_kept_for_a_nominated_pod_is_free_only_for_pods_of_higher_priority(priority: int, state: str) -> None:
    other = pod("other", 1, priority=priority)
    found = explain_pod(World((node("n1", 2),), (nominated("w", 2, priority=5), other)), other)
    assert found.state == state
    if state == "waits":
        assert found.cures[0].text == "runs on n1 if w (default) ends"


def test_of_two_requests_one_that_nothing_names_can_be_left_out() -> None:
    wanted = claim("c")
    wanted["spec"]["devices"]["requests"].append({"name": "second", "exactly": {"deviceClassName": DRIVER}})
    world = World((node("n1"),), slices=(published(device("a")),), classes=(CLASS,), claims=(wanted,))
    found = explain_pod(world, pod("w", claim="c"))
    assert [cure.text for cure in found.cures] == ["runs without request gpu of ResourceClaim c (on n1)"]
    container = {"name": "c", "image": "x", "resources": {"claims": [{"name": "dev", "request": "gpu"}]}}
    found = explain_pod(world, pod("w", claim="c", containers=[container]))
    assert [cure.text for cure in found.cures] == ["runs without request second of ResourceClaim c (on n1)"]
    wanted["spec"]["devices"]["constraints"] = [{"requests": ["gpu", "second"], "matchAttribute": "x.com/y"}]
    assert explain_pod(world, pod("w", claim="c", containers=[container])).cures == ()


def test_a_pod_of_another_scheduler_is_said_to_wait_for_it() -> None:
    found = explain_pod(World((node("n1", 2), node("n2", 2))), pod("w", 1, schedulerName="volcano"))
    assert found.answer == (
        "fits now: n1 and 1 more node can take it by the rules of kube-scheduler; volcano has not placed it"
    )


def test_a_missing_class_is_checked_by_a_list_of_the_classes() -> None:
    waiting = pod("w", claim="c")
    found = explain_pod(World((node("n1"),), (waiting,), claims=(claim("c"),)), waiting)
    assert "kubectl get deviceclasses" in found.checks
