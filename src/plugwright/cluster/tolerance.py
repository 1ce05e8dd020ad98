"""Taints and tolerations: whether a pod stands what a node has. Pure."""

from collections.abc import Iterable

from plugwright.cluster.store import Object

__all__ = ["tolerates", "toleration"]


def tolerates(tolerations: Iterable[Object], taint: Object) -> bool:
    return toleration(tolerations, taint) is not None


def toleration(tolerations: Iterable[Object], taint: Object) -> Object | None:
    """The first that tolerates the taint."""
    return next((each for each in tolerations if _covers(each, taint)), None)


def _covers(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    exists = toleration.get("operator") == "Exists"
    if not toleration.get("key"):
        return exists
    if toleration["key"] != taint["key"]:
        return False
    return exists or toleration.get("value", "") == taint.get("value", "")
