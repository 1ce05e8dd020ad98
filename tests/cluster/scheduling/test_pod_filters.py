"""Affinity between pods, and their spread over topologies: the nodes that are left, and the reasons of the others."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.cluster.pods_and_nodes import node_object, pod_object

from plugwright.cluster.scheduling import pod_filters
from plugwright.cluster.scheduling.fit import NodeInfo
from plugwright.cluster.scheduling.pod_filters import PlacedPod
from plugwright.cluster.scheduling.pod_request import PodRequest

NODES = {
    name: NodeInfo.of(node_object(name, labels={"zone": zone} if zone else {}))
    for name, zone in {"e1": "east", "e2": "east", "w1": "west", "none": ""}.items()
}
SPREAD = "node(s) didn't match pod topology spread constraints"
MISSING = f"{SPREAD} (missing required label)"
NO_AFFINITY = "node(s) didn't match pod affinity rules"
ANTI = "node(s) didn't match pod anti-affinity rules"
EXISTING = "node(s) didn't satisfy existing pods anti-affinity rules"
LABELS = {"other": {"team": "b"}}


def pod(labels: Mapping[str, str] | None = None, namespace: str = "default", **spec: object) -> PodRequest:
    written = pod_object("p", None, **spec)
    written["metadata"] |= {"namespace": namespace, "labels": dict(labels or {})}
    return PodRequest.of(written)


def term(app: str = "a", **more: object) -> Mapping[str, object]:
    return {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}, **more}


def affinity(kind: str, *terms: Mapping[str, object]) -> Mapping[str, Any]:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def spread(skew: int = 1, **more: object) -> Mapping[str, Any]:
    rule = {"maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule", **term(), **more}
    return {"topologySpreadConstraints": [rule]}


def reasons(request: PodRequest, **placed: PodRequest) -> dict[str, str]:
    """Why nodes do not take the pod; `placed` are pods by their node."""
    others = [PlacedPod(node, other) for node, other in placed.items()]
    failure = pod_filters.pod_filter(request, NODES, others, lambda namespace: LABELS.get(namespace, {}))
    return {name: found.reasons[0] for name, node in NODES.items() if (found := failure(node))}


A = pod({"app": "a"})
NOT_EAST = {"w1": NO_AFFINITY, "none": NO_AFFINITY}


@pytest.mark.parametrize(
    ("request_", "placed", "expected"),
    [
        (pod(), {"e1": A}, {}),
        (pod(**affinity("podAffinity", term())), {"e1": A}, NOT_EAST),
        (pod(**affinity("podAffinity", term())), {}, {**NOT_EAST, "e1": NO_AFFINITY, "e2": NO_AFFINITY}),
        (pod({"app": "a"}, **affinity("podAffinity", term())), {}, {"none": NO_AFFINITY}),
        (pod(**affinity("podAffinity", term(), term("b"))), {"e1": A}, dict.fromkeys(NODES, NO_AFFINITY)),
        (pod(**affinity("podAntiAffinity", term())), {"e1": A}, {"e1": ANTI, "e2": ANTI}),
        (pod(**affinity("podAntiAffinity", term())), {"none": A}, {}),
        (A, {"w1": pod(**affinity("podAntiAffinity", term()))}, {"w1": EXISTING}),
        (pod(), {"w1": pod(**affinity("podAntiAffinity", term()))}, {}),
        (pod(**affinity("podAntiAffinity", term())), {"e1": pod({"app": "a"}, "other")}, {}),
        (
            pod(**affinity("podAntiAffinity", term(namespaces=["other"]))),
            {"e1": pod({"app": "a"}, "other")},
            {"e1": ANTI, "e2": ANTI},
        ),
        (
            pod(**affinity("podAntiAffinity", term(namespaceSelector={"matchLabels": {"team": "b"}}))),
            {"w1": pod({"app": "a"}, "other"), "e1": A},
            {"w1": ANTI},
        ),
        (
            pod({"v": "2"}, **affinity("podAntiAffinity", term(matchLabelKeys=["v"]))),
            {"e1": pod({"app": "a", "v": "1"}), "w1": pod({"app": "a", "v": "2"})},
            {"w1": ANTI},
        ),
        (
            pod({"v": "2"}, **affinity("podAntiAffinity", term(mismatchLabelKeys=["v"]))),
            {"e1": pod({"app": "a", "v": "1"}), "w1": pod({"app": "a", "v": "2"})},
            {"e1": ANTI, "e2": ANTI},
        ),
    ],
)
def test_affinity_between_pods(request_: PodRequest, placed: dict[str, PodRequest], expected: dict[str, str]) -> None:
    assert reasons(request_, **placed) == expected


@pytest.mark.parametrize(
    ("request_", "placed", "expected"),
    [
        (pod({"app": "a"}, **spread()), {}, {"none": MISSING}),
        (pod({"app": "a"}, **spread()), {"e1": A}, {"none": MISSING, "e1": SPREAD, "e2": SPREAD}),
        (pod({"app": "a"}, **spread(2)), {"e1": A}, {"none": MISSING}),
        (pod({"app": "a"}, **spread()), {"e1": A, "w1": A}, {"none": MISSING}),
        (pod({"app": "b"}, **spread()), {"e1": A}, {"none": MISSING}),
        (pod({"app": "a"}, **spread()), {"e1": pod({"app": "a"}, "other")}, {"none": MISSING}),
        (pod({"app": "a"}, **spread(labelSelector={})), {"e1": A}, {"none": MISSING}),
        (
            pod({"app": "a"}, **spread(minDomains=3)),
            {"e1": A, "w1": A},
            {"none": MISSING, "e1": SPREAD, "e2": SPREAD, "w1": SPREAD},
        ),
        (pod({"app": "a"}, nodeSelector={"zone": "east"}, **spread()), {"e1": A}, {"none": MISSING}),
        (
            pod({"app": "a"}, nodeSelector={"zone": "east"}, **spread(nodeAffinityPolicy="Ignore")),
            {"e1": A},
            {"none": MISSING, "e1": SPREAD, "e2": SPREAD},
        ),
        (pod({"app": "a"}, **spread(whenUnsatisfiable="ScheduleAnyway")), {"e1": A}, {}),
    ],
)
def test_spread_of_pods(request_: PodRequest, placed: dict[str, PodRequest], expected: dict[str, str]) -> None:
    assert reasons(request_, **placed) == expected
