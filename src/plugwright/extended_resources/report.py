"""What was found and what was done, for programs (values that JSON can carry) and for people (a table).

The least that an account must be allowed for each command, as a ClusterRole.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypedDict

from plugwright.extended_resources.changes import Outcome
from plugwright.extended_resources.resources import Node, Row

__all__ = [
    "ChangeReport",
    "NodeReport",
    "PodReport",
    "ResourceReport",
    "changes_report",
    "cluster_role",
    "nodes_report",
    "table",
]

_HEAD = ("NODE", "RESOURCE", "CAPACITY", "ALLOCATABLE", "REQUESTED", "BACKED BY", "PODS")
_BACKED_BY = _HEAD.index("BACKED BY")


class PodReport(TypedDict):
    namespace: str
    name: str
    count: int
    claim: bool


class ResourceReport(TypedDict):
    name: str
    capacity: int | None
    allocatable: int | None
    requested: int
    backing: str
    evidence: str
    pods: list[PodReport]


class NodeReport(TypedDict):
    name: str
    silence: str
    resources: list[ResourceReport]


class ChangeReport(TypedDict):
    node: str
    resource: str
    result: str
    detail: str


def nodes_report(nodes: Sequence[Node], rows: Sequence[Row]) -> list[NodeReport]:
    of: dict[str, list[ResourceReport]] = {}
    for row in rows:
        of.setdefault(row.node, []).append(_resource(row))
    return [{"name": node.name, "silence": node.silence, "resources": of.get(node.name, [])} for node in nodes]


def changes_report(outcomes: Sequence[Outcome]) -> list[ChangeReport]:
    return [
        {"node": each.target.node, "resource": each.target.resource, "result": each.result, "detail": each.detail}
        for each in outcomes
    ]


def _resource(row: Row) -> ResourceReport:
    return {
        "name": row.resource,
        "capacity": row.capacity,
        "allocatable": row.allocatable,
        "requested": row.requested,
        "backing": row.verdict.backing,
        "evidence": row.verdict.evidence,
        "pods": [
            {"namespace": each.namespace, "name": each.pod, "count": each.count, "claim": each.claim}
            for each in row.holders
        ],
    }


def table(rows: Sequence[Row], paint: Callable[[str], str]) -> Iterator[str]:
    """A line for each row, and below it the evidence; `paint` colours the word for who backs it."""
    cells = [_HEAD, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD))]
    for row, line in zip([None, *rows], cells, strict=True):
        padded = [f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)]
        painted = paint(line[_BACKED_BY]) + padded[_BACKED_BY].removeprefix(line[_BACKED_BY])
        yield "  ".join([*padded[:_BACKED_BY], painted, line[-1]]).rstrip()
        if row:
            yield f"{' ' * widths[0]}    {row.verdict.evidence}"


def _cells(row: Row) -> tuple[str, ...]:
    counts = ("-" if number is None else str(number) for number in (row.capacity, row.allocatable))
    pods = " ".join(f"{holder}{' (dra)' if holder.claim else ''}" for holder in row.holders)
    return (row.node, row.resource, *counts, str(row.requested), row.verdict.backing.value, pods)


def cluster_role(command: str, nodes: Sequence[str], patch: bool) -> dict[str, object]:
    """For these nodes, or for all where none is named."""
    rules = [_rule("", "nodes", _reading(nodes, patch), nodes)]
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


def _rule(group: str, resource: str, verbs: list[str], names: Sequence[str] = ()) -> dict[str, list[str]]:
    named = {"resourceNames": sorted(names)} if names else {}
    return {"apiGroups": [group], "resources": [resource], **named, "verbs": verbs}


def _reading(nodes: Sequence[str], patch: bool) -> list[str]:
    if nodes:
        return ["get"]
    return ["get", "list"] if patch else ["list"]
