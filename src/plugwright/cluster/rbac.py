"""The least that an account must be allowed for each command, as a ClusterRole."""

from collections.abc import Sequence

__all__ = ["cluster_role"]


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
