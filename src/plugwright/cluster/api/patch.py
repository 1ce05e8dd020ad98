"""Patches applied: JSON patch (RFC 6902) and merge patch (RFC 7396).

Pure: the document given is never changed. Kubernetes' own kind of patch is `strategic`'s; how a patch of ours is made
is `patch`'s.

Kubernetes' strategic merge patch, for the served kinds: lists are merged by a member of their items.

Pure: the document given is never changed.
"""

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

from plugwright.errors import ClusterError

__all__ = ["Json", "PatchFailed", "json_patch", "merge", "merge_patch"]

Json = Any  # type: ignore[explicit-any,unused-ignore]
_MOST_OPERATIONS = 10_000  # the API server's own limits
_MOST_COPIED = 3 * 1024 * 1024


class PatchFailed(ClusterError):
    """The patch does not fit the document."""


def json_patch(document: Json, operations: object) -> Json:
    if not isinstance(operations, list) or not all(isinstance(each, Mapping) for each in operations):
        raise PatchFailed("a JSON patch is a list of operations")
    if len(operations) > _MOST_OPERATIONS:
        raise PatchFailed(
            f"The allowed maximum operations in a JSON patch is {_MOST_OPERATIONS}, got {len(operations)}"
        )
    result = {"": copy.deepcopy(document)}
    copied = 0
    try:
        for operation in operations:
            _operate(result, operation)
            copied += _copied(result, operation)
            if copied > _MOST_COPIED:
                raise PatchFailed(f"the accumulated size increase of copy is beyond the limit of {_MOST_COPIED}")
    except RecursionError:
        raise PatchFailed("the patch nests values too deeply") from None
    return result[""]


def _copied(holder: Json, operation: Mapping[str, Json]) -> int:
    """How much a copy has added: a few of them could fill any memory."""
    if operation["op"] != "copy":
        return 0
    parent, step = _parent(holder, _path(operation, "from"))
    return len(json.dumps(_get(parent, step)))


def _operate(holder: Json, operation: Mapping[str, Json]) -> None:
    name = operation.get("op")
    act = _OPERATIONS.get(name) if isinstance(name, str) else None
    if act is None:
        raise PatchFailed(f"Unexpected kind: {name}")
    act(holder, operation)


def _add(holder: Json, operation: Mapping[str, Json]) -> None:
    parent, step = _parent(holder, _path(operation, "path"))
    value = copy.deepcopy(_value(operation))
    if isinstance(parent, list):
        index = len(parent) if step == "-" else _index(step, len(parent) + 1)
        parent.insert(index, value)
    else:
        parent[step] = value


def _remove(holder: Json, operation: Mapping[str, Json]) -> None:
    path = _path(operation, "path")
    if len(path) == 1:
        raise PatchFailed("the whole document cannot be removed")
    _take(holder, path)


def _replace(holder: Json, operation: Mapping[str, Json]) -> None:
    parent, step = _parent(holder, _path(operation, "path"))
    _get(parent, step)
    value = copy.deepcopy(_value(operation))
    if isinstance(parent, list):
        parent[_index(step, len(parent))] = value
    else:
        parent[step] = value


def _move(holder: Json, operation: Mapping[str, Json]) -> None:
    source, target = _path(operation, "from"), _path(operation, "path")
    if target[: len(source)] == source and len(target) > len(source):
        raise PatchFailed("a value cannot be moved into itself")
    _add(holder, {"path": operation["path"], "value": _take(holder, source)})


def _copy(holder: Json, operation: Mapping[str, Json]) -> None:
    parent, step = _parent(holder, _path(operation, "from"))
    _add(holder, {"path": operation["path"], "value": _get(parent, step)})


def _test(holder: Json, operation: Mapping[str, Json]) -> None:
    parent, step = _parent(holder, _path(operation, "path"))
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
    """A pointer's steps; the empty one is the document itself, held under the empty name."""
    pointer = operation.get(member)
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        raise PatchFailed(f"{member!r} is a JSON pointer, not {pointer!r:.60}")
    return [step.replace("~1", "/").replace("~0", "~") for step in ["", *pointer.split("/")[1:]]]


def _value(operation: Mapping[str, Json]) -> Json:
    if "value" not in operation:
        raise PatchFailed(f"operation {operation.get('op')!r} has no value")
    return operation["value"]


def _parent(holder: Json, path: list[str]) -> tuple[Json, str]:
    for step in path[:-1]:
        holder = _get(holder, step)
    if not isinstance(holder, dict | list):
        raise PatchFailed(f"there is nothing at /{'/'.join(path[1:])}")
    return holder, path[-1]


def _get(parent: Json, step: str) -> Json:
    if isinstance(parent, list):
        return parent[_index(step, len(parent))]
    if isinstance(parent, dict) and step in parent:
        return parent[step]
    raise PatchFailed(f"Unable to find key: {step}: the patch names a path that is not there")


