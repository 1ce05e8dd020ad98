"""`managedFields`: which manager set which field, as an update leaves them.

Pure. A manager owns a field whose value it has changed. Lists are owned whole, but for conditions and addresses, whose
items are identified by their type. Most objects of a kind have the same fields: those are one value in all of them,
as the fields would be half of an object's memory otherwise.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from plugwright.cluster.store import Object

__all__ = ["Author", "after_update"]

_LIST_KEYS = {"conditions": "type", "addresses": "type"}
_TYPE_META = frozenset({"apiVersion", "kind"})
_SYSTEM_METADATA = frozenset(
    {"creationTimestamp", "generation", "managedFields", "name", "namespace", "resourceVersion", "uid"}
)
_Fields = dict[str, Any]  # type: ignore[explicit-any,unused-ignore]
_SHARED = 1024  # different sets of fields
_LONGEST = 4096  # octets of one, as JSON; longer ones are of few objects


@dataclass(frozen=True, slots=True)
class Author:
    """The manager that writes, the subresource it writes to, and the time."""

    manager: str
    subresource: str
    time: str


def after_update(before: Object | None, after: Object, author: Author) -> list[Object]:
    """The entries after a write: the fields that it changes belong to its author alone."""
    entries = list(((before or {}).get("metadata") or {}).get("managedFields") or [])
    fields = _changed(_ownable(before or {}), _ownable(after))
    if not fields:
        return entries
    others = []
    own: _Fields = fields
    for entry in entries:
        if (entry["manager"], entry.get("subresource", "")) == (author.manager, author.subresource):
            own = _union(entry["fieldsV1"], fields)
        elif rest := _difference(entry["fieldsV1"], fields):
            others.append({**entry, "fieldsV1": _shared(rest)})
    entry = {
        "manager": author.manager,
        "operation": "Update",
        "apiVersion": after.get("apiVersion", "v1"),
        "time": author.time,
        "fieldsType": "FieldsV1",
        "fieldsV1": _shared(own),
    }
    return [*others, {**entry, "subresource": author.subresource} if author.subresource else entry]


def _shared(fields: _Fields) -> _Fields:
    """The same fields as one value: objects never change in place."""
    encoded = msgspec.json.encode(fields)
    return _decoded(encoded) if len(encoded) <= _LONGEST else fields


@lru_cache(_SHARED)
def _decoded(fields: bytes) -> _Fields:
    return msgspec.json.decode(fields, type=_Fields)


def _ownable(content: Object) -> Object:
    metadata = {name: value for name, value in (content.get("metadata") or {}).items() if name not in _SYSTEM_METADATA}
    rest = {name: value for name, value in content.items() if name not in _TYPE_META and name != "metadata"}
    return {**rest, **({"metadata": metadata} if metadata else {})}


def _changed(before: object, after: object) -> _Fields:
    """The fields of `after` that are not as in `before`."""
    if not isinstance(after, dict):
        return {}
    old = before if isinstance(before, dict) else {}
    fields: _Fields = {}
    for name, value in after.items():
        if name not in old or old[name] != value:
            fields[f"f:{name}"] = _changed_within(name, old.get(name), value)
    return fields


def _changed_within(name: str, before: object, after: object) -> _Fields:
    if name in _LIST_KEYS and isinstance(after, list):
        key = _LIST_KEYS[name]
        items = {item.get(key): item for item in before} if isinstance(before, list) else {}
        return {
            f'k:{{"{key}":"{item.get(key)}"}}': {".": {}, **_changed(items.get(item.get(key)), item)}
            for item in after
            if items.get(item.get(key)) != item
        }
    return _changed(before, after)


def _union(one: _Fields, other: _Fields) -> _Fields:
    return {**one, **{name: _union(one.get(name, {}), inner) for name, inner in other.items()}}


def _difference(one: _Fields, other: _Fields) -> _Fields:
    remaining = {}
    for name, inner in one.items():
        if name not in other:
            remaining[name] = inner
        elif inner and (rest := _difference(inner, other[name])) and rest != {".": {}}:
            remaining[name] = rest
    return remaining
