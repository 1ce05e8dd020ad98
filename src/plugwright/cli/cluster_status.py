"""How an embedded cluster stands, as plain values: its nodes with what they offer, and its pods by phase."""

from collections import Counter

from plugwright.cluster.api.kinds import NODES, PODS
from plugwright.cluster.embedded import EmbeddedCluster
from plugwright.cluster.store import Object

__all__ = ["offers", "report"]


def report(cluster: EmbeddedCluster) -> dict[str, object]:
    phases = Counter(
        str((pod.get("status") or {}).get("phase") or "Pending") for pod in cluster.store.every(PODS.qualified)
    )
    nodes = [_node(cluster, node) for node in cluster.store.every(NODES.qualified)]
    return {"nodes": nodes, "pods": dict(sorted(phases.items()))}


def offers(node: Object) -> dict[str, int]:
    """The extended resources of a node, as far as they can be had."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return {name: int(number) for name, number in sorted(allocatable.items()) if "/" in name}


def _node(cluster: EmbeddedCluster, node: Object) -> dict[str, object]:
    name = node["metadata"]["name"]
    agent = cluster.nodes.get(name)
    conditions = {each["type"]: each["status"] for each in (node.get("status") or {}).get("conditions") or ()}
    return {
        "name": name,
        "ready": conditions.get("Ready") == "True",
        "running": agent is not None and agent.is_running,
        "allocatable": offers(node),
    }
