"""What a kubelet checks of a pod that is bound to it, beside its devices: CPU, memory, the count of pods, labels. Pure.

A scheduler has looked at all that before; pods that name their node themselves have been looked at by nobody.
"""

from collections.abc import Collection

from plugwright.cluster import affinity
from plugwright.cluster.scheduling import Room, Wish

__all__ = ["Rejection", "rejection"]

Rejection = tuple[str, str]  # reason and message, as in the pod's status
_FIRST = ("cpu", "memory", "ephemeral-storage")


def rejection(asked: Wish, room: Room, served: Collection[str]) -> Rejection | None:
    """`served` are the resources of plugins, counted by the kubelet itself; what nobody has is not looked at (3.63)."""
    if room.pods + 1 > room.allocatable.get("pods", 0):
        return _lacking("pods", 1, room.pods, room.allocatable.get("pods", 0))
    for resource in sorted(asked.requests, key=lambda name: (name not in _FIRST, name)):
        capacity = room.allocatable.get(resource)
        if capacity is None or resource in served:
            continue
        requested, used = asked.requests[resource], room.used.get(resource, 0)
        if requested > capacity - used:
            return _lacking(resource, requested, used, capacity)
    if not affinity.matches(asked.selector, asked.terms, room.name, room.labels):
        text = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
        return "NodeAffinity", f"Pod was rejected: {text}"
    return None


def _lacking(resource: str, requested: int, used: int, capacity: int) -> Rejection:
    counts = f"requested: {requested}, used: {used}, capacity: {capacity}"
    return f"OutOf{resource}", f"Pod was rejected: Node didn't have enough resource: {resource}, {counts}"
