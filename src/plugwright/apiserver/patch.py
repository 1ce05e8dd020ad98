"""Patches: JSON patch (RFC 6902), merge patch (RFC 7396) and Kubernetes' strategic merge patch.

Pure: documents and patches are never changed. The table of `kubernetes_fields` defines which lists a strategic merge
patch merges.
"""

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

from plugwright.apiserver.kubernetes_fields import Field, ObjectType, inner_type
from plugwright.errors import PatchFailed

__all__ = ["Json", "json_patch", "merge_patch", "strategic_merge_patch"]

Json = Any  # type: ignore[explicit-any,unused-ignore]
_MOST_OPERATIONS = 10_000  # this and the next are kube-apiserver's limits
_MOST_COPIED_BYTES = 3 * 1024 * 1024
_DIRECTIVE = "$patch"


def json_patch(document: Json, operations: object) -> Json:
    if not isinstance(operations, list) or not all(isinstance(operation, Mapping) for operation in operations):
        raise PatchFailed("a JSON patch must be a list of operations")
    if len(operations) > _MOST_OPERATIONS:
        raise PatchFailed(
            f"The allowed maximum operations in a JSON patch is {_MOST_OPERATIONS}, got {len(operations)}"
        )
    root = {"": copy.deepcopy(document)}  # so that the document itself also has a parent
    copied = 0
    try:
        for operation in operations:
            _apply(root, operation)
            copied += _copied_bytes(root, operation)
            if copied > _MOST_COPIED_BYTES:
                raise PatchFailed(f"the accumulated size increase of copy is beyond the limit of {_MOST_COPIED_BYTES}")
    except RecursionError:
        raise PatchFailed("the patch nests values too deeply") from None
    return root[""]


def _copied_bytes(root: Json, operation: Mapping[str, Json]) -> int:
    """The size that a copy has added, because repeated copies grow exponentially."""
    if operation["op"] != "copy":
        return 0
    parent, step = _parent(root, _path(operation, "from"))
    return len(json.dumps(_get(parent, step)))


def _apply(root: Json, operation: Mapping[str, Json]) -> None:
    name = operation.get("op")
    apply = _OPERATIONS.get(name) if isinstance(name, str) else None
    if apply is None:
        raise PatchFailed(f"Unexpected kind: {name}")
    apply(root, operation)


def _add(root: Json, operation: Mapping[str, Json]) -> None:
    parent, step = _parent(root, _path(operation, "path"))
    value = copy.deepcopy(_value(operation))
    if isinstance(parent, list):
        index = len(parent) if step == "-" else _index(step, len(parent) + 1)
        parent.insert(index, value)
    else:
        parent[step] = value


def _remove(root: Json, operation: Mapping[str, Json]) -> None:
    path = _path(operation, "path")
    if len(path) == 1:
        raise PatchFailed("the whole document cannot be removed")
    _pop(root, path)


def _replace(root: Json, operation: Mapping[str, Json]) -> None:
    parent, step = _parent(root, _path(operation, "path"))
    _get(parent, step)
    value = copy.deepcopy(_value(operation))
    if isinstance(parent, list):
        parent[_index(step, len(parent))] = value
    else:
        parent[step] = value


def _move(root: Json, operation: Mapping[str, Json]) -> None:
    source, target = _path(operation, "from"), _path(operation, "path")
    if target[: len(source)] == source and len(target) > len(source):
        raise PatchFailed("a value cannot be moved into itself")
    _add(root, {"path": operation["path"], "value": _pop(root, source)})


def _copy(root: Json, operation: Mapping[str, Json]) -> None:
    parent, step = _parent(root, _path(operation, "from"))
    _add(root, {"path": operation["path"], "value": _get(parent, step)})


def _test(root: Json, operation: Mapping[str, Json]) -> None:
    parent, step = _parent(root, _path(operation, "path"))
    if not _equal(_get(parent, step), _value(operation)):
        raise PatchFailed(f"testing value {operation['path']} failed: test failed")


_OPERATIONS: dict[str, Callable[[Json, Mapping[str, Json]], None]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "move": _move,
    "copy": _copy,
    "test": _test,
}


def _path(operation: Mapping[str, Json], member: str) -> list[str]:
    """The steps of a JSON pointer, starting at the root."""
    pointer = operation.get(member)
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        raise PatchFailed(f"{member!r} must be a JSON pointer, got {pointer!r:.60}")
    return [step.replace("~1", "/").replace("~0", "~") for step in ["", *pointer.split("/")[1:]]]


def _value(operation: Mapping[str, Json]) -> Json:
    if "value" not in operation:
        raise PatchFailed(f"operation {operation.get('op')!r} must have a value")
    return operation["value"]


def _parent(root: Json, path: list[str]) -> tuple[Json, str]:
    parent = root
    for step in path[:-1]:
        parent = _get(parent, step)
    if not isinstance(parent, dict | list):
        raise PatchFailed(f"Unable to find path: /{'/'.join(path[1:])}")
    return parent, path[-1]


