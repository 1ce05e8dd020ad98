"""The topology manager: which NUMA nodes a request could be served from, and whether a pod is admitted with them.

Pure. `topology_hints` makes the hints of one resource as the device manager does; `merge_hints` merges those of all
resources by a policy. The device manager is the only hint provider here; under their default policies the real CPU and
memory managers have no preference and change nothing.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from plugwright.errors import ConfigError

__all__ = [
    "MAX_NUMA_NODES",
    "Decision",
    "Distances",
    "ResourceTopology",
    "TopologyHint",
    "TopologyPolicy",
    "TopologyScope",
    "check_machine",
    "mask_of",
    "merge_hints",
    "topology_hints",
]

MAX_NUMA_NODES = 8  # with a policy other than none, unless the option max-allowable-numa-nodes raises it
_HIGHEST_NODE = 63

Distances = Mapping[int, Sequence[int]]
_Rank = Callable[[int], tuple[float, ...]]
_Choices = Sequence[tuple["TopologyHint", ...]]


class TopologyPolicy(StrEnum):
    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class TopologyScope(StrEnum):
    CONTAINER = "container"
    POD = "pod"


@dataclass(frozen=True, slots=True)
class TopologyHint:
    """A set of NUMA nodes; `nodes` is None if there is no mask at all."""

    nodes: frozenset[int] | None
    preferred: bool


@dataclass(frozen=True, slots=True)
class ResourceTopology:
    """The devices of one resource, as far as hints depend on them.

    `known` has every device of the newest list, healthy or not, with its NUMA nodes. `available` is healthy minus in
    use. `held` is what the container (or the pod, in that scope) holds already, and `reusable` what it can take over
    from init containers; pod scope ignores those (5.5).
    """

    known: Mapping[str, tuple[int, ...]]
    available: Collection[str]
    reusable: Collection[str] = ()
    held: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """`hint` is stored for the container, and its devices are selected by it."""

    hint: TopologyHint
    admitted: bool


def check_machine(policy: TopologyPolicy, machine: Sequence[int], limit: int = MAX_NUMA_NODES) -> None:
    """Refuses a machine on which a kubelet does not start; `limit` is its option max-allowable-numa-nodes (5.17)."""
    if limit < MAX_NUMA_NODES:
        raise ConfigError(f"max-allowable-numa-nodes must be at least {MAX_NUMA_NODES}, got {limit}")
    beyond = [node for node in machine if not 0 <= node <= _HIGHEST_NODE]
    if beyond:
        raise ConfigError(f"NUMA node must be 0 to {_HIGHEST_NODE}, got {beyond[0]}")
    if policy is not TopologyPolicy.NONE and len(machine) > limit:
        raise ConfigError(
            f"with topology policy {policy} the number of NUMA nodes must be at most {limit}, got {len(machine)}: "
            "a kubelet does not start with more"
        )


def topology_hints(
    topology: ResourceTopology, request: int, machine: Sequence[int], *, masks_of_devices_only: bool = True
) -> tuple[TopologyHint, ...] | None:
    """None: no preference; an empty tuple: no possibility. Before 1.36 masks were of all nodes of the machine."""
    if not any(topology.known.values()):
        return None
    if topology.held:
        if len(set(topology.held)) != request:
            return ()
        topology = ResourceTopology(topology.known, topology.held)
    elif len({*topology.available, *topology.reusable}) < request:
        return ()
    candidates = _nodes_with_devices(topology.known, machine) if masks_of_devices_only else machine
    return _generate(_MaskCounts(topology, machine), request, candidates)


def _nodes_with_devices(known: Mapping[str, tuple[int, ...]], machine: Sequence[int]) -> Sequence[int]:
    nodes_with_devices = {node for nodes in known.values() for node in nodes}
    return sorted(nodes_with_devices.intersection(machine)) or machine


class _MaskCounts:
    """The number of devices touching a mask; thousands of devices are few classes with equal NUMA nodes."""

    def __init__(self, topology: ResourceTopology, machine: Sequence[int]) -> None:
        classes = {nodes: mask_of(set(nodes).intersection(machine)) for nodes in {*topology.known.values()}}
        masks = {device: classes[nodes] for device, nodes in topology.known.items() if nodes}
        self._known = Counter(masks.values())
        self._available = _count_masks(masks, topology.available)
        self._reusable = _count_masks(masks, topology.reusable)

    def known(self, mask: int) -> int:
        return _touching(self._known, mask)

    def usable(self, mask: int) -> int | None:
        """None if a reusable device does not touch the mask."""
        if any(not nodes & mask for nodes in self._reusable):
            return None
        return self._reusable.total() + _touching(self._available, mask)


def _count_masks(masks: Mapping[str, int], devices: Iterable[str]) -> Counter[int]:
    return Counter(masks[device] for device in devices if device in masks)


def _touching(classes: Counter[int], mask: int) -> int:
    return sum(count for nodes, count in classes.items() if nodes & mask)


def _generate(counts: _MaskCounts, request: int, candidates: Sequence[int]) -> tuple[TopologyHint, ...]:
    minimum, kept = len(candidates), []
    for nodes in _subsets(candidates):
        mask = mask_of(nodes)
        if len(nodes) < minimum and counts.known(mask) >= request:
            minimum = len(nodes)
        usable = counts.usable(mask)
        if usable is not None and usable >= request:
            kept.append(nodes)
    return tuple(TopologyHint(frozenset(nodes), len(nodes) == minimum) for nodes in kept)


def _subsets(nodes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for size in range(1, len(nodes) + 1):
        yield from combinations(nodes, size)


def merge_hints(
    policy: TopologyPolicy,
    hints: Mapping[str, tuple[TopologyHint, ...] | None],
    machine: Sequence[int],
    *,
    distances: Distances | None = None,
) -> Decision:
    """Merges the hints of every resource.

    With `distances`, from each node to every node by number, the closest nodes win, as with the kubelet's option
    prefer-closest-numa-nodes.
    """
    if policy is TopologyPolicy.NONE:
        return Decision(TopologyHint(None, False), True)
    choices = [_choices(resource_hints) for resource_hints in hints.values()]
    if policy is TopologyPolicy.SINGLE_NUMA_NODE:
        return _merge_single_numa_node(choices, machine)
    hint = _merge(choices, machine, _narrowest if distances is None else _closest(distances))
    return Decision(hint, policy is TopologyPolicy.BEST_EFFORT or hint.preferred)


def _choices(hints: tuple[TopologyHint, ...] | None) -> tuple[TopologyHint, ...]:
    if hints is None:
        return (TopologyHint(None, True),)
    return hints or (TopologyHint(None, False),)


def _merge_single_numa_node(choices: _Choices, machine: Sequence[int]) -> Decision:
    single = [
        tuple(hint for hint in hints if hint.preferred and (hint.nodes is None or len(hint.nodes) == 1))
        for hints in choices
    ]
    hint = _merge(single, machine, _narrowest)
    if hint.nodes == frozenset(machine):
        hint = TopologyHint(None, hint.preferred)
    return Decision(hint, hint.preferred)


def _merge(choices: _Choices, machine: Sequence[int], rank: _Rank) -> TopologyHint:
    """The best combination of one hint of each resource.

    The combinations are never enumerated: two resources on eight nodes have 65,025, three have 16 million.
    """
    all_nodes = mask_of(machine)
    preferred = _preferred(choices, all_nodes)
    if preferred:
        return TopologyHint(_nodes(min(preferred, key=rank)), True)
    intersections = _intersections(choices, all_nodes)
    if not intersections:
        return TopologyHint(frozenset(machine), False)
    return TopologyHint(_nodes(min(intersections, key=_nearest(_greatest_minimum(choices), rank))), False)


def _preferred(choices: _Choices, all_nodes: int) -> set[int]:
    """The masks of preferred combinations: all hints are preferred, and all their masks are equal."""
    common: set[int] | None = None
    for hints in choices:
        preferred = [hint for hint in hints if hint.preferred]
        if any(hint.nodes is None for hint in preferred):
            continue
        masks = {mask_of(hint.nodes) for hint in preferred if hint.nodes is not None}
        common = masks if common is None else common & masks
    merged = {all_nodes} if common is None else {mask & all_nodes for mask in common}
    return merged - {0}


def _intersections(choices: _Choices, all_nodes: int) -> set[int]:
    merged = {all_nodes}
    for hints in choices:
        masks = {all_nodes if hint.nodes is None else mask_of(hint.nodes) for hint in hints}
        merged = {one & other for one in merged for other in masks} - {0}
    return merged


def _greatest_minimum(choices: _Choices) -> int:
    sizes_by_resource = ([len(hint.nodes) for hint in hints if hint.nodes is not None] for hints in choices)
    return max((min(sizes) for sizes in sizes_by_resource if sizes), default=0)


def _nearest(size: int, rank: _Rank) -> _Rank:
    """Ranks masks by their distance from `size`, smaller masks first."""

    def ranked(mask: int) -> tuple[float, ...]:
        beyond = mask.bit_count() - size
        return (beyond > 0, abs(beyond), *rank(mask))

    return ranked


def _narrowest(mask: int) -> tuple[float, ...]:
    return mask.bit_count(), mask


def _closest(distances: Distances) -> _Rank:
    def ranked(mask: int) -> tuple[float, ...]:
        nodes = _nodes(mask)
        average = sum(distances[one][other] for one in nodes for other in nodes) / len(nodes) ** 2
        return mask.bit_count(), average, mask

    return ranked


def mask_of(nodes: Iterable[int]) -> int:
    """The nodes, 0 to 63, as a number with one bit for each."""
    return sum(1 << node for node in nodes)


def _nodes(mask: int) -> frozenset[int]:
    return frozenset(node for node in range(_HIGHEST_NODE + 1) if mask >> node & 1)
