"""JSON pointers and the patches of a node's status.

Every patch names the version of the node that it was made from: if anything has changed since, the API server answers
with a conflict instead of doing it.
"""

from collections.abc import Mapping, Sequence
from typing import TypedDict

from plugwright.cluster.resources import Node

__all__ = ["Operation", "adding", "as_text", "pointer", "removing"]


class Operation(TypedDict, total=False):
    op: str
    path: str
    value: object


def pointer(*steps: str) -> str:
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)


def adding(node: Node, counts: Mapping[str, int]) -> list[Operation]:
    """Sets capacity alone: the kubelet makes allocatable of it at its next status round."""
    operations = [_made_from(node)]
    if node.bare:
        operations.append({"op": "add", "path": pointer("status", "capacity"), "value": {}})
    for resource, count in counts.items():
        operations.append({"op": "add", "path": pointer("status", "capacity", resource), "value": str(count)})
    return operations


def removing(node: Node, resource: str) -> list[Operation]:
    operations = [_made_from(node)]
    for part, counts in (("capacity", node.capacity), ("allocatable", node.allocatable)):
        if resource in counts:
            operations.append({"op": "remove", "path": pointer("status", part, resource)})
    return operations


def _made_from(node: Node) -> Operation:
    return {"op": "replace", "path": pointer("metadata", "resourceVersion"), "value": node.version}


def as_text(operations: Sequence[Operation]) -> str:
    """For people: what would be sent, without the version."""
    return ", ".join(" ".join(str(part) for part in operation.values()) for operation in operations[1:])
