"""What the device manager tells the topology manager: the sets of NUMA nodes that a request could come from.

Pure: `hints` decides over one resource as it is now. Which of several hints wins, and whether a pod is admitted
with it, is `policies`' work; who holds what is the ledger's.

The topology manager: which hint wins, and whether a pod is admitted with it.

Pure. Every resource's hints come from `topology`; this device manager is the only provider, as the real CPU and
memory managers are under their default policies, where they have no preference and change nothing.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from plugwright.errors import ConfigError

__all__ = [
    "MOST_NODES",
    "Decision",
    "Distances",
    "Hint",
    "Policy",
    "Scope",
    "Supply",
    "best",
    "check_machine",
    "hints",
    "mask_of",
]


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


MOST_NODES = 8  # what the kubelet takes with a policy, unless max-allowable-numa-nodes raises it
_HIGHEST_NODE = 63

Distances = Mapping[int, Sequence[int]]
_Rank = Callable[[int], tuple[float, ...]]
_Choices = Sequence[tuple[Hint, ...]]


class Policy(StrEnum):
    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class Scope(StrEnum):
    CONTAINER = "container"
    POD = "pod"


@dataclass(frozen=True, slots=True)
class Decision:
    """`hint` is what is stored for the container, and by it devices are chosen."""

    hint: Hint
    admitted: bool


def check_machine(policy: Policy, machine: Sequence[int], most: int = MOST_NODES) -> None:
    """Refuses what a kubelet would refuse to start with; `most` is its option max-allowable-numa-nodes."""
    if most < MOST_NODES:
        raise ConfigError(f"max-allowable-numa-nodes is at least {MOST_NODES}, not {most} (5.17)")
    beyond = [node for node in machine if not 0 <= node <= _HIGHEST_NODE]
    if beyond:
        raise ConfigError(f"a NUMA node is 0 to {_HIGHEST_NODE}, not {beyond[0]} (5.17)")
    if policy is not Policy.NONE and len(machine) > most:
        raise ConfigError(
            f"the kubelet does not start with topology policy {policy} on more than {most} NUMA nodes, "
            f"and there are {len(machine)} (5.17)"
        )


def best(
    policy: Policy,
    results: Mapping[str, tuple[Hint, ...] | None],
    machine: Sequence[int],
    *,
    distances: Distances | None = None,
) -> Decision:
    """The decision over every resource's hints; with `distances` the closest nodes win, as with the kubelet's option
    prefer-closest-numa-nodes: for each node, its distance to every node, by number."""
    if policy is Policy.NONE:
        return Decision(Hint(None, False), True)
    choices = [_said(result) for result in results.values()]
    if policy is Policy.SINGLE_NUMA_NODE:
        return _single(choices, machine)
    hint = _merge(choices, machine, _narrowest if distances is None else _closest(distances))
    return Decision(hint, policy is Policy.BEST_EFFORT or hint.preferred)


def _said(result: tuple[Hint, ...] | None) -> tuple[Hint, ...]:
    if result is None:
        return (Hint(None, True),)
    return result or (Hint(None, False),)


def _single(choices: _Choices, machine: Sequence[int]) -> Decision:
    fitting = [tuple(hint for hint in hints if _is_single(hint)) for hints in choices]
    hint = _merge(fitting, machine, _narrowest)
    if hint.nodes == frozenset(machine):
        hint = Hint(None, hint.preferred)
    return Decision(hint, hint.preferred)


def _is_single(hint: Hint) -> bool:
    return hint.preferred and (hint.nodes is None or len(hint.nodes) == 1)


def _merge(choices: _Choices, machine: Sequence[int], rank: _Rank) -> Hint:
    """The best of all combinations of one hint of each, without making them all: two resources on eight nodes have
    65,025, three have 16 million."""
    everything = mask_of(machine)
    preferred = _preferred(choices, everything)
    if preferred:
        return Hint(_nodes(min(preferred, key=rank)), True)
    others = _intersections(choices, everything)
    if not others:
        return Hint(frozenset(machine), False)
    return Hint(_nodes(min(others, key=_nearest(_greatest_minimum(choices), rank))), False)


def _preferred(choices: _Choices, everything: int) -> set[int]:
    """A combination is preferred where all its hints are, and all their masks are the same."""
    common: set[int] | None = None
    for hints in choices:
        wanted = [hint for hint in hints if hint.preferred]
        if any(hint.nodes is None for hint in wanted):
            continue
        masks = {mask_of(hint.nodes) for hint in wanted if hint.nodes is not None}
        common = masks if common is None else common & masks
    merged = {everything} if common is None else {mask & everything for mask in common}
    return merged - {0}


def _intersections(choices: _Choices, everything: int) -> set[int]:
    found = {everything}
    for hints in choices:
        masks = {everything if hint.nodes is None else mask_of(hint.nodes) for hint in hints}
        found = {one & other for one in found for other in masks} - {0}
    return found


def _greatest_minimum(choices: _Choices) -> int:
    sizes = ([len(hint.nodes) for hint in hints if hint.nodes is not None] for hints in choices)
    return max((min(each) for each in sizes if each), default=0)


def _nearest(size: int, rank: _Rank) -> _Rank:
    """As near to `size` as possible, from below before from above."""

    def ranked(mask: int) -> tuple[float, ...]:
        beyond = mask.bit_count() - size
        return (beyond > 0, abs(beyond), *rank(mask))

    return ranked


def _narrowest(mask: int) -> tuple[float, ...]:
    return mask.bit_count(), mask


def _closest(distances: Distances) -> _Rank:
    def ranked(mask: int) -> tuple[float, ...]:
        nodes = _nodes(mask)
        apart = sum(distances[one][other] for one in nodes for other in nodes) / len(nodes) ** 2
        return mask.bit_count(), apart, mask

    return ranked


def _nodes(mask: int) -> frozenset[int]:
    return frozenset(node for node in range(_HIGHEST_NODE + 1) if mask >> node & 1)
