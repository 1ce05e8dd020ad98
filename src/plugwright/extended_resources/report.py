"""Output of the `plugwright node` commands: JSON documents, table cells, and the ClusterRole that a command needs.

Drawing the table and choosing colours is left to `cli`.
"""

from collections.abc import Sequence
from typing import TypedDict

from plugwright.extended_resources.changes import ChangeOutcome
from plugwright.extended_resources.resources import NodeResource, NodeSnapshot

__all__ = [
    "COLUMNS",
    "ChangeReport",
    "ExtendedResourceReport",
    "NodeResourceReport",
    "PodReport",
    "changes_report",
    "cluster_role",
    "nodes_report",
    "table_cells",
]

COLUMNS = ("NODE", "RESOURCE", "CAPACITY", "ALLOCATABLE", "REQUESTED", "BACKED BY", "PODS")


class PodReport(TypedDict):
    namespace: str
    name: str
    count: int
    claim: bool


class ExtendedResourceReport(TypedDict):
    name: str
    capacity: int | None
    allocatable: int | None
    requested: int
    backing: str
    evidence: str
    pods: list[PodReport]


class NodeResourceReport(TypedDict):
    name: str
    silence: str
    resources: list[ExtendedResourceReport]


class ChangeReport(TypedDict):
    node: str
    resource: str
    result: str
    detail: str


def nodes_report(nodes: Sequence[NodeSnapshot], resources: Sequence[NodeResource]) -> list[NodeResourceReport]:
    by_node: dict[str, list[ExtendedResourceReport]] = {}
    for resource in resources:
        by_node.setdefault(resource.node, []).append(_resource_report(resource))
    return [{"name": node.name, "silence": node.silence, "resources": by_node.get(node.name, [])} for node in nodes]


def changes_report(outcomes: Sequence[ChangeOutcome]) -> list[ChangeReport]:
    return [
        {
            "node": outcome.target.node,
            "resource": outcome.target.resource,
            "result": outcome.result,
            "detail": outcome.detail,
        }
        for outcome in outcomes
    ]


def table_cells(resource: NodeResource) -> tuple[str, ...]:
    """One cell for each of `COLUMNS`."""
    counts = ("-" if number is None else str(number) for number in (resource.capacity, resource.allocatable))
    pods = " ".join(f"{holder}{' (dra)' if holder.claim else ''}" for holder in resource.holders)
    backing = resource.assessment.backing.value
    return (resource.node, resource.resource, *counts, str(resource.requested), backing, pods)


def cluster_role(command: str, nodes: Sequence[str], patch: bool) -> dict[str, object]:
    """The minimal role for a command on these nodes, or on all nodes if `nodes` is empty."""
    verbs = ["get"] if nodes else ["get", "list"] if patch else ["list"]
    rules = [_rule("", "nodes", verbs, nodes)]
    if patch:
        rules.append(_rule("", "nodes/status", ["patch"], nodes))
    rules.append(_rule("", "pods", ["list"]))
    rules.append(_rule("resource.k8s.io", "deviceclasses", ["list"]))
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": f"plugwright-node-{command}"},
        "rules": rules,
    }


def _resource_report(resource: NodeResource) -> ExtendedResourceReport:
    return {
        "name": resource.resource,
        "capacity": resource.capacity,
        "allocatable": resource.allocatable,
        "requested": resource.requested,
        "backing": resource.assessment.backing,
        "evidence": resource.assessment.evidence,
        "pods": [
            {"namespace": holder.namespace, "name": holder.pod, "count": holder.count, "claim": holder.claim}
            for holder in resource.holders
        ],
    }


def _rule(group: str, resource: str, verbs: list[str], names: Sequence[str] = ()) -> dict[str, list[str]]:
    restriction = {"resourceNames": sorted(names)} if names else {}
    return {"apiGroups": [group], "resources": [resource], **restriction, "verbs": verbs}