def _take(holder: Json, path: list[str]) -> Json:
    parent, step = _parent(holder, path)
    found = _get(parent, step)
    if isinstance(parent, list):
        del parent[_index(step, len(parent))]
    else:
        del parent[step]
    return found


def _index(step: str, size: int) -> int:
    if not step.isascii() or not step.isdecimal() or (len(step) > 1 and step.startswith("0")) or int(step) >= size:
        raise PatchFailed(f"Unable to access invalid index: {step}")
    return int(step)


def _equal(one: Json, other: Json) -> bool:
    """As JSON: true is not 1, and 1.0 is 1."""
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


# Lists that are merged by a member of their items; every other list is replaced whole.
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "volumes": "name",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "conditions": "type",
    "addresses": "type",
    "taints": "key",
    "ownerReferences": "uid",
    "secrets": "name",
    "podIPs": "ip",
    "hostIPs": "ip",
    "ports": "containerPort",
}
_SETS = frozenset({"finalizers"})  # lists of plain values that are united
_DIRECTIVE = "$patch"


def merge(document: Json, patch: Json) -> Json:
    if not isinstance(patch, dict):
        raise PatchFailed("a strategic merge patch is an object")
    return _merge_maps(document if isinstance(document, dict) else {}, patch)


def _merge_maps(document: dict[str, Json], patch: dict[str, Json]) -> dict[str, Json]:
    directive = patch.get(_DIRECTIVE, "merge")
    if directive == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != _DIRECTIVE}
    if directive == "delete":
        return {}
    if directive != "merge":
        raise PatchFailed(f"Unknown patch type: {directive!r:.40}")
    merged = dict(document)
    for key, value in patch.items():
        if value is None or (isinstance(value, dict) and value.get(_DIRECTIVE) == "delete"):
            merged.pop(key, None)
        elif not key.startswith("$"):
            merged[key] = _merge(key, merged.get(key), value)
    for key, value in patch.items():
        if key.startswith("$") and key != _DIRECTIVE:
            _follow(merged, key, value)
    return merged


def _merge(key: str, before: Json, value: Json) -> Json:
    if isinstance(value, dict):
        return _merge_maps(before if isinstance(before, dict) else {}, value)
    if isinstance(value, list) and key in _MERGE_KEYS and all(isinstance(item, dict) for item in value):
        return _merge_lists(before if isinstance(before, list) else [], value, _MERGE_KEYS[key])
    if isinstance(value, list) and key in _SETS and isinstance(before, list):
        return [*before, *(item for item in value if item not in before)]
    return copy.deepcopy(value)


def _merge_lists(before: list[Json], patch: list[Json], key: str) -> list[Json]:
    if any(item.get(_DIRECTIVE) == "replace" for item in patch):
        return [copy.deepcopy(item) for item in patch if _DIRECTIVE not in item]
    merged = {_identity(item, key): item for item in before}
    for item in patch:
        identity = _identity(item, key)
        if item.get(_DIRECTIVE) == "delete":
            merged.pop(identity, None)
        else:
            merged[identity] = _merge_maps(merged.get(identity, {}), item)
    return list(merged.values())


def _identity(item: Json, key: str) -> str:
    if not isinstance(item, dict) or key not in item:
        raise PatchFailed(f"map does not contain declared merge key: {key}")
    if key == "containerPort":  # another one for each protocol
        return f"{item[key]}/{item.get('protocol', 'TCP')}"
    return str(item[key])


def _follow(merged: dict[str, Json], key: str, value: Json) -> None:
    """`$setElementOrder/x`, `$deleteFromPrimitiveList/x` and `$retainKeys`, as kubectl sends them."""
    directive, _, member = key.partition("/")
    if not isinstance(value, list):
        raise PatchFailed(f"{key:.60} is a list")
    if directive == "$retainKeys":
        for other in [each for each in merged if each not in value]:
            del merged[other]
    elif directive == "$deleteFromPrimitiveList" and isinstance(merged.get(member), list):
        merged[member] = [item for item in merged[member] if item not in value]
    elif directive == "$setElementOrder" and isinstance(merged.get(member), list):
        merged[member] = _ordered(merged[member], value, _MERGE_KEYS.get(member))


def _ordered(items: list[Json], order: list[Json], key: str | None) -> list[Json]:
    """As the client has them, if it knows them all; who adds others to a list does not lose their places."""
    wanted = [_identity(each, key) if key else each for each in order]
    placed = [(_identity(each, key) if key else each, each) for each in items]
    if not all(identity in wanted for identity, _ in placed):
        return items
    return [item for _, item in sorted(placed, key=lambda each: wanted.index(each[0]))]
