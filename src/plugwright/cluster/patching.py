"""Patches applied: JSON patch (RFC 6902) and merge patch (RFC 7396).

Pure: the document given is never changed. Kubernetes' own kind of patch is `strategic`'s; how a patch of ours is made
is `patch`'s.
"""

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

from plugwright.errors import ClusterError

__all__ = ["Json", "PatchFailed", "json_patch", "merge_patch"]

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
