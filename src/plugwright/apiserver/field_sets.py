"""Sets of fields in the form of FieldsV1: `{"f:spec": {"f:replicas": {}}}`, and the fields in which two objects differ.

Pure. A node of the tree is itself in the set if it is empty or contains a `.`. An item of a list is identified by its
keys (`k:{"name":"a"}`) or by its value (`v:"a"`); a list or map without such names is one field. The table of
`kubernetes_fields` distinguishes these cases.
"""

import json
from collections.abc import Iterator
from typing import Any

from plugwright.apiserver.kubernetes_fields import Field, ObjectType, inner_type
from plugwright.apiserver.store import Object

__all__ = [
    "FieldsV1",
    "added",
    "changed",
    "contains",
    "difference",
    "intersection",
    "is_granular",
    "is_member",
    "is_tree",
    "item_name",
    "paths",
    "present",
    "union",
]

FieldsV1 = dict[str, Any]  # type: ignore[explicit-any,unused-ignore]
_SELF: FieldsV1 = {".": {}}
_KEY_DEFAULTS = {"protocol": "TCP"}  # of keys that an item can omit


def is_member(fields: FieldsV1) -> bool:
    return not fields or "." in fields


def is_tree(value: object) -> bool:
    """Whether a value from a client is a set of fields."""
    return isinstance(value, dict) and all(_is_name(name) and is_tree(inner) for name, inner in value.items())


def _is_name(name: str) -> bool:
    kind, colon, text = name.partition(":")
    if name == "." or (kind == "f" and colon):
        return True
    try:
        return (
            kind in ("k", "v") and (kind == "v" or isinstance(json.loads(text), dict)) and json.loads(text) is not None
        )
    except ValueError:
        return False


def union(one: FieldsV1, other: FieldsV1) -> FieldsV1:
    children = {**_children(one), **_children(other)}
    for name in _children(one).keys() & _children(other).keys():
        children[name] = union(one[name], other[name])
    return _node(children, is_member(one) or is_member(other)) or {}


def contains(one: FieldsV1, other: FieldsV1) -> bool:
    """Whether all of `other` is in `one`."""
    if is_member(other) and not is_member(one):
        return False
    return all(name in one and contains(one[name], inner) for name, inner in _children(other).items())


def difference(one: FieldsV1, other: FieldsV1) -> FieldsV1 | None:
    """The fields of `one` that are not in `other`; None for the empty set, as in `intersection`."""
    children = {}
    for name, inner in _children(one).items():
        rest = difference(inner, other[name]) if name in other else inner
        if rest is not None:
            children[name] = rest
    return _node(children, is_member(one) and not is_member(other))


def intersection(one: FieldsV1, other: FieldsV1) -> FieldsV1 | None:
    children = {}
    for name in _children(one):
        if name in other and (both := intersection(one[name], other[name])) is not None:
            children[name] = both
    return _node(children, is_member(one) and is_member(other))


def _children(fields: FieldsV1) -> FieldsV1:
    return {name: inner for name, inner in fields.items() if name != "."}


def _node(children: FieldsV1, member: bool) -> FieldsV1 | None:
    if not children:
        return {} if member else None
    return {**_SELF, **children} if member else children


def paths(fields: FieldsV1, prefix: str = "") -> Iterator[str]:
    """Paths in the notation of messages: `.spec.containers[name="a"].image`."""
    if prefix and is_member(fields):
        yield prefix
    for name, inner in sorted(_children(fields).items()):
        yield from paths(inner, prefix + _step(name))


def _step(name: str) -> str:
    kind, _, text = name.partition(":")
    if kind == "f":
        return f".{text}"
    if kind == "v":
        return f"[={text}]"
    keys = (f"{key}={json.dumps(value)}" for key, value in sorted(json.loads(text).items()))
    return f"[{','.join(keys)}]"


