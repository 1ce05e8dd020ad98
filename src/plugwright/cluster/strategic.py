"""Kubernetes' strategic merge patch, for the served kinds: lists are merged by a member of their items.

Pure: the document given is never changed.
"""

import copy

from plugwright.cluster.patching import Json, PatchFailed

__all__ = ["merge"]

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
