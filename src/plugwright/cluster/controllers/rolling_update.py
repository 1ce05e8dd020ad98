"""One step of a rolling update: the present size of each ReplicaSet, with enough available pods. Pure."""

import math
from collections.abc import Sequence

from plugwright.apiserver.store import Object

__all__ = ["amount", "step"]


def amount(value: object, total: int, rounds_up: bool) -> int:
    """A number, or a percentage of the total: `maxSurge` is rounded up and `maxUnavailable` down."""
    if not isinstance(value, str):
        return int(str(value))
    exact = int(value.removesuffix("%")) * total / 100
    return math.ceil(exact) if rounds_up else math.floor(exact)


def step(wanted: int, surge: int, unavailable: int, new: Object, old: Sequence[Object]) -> list[int]:
    """The sizes of the new and the old ReplicaSets, which together never exceed `wanted + surge` pods.

    Unavailable old pods are removed first; of the available pods as many as leave `wanted - unavailable`.
    """
    sizes = [_size(one) for one in old]
    room = wanted + surge - _size(new) - sum(sizes)
    grown = min(wanted, _size(new) + max(0, room))
    if not any(sizes):
        return [wanted, *sizes]
    least = wanted - unavailable
    new_unavailable = _size(new) - min(_size(new), _available(new))
    removable = max(0, _size(new) + sum(sizes) - least - new_unavailable)
    for number, one in enumerate(old):  # pods that serve no requests
        idle = min(sizes[number] - min(sizes[number], _available(one)), removable)
        sizes[number] -= idle
        removable -= idle
    available = _available(new) + sum(min(size, _available(one)) for size, one in zip(sizes, old, strict=True))
    spare = max(0, available - least)
    for number, size in enumerate(sizes):
        fewer = min(size, spare, removable)
        sizes[number] -= fewer
        spare, removable = spare - fewer, removable - fewer
    return [grown, *sizes]


def _size(replica_set: Object) -> int:
    return int(replica_set["spec"]["replicas"])


def _available(replica_set: Object) -> int:
    return int((replica_set.get("status") or {}).get("availableReplicas") or 0)
