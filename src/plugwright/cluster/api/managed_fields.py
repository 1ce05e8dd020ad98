"""Who set which field: `managedFields`, as an update leaves them. Pure.

Only what changes a value becomes its owner. Lists are owned whole, but for conditions and addresses, whose items are
told apart by their type.
"""

from dataclasses import dataclass
from typing import Any

from plugwright.cluster.store import Object

__all__ = ["Author", "recorded"]

_KEYED = {"conditions": "type", "addresses": "type"}
_UNOWNED = frozenset({"apiVersion", "kind"})
_SYSTEM = frozenset({"creationTimestamp", "generation", "managedFields", "name", "namespace", "resourceVersion", "uid"})
_Fields = dict[str, Any]  # type: ignore[explicit-any,unused-ignore]


@dataclass(frozen=True, slots=True)
class Author:
    """Who writes, which part of the object, and when."""

    manager: str
    subresource: str
    time: str


def recorded(before: Object | None, after: Object, author: Author) -> list[Object]:
    """The entries after a write: its fields belong to the author, and to nobody else any more."""
    entries = list(((before or {}).get("metadata") or {}).get("managedFields") or [])
    fields = _changed(_owned(before or {}), _owned(after))
    if not fields:
        return entries
    kept = []
    own: _Fields = fields
    for entry in entries:
        if (entry["manager"], entry.get("subresource", "")) == (author.manager, author.subresource):
            own = _united(entry["fieldsV1"], fields)
        elif rest := _without(entry["fieldsV1"], fields):
            kept.append({**entry, "fieldsV1": rest})
    entry = {
        "manager": author.manager,
        "operation": "Update",
        "apiVersion": after.get("apiVersion", "v1"),
        "time": author.time,
        "fieldsType": "FieldsV1",
        "fieldsV1": own,
    }
    return [*kept, {**entry, "subresource": author.subresource} if author.subresource else entry]


def _owned(content: Object) -> Object:
    metadata = {name: value for name, value in (content.get("metadata") or {}).items() if name not in _SYSTEM}
    owned = {name: value for name, value in content.items() if name not in _UNOWNED and name != "metadata"}
    return {**owned, **({"metadata": metadata} if metadata else {})}


def _changed(before: object, after: object) -> _Fields:
    """The fields of `after` that are not as in `before`."""
    if not isinstance(after, dict):
        return {}
    was = before if isinstance(before, dict) else {}
    found: _Fields = {}
    for name, value in after.items():
        if name not in was or was[name] != value:
            found[f"f:{name}"] = _inner(name, was.get(name), value)
    return found


def _inner(name: str, before: object, after: object) -> _Fields:
    if name in _KEYED and isinstance(after, list):
        key = _KEYED[name]
        items = {item.get(key): item for item in before} if isinstance(before, list) else {}
        return {
            f'k:{{"{key}":"{item.get(key)}"}}': {".": {}, **_changed(items.get(item.get(key)), item)}
            for item in after
            if items.get(item.get(key)) != item
        }
    return _changed(before, after)


def _united(one: _Fields, other: _Fields) -> _Fields:
    return {**one, **{name: _united(one.get(name, {}), inner) for name, inner in other.items()}}


def _without(one: _Fields, other: _Fields) -> _Fields:
    left = {}
    for name, inner in one.items():
        if name not in other:
            left[name] = inner
        elif inner and (rest := _without(inner, other[name])) and rest != {".": {}}:
            left[name] = rest
    return left
