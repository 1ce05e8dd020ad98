"""What the device manager tells the topology manager: the sets of NUMA nodes that a request could come from.

Pure: `hints` decides over one resource as it is now. Which of several hints wins, and whether a pod is admitted
with it, is `policies`' work; who holds what is the ledger's.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

__all__ = ["Hint", "Supply", "hints", "mask_of", "pod_total"]


@dataclass(frozen=True, slots=True)
class Hint:
    """One set of NUMA nodes; `nodes` is None where there is no mask at all."""

    nodes: frozenset[int] | None
    preferred: bool


@dataclass(frozen=True, slots=True)
class Supply:
    """One resource, as hints see it.

    `known` is every device of the newest list, healthy or not, with its NUMA nodes. `available` is healthy minus in
    use. `held` is what the container (or the pod, in that scope) has already, and `reusable` what init containers of
    the pod have left to it; none in pod scope (5.5).
    """

    known: Mapping[str, tuple[int, ...]]
    available: Collection[str]
    reusable: Collection[str] = ()
    held: Collection[str] = ()


def hints(
    supply: Supply, request: int, machine: Sequence[int], *, masks_of_devices_only: bool = True
) -> tuple[Hint, ...] | None:
    """None: no preference; an empty tuple: no possibility. Before 1.36 masks were of all nodes of the machine."""
    if not any(supply.known.values()):
        return None
    if supply.held:
        if len(set(supply.held)) != request:
            return ()
        supply = Supply(supply.known, supply.held)
    elif len({*supply.available, *supply.reusable}) < request:
        return ()
    candidates = _candidates(supply.known, machine) if masks_of_devices_only else machine
    return _generate(_Count(supply, machine), request, candidates)


def _candidates(known: Mapping[str, tuple[int, ...]], machine: Sequence[int]) -> Sequence[int]:
    carrying = {node for nodes in known.values() for node in nodes}
    return sorted(carrying.intersection(machine)) or machine


class _Count:
    """How many devices touch a mask. Thousands of devices are few classes: those with the same nodes are one."""

    def __init__(self, supply: Supply, machine: Sequence[int]) -> None:
        classes = {nodes: mask_of(set(nodes).intersection(machine)) for nodes in {*supply.known.values()}}
        masks = {device: classes[nodes] for device, nodes in supply.known.items() if nodes}
        self._known = Counter(masks.values())
        self._available = _classes(masks, supply.available)
        self._reusable = _classes(masks, supply.reusable)

    def known(self, mask: int) -> int:
        return _touching(self._known, mask)

    def usable(self, mask: int) -> int | None:
        """None: devices that are taken over lie elsewhere."""
        if any(not nodes & mask for nodes in self._reusable):
            return None
        return self._reusable.total() + _touching(self._available, mask)


def _classes(masks: Mapping[str, int], devices: Iterable[str]) -> Counter[int]:
    return Counter(masks[device] for device in devices if device in masks)


def _touching(classes: Counter[int], mask: int) -> int:
    return sum(count for nodes, count in classes.items() if nodes & mask)


def _generate(count: _Count, request: int, candidates: Sequence[int]) -> tuple[Hint, ...]:
    minimum, kept = len(candidates), []
    for nodes in _subsets(candidates):
        mask = mask_of(nodes)
        if len(nodes) < minimum and count.known(mask) >= request:
            minimum = len(nodes)
        usable = count.usable(mask)
        if usable is not None and usable >= request:
            kept.append(nodes)
    return tuple(Hint(frozenset(nodes), len(nodes) == minimum) for nodes in kept)


def _subsets(nodes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for size in range(1, len(nodes) + 1):
        yield from combinations(nodes, size)


def mask_of(nodes: Iterable[int]) -> int:
    """A set of nodes as a number with a bit for each; the nodes are those of a machine, 0 to 63."""
    return sum(1 << node for node in nodes)


def pod_total(containers: Iterable[tuple[str, int]]) -> int:
    """What a pod needs of a resource at its greatest, from (`init`, `sidecar` or `main`; limit) in the pod's order."""
    greatest = sidecars = mains = 0
    for kind, limit in containers:
        if kind == "init":
            greatest = max(greatest, limit + sidecars)
        elif kind == "sidecar":
            sidecars += limit
        else:
            mains += limit
    return max(greatest, mains + sidecars)