def _get(parent: Json, step: str) -> Json:
    if isinstance(parent, list):
        return parent[_index(step, len(parent))]
    if isinstance(parent, dict) and step in parent:
        return parent[step]
    raise PatchFailed(f"Unable to find key: {step}")


def _pop(root: Json, path: list[str]) -> Json:
    parent, step = _parent(root, path)
    value = _get(parent, step)
    if isinstance(parent, list):
        del parent[_index(step, len(parent))]
    else:
        del parent[step]
    return value


def _index(step: str, size: int) -> int:
    if not step.isascii() or not step.isdecimal() or (len(step) > 1 and step.startswith("0")) or int(step) >= size:
        raise PatchFailed(f"Unable to access invalid index: {step}")
    return int(step)


def _equal(one: Json, other: Json) -> bool:
    """Equality as in JSON: true is not 1, and 1.0 is 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


def merge_patch(document: Json, patch: Json) -> Json:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def strategic_merge_patch(document: Json, patch: Json, kind_type: ObjectType | None) -> Json:
    """Merges; the type's fields define which lists of objects are merged, and by which member of their items."""
    if not isinstance(patch, dict):
        raise PatchFailed("a strategic merge patch must be an object")
    return _merged(document if isinstance(document, dict) else {}, patch, kind_type)


def _merged(document: dict[str, Json], patch: dict[str, Json], of: ObjectType | None) -> dict[str, Json]:
    directive = patch.get(_DIRECTIVE, "merge")
    if directive == "replace":
        return {name: copy.deepcopy(value) for name, value in patch.items() if name != _DIRECTIVE}
    if directive == "delete":
        return {}
    if directive != "merge":
        raise PatchFailed(f"Unknown patch type: {directive!r:.40}")
    merged = dict(document)
    for name, value in patch.items():
        if value is None or (isinstance(value, dict) and value.get(_DIRECTIVE) == "delete"):
            merged.pop(name, None)
        elif not name.startswith("$"):
            merged[name] = _merged_member(of.member(name) if of else None, merged.get(name), value)
    for name, value in patch.items():
        if name.startswith("$") and name != _DIRECTIVE:
            _follow_directive(merged, name, value, of)
    return merged


def _merged_member(field: Field | None, before: Json, value: Json) -> Json:
    inner = inner_type(field) if field and field.is_message and not field.is_map else None
    if isinstance(value, dict):
        return _merged(before if isinstance(before, dict) else {}, value, inner)
    if field and field.patch_key is not None and isinstance(value, list):
        items = before if isinstance(before, list) else []
        if not field.patch_key:
            return [*items, *(item for item in value if item not in items)]
        if all(isinstance(item, dict) for item in value):
            return _merged_list(items, value, field)
    return copy.deepcopy(value)


def _merged_list(before: list[Json], patch: list[Json], field: Field) -> list[Json]:
    key, inner = field.patch_key or "", inner_type(field)
    if any(item.get(_DIRECTIVE) == "replace" for item in patch):
        return [copy.deepcopy(item) for item in patch if _DIRECTIVE not in item]
    merged = {_identity(item, key): item for item in before}
    for item in patch:
        identity = _identity(item, key)
        if item.get(_DIRECTIVE) == "delete":
            merged.pop(identity, None)
        else:
            merged[identity] = _merged(merged.get(identity, {}), item, inner)
    return list(merged.values())


def _follow_directive(merged: dict[str, Json], name: str, value: Json, of: ObjectType | None) -> None:
    """Applies `$setElementOrder/x`, `$deleteFromPrimitiveList/x` and `$retainKeys`, as sent by kubectl."""
    directive, _, member = name.partition("/")
    if not isinstance(value, list):
        raise PatchFailed(f"{name:.60} must be a list")
    if directive == "$retainKeys":
        for other in [key for key in merged if key not in value]:
            del merged[other]
    elif directive == "$deleteFromPrimitiveList" and isinstance(merged.get(member), list):
        merged[member] = [item for item in merged[member] if item not in value]
    elif directive == "$setElementOrder" and isinstance(merged.get(member), list):
        field = of.member(member) if of else None
        merged[member] = _ordered(merged[member], value, field.patch_key if field else None)


def _identity(item: Json, key: str) -> str:
    if not isinstance(item, dict) or key not in item:
        raise PatchFailed(f"map does not contain declared merge key: {key}")
    if key == "containerPort":  # one port can be open for several protocols
        return f"{item[key]}/{item.get('protocol', 'TCP')}"
    return str(item[key])


def _ordered(items: list[Json], order: list[Json], key: str | None) -> list[Json]:
    """In the client's order if that contains all items; else unchanged, so that others' items keep their places."""
    ordered = [_identity(item, key) if key else item for item in order]
    identified = [(_identity(item, key) if key else item, item) for item in items]
    if not all(identity in ordered for identity, _ in identified):
        return items
    return [item for _, item in sorted(identified, key=lambda pair: ordered.index(pair[0]))]