def is_granular(field: Field | None, value: object) -> bool:
    """Whether the members or items of a value are separate fields."""
    if field is None or field.is_atomic:
        return False
    if field.is_list:
        return isinstance(value, list) and (bool(field.apply_keys) or field.is_set)
    return isinstance(value, dict) and (field.is_map or field.is_message)


def item_name(field: Field, item: object) -> str:
    if field.is_set or not isinstance(item, dict):
        return f"v:{json.dumps(item, ensure_ascii=False)}"
    keys = {key: item.get(key, _KEY_DEFAULTS.get(key)) for key in sorted(field.apply_keys)}
    known = {key: value for key, value in keys.items() if value is not None}
    return f"k:{json.dumps(known, separators=(',', ':'), ensure_ascii=False)}"


def _parts(field: Field, value: object) -> Iterator[tuple[str, Field | None, object]]:
    """The names, fields and values of the parts of a granular value."""
    if isinstance(value, list):
        item_field = Field(0, "", field.type) if field.is_message else None
        yield from ((item_name(field, item), item_field, item) for item in value)
    elif isinstance(value, dict):
        inner = None if field.is_map else inner_type(field)
        map_field = Field(0, "", field.type) if field.is_map and field.is_message else None
        for name, member in value.items():
            yield f"f:{name}", inner.member(name) if inner else map_field, member


def present(of: ObjectType, content: Object) -> FieldsV1:
    """The fields named by an applied object."""
    return _present(Field(0, "", of.name), content) or {}


def _present(field: Field | None, value: object) -> FieldsV1 | None:
    if field is None or not is_granular(field, value):
        return {}
    children = {}
    for name, inner_field, inner in _parts(field, value):
        fields = _present(inner_field, inner)
        is_named = name.startswith("f:") and not field.is_map
        if fields is not None:
            children[name] = fields if is_named else union(fields, _SELF)
    is_empty_map = isinstance(value, dict) and not value
    return _node(children, is_empty_map)


def added(field: Field | None, value: object) -> FieldsV1:
    """The fields of a new value: all of them, including those that contain others."""
    if field is None or not is_granular(field, value):
        return {}
    children = {name: added(inner_field, inner) for name, inner_field, inner in _parts(field, value)}
    if isinstance(value, dict) and not field.is_map:
        children = {**_unset(field), **children}
    return {**_SELF, **children} if children else {}


def _unset(field: Field) -> FieldsV1:
    """The members of a new object that Go's JSON contains although they are unset."""
    members = (member for member in inner_type(field).fields if member.is_always_there)
    return {f"f:{member.name}": added(member, {} if member.is_message else None) for member in members}


def changed(of: ObjectType, before: Object, after: Object) -> tuple[FieldsV1, FieldsV1]:
    """The new or changed fields in `after`, and the removed ones."""
    return _changed(Field(0, "", of.name), before, after)


def _changed(field: Field, before: object, after: object) -> tuple[FieldsV1, FieldsV1]:
    if isinstance(before, dict) and isinstance(after, dict):
        before, after = _different(before, after), _different(after, before)
    old = {name: (inner_field, inner) for name, inner_field, inner in _parts(field, before)}
    now, gone = FieldsV1(), FieldsV1()
    for name, inner_field, inner in _parts(field, after):
        if name not in old and not (inner_field and inner_field.is_message and inner_field.is_always_there):
            now[name] = added(inner_field, inner)
            continue
        _, previous = old.pop(name, (None, {}))
        if previous == inner:
            continue
        if inner_field and (previous is None or is_granular(inner_field, previous)) and is_granular(inner_field, inner):
            inner_now, inner_gone = _changed(inner_field, previous, inner)
            now |= {name: inner_now} if inner_now else {}
            gone |= {name: inner_gone} if inner_gone else {}
        else:
            now[name] = {}
    gone |= {name: added(inner_field, inner) for name, (inner_field, inner) in old.items()}
    return now, gone


def _different(one: Object, other: Object) -> Object:
    """The members missing or different in the other object, usually few."""
    return {name: value for name, value in one.items() if name not in other or other[name] != value}
