"""The smallest patch from a server's object to a node's version of it. Pure.

A strategic merge patch: maps are merged, and conditions by their type, which keeps changes by other components.
Other lists are replaced.
"""

from plugwright.apiserver.store import Object

__all__ = ["difference"]

_MERGED = {"conditions": "type"}  # lists that a patch merges, by the key of their items
_CLEARED = ("reason", "message")  # of a status: other fields that a node does not write belong to another component


def difference(before: Object, parts: Object) -> Object:
    """The patch from `before` to an object with these top-level parts; empty if it has them already."""
    patch = {}
    for name, after in parts.items():
        if name in ("apiVersion", "kind", "metadata"):
            continue
        change = _change(name, before.get(name), after)
        if change is not _SAME:
            patch[name] = change
    status = patch.get("status")
    if isinstance(status, dict):
        for name in [name for name, value in status.items() if value is None and name not in _CLEARED]:
            del status[name]
        if not status:
            del patch["status"]
    return patch


class _Same:
    pass


_SAME = _Same()


def _change(name: str, before: object, after: object) -> object:
    if before == after:
        return _SAME
    if isinstance(before, dict) and isinstance(after, dict):
        return _map_change(before, after)
    if name in _MERGED and isinstance(before, list) and isinstance(after, list):
        known = {item.get(_MERGED[name]): item for item in before}
        changed = [item for item in after if known.get(item.get(_MERGED[name])) != item]
        return changed or _SAME
    return after


def _map_change(before: Object, after: Object) -> object:
    patch: Object = {name: None for name in before if name not in after}
    for name, value in after.items():
        change = _change(name, before.get(name), value)
        if change is not _SAME:
            patch[name] = change
    return patch or _SAME
