"""The preferred units for a container: GPUs with fast links between them, and shares packed or spread over GPUs.

Never fails: the kubelet rejects a pod because of an error (3.30), but does not need a preference. `topology` weighs the
links.

A holder is a GPU, or a MIG device in a GPU. First the number of units of each holder is decided, `spread` over as many
holders as possible or `packed` on as few; among equally suitable GPUs their links decide.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from plugwright.model import natural_order
from plugwright.plugins.nvidia.driver import GpuLinks
from plugwright.plugins.nvidia.sharing import GpuUnit
from plugwright.plugins.nvidia.topology.chooser import Chooser
from plugwright.plugins.nvidia.topology.scores import pair_scores

__all__ = ["CachedPreference", "ChooseHolders", "PlacementPolicy", "UnitCounts", "UnitPreference", "packed", "spread"]

# (candidates, required, size): `size` of the candidates and the required ones, including all required ones.
ChooseHolders = Callable[[Iterable[int], Iterable[int], int], Sequence[int]]


class PlacementPolicy(StrEnum):
    """The preferred distribution of one container's units if GPUs have several."""

    SPREAD = "spread"  # on as many GPUs as possible, the least used ones first
    PACKED = "packed"  # on as few GPUs as possible, the most used ones first


class UnitPreference:
    """For the units of one resource and the links of their GPUs, which must not change.

    Units are identified by their position in NVIDIA's order, because there can be thousands.
    """

    def __init__(
        self,
        units: Iterable[GpuUnit],
        links: GpuLinks,
        policy: PlacementPolicy = PlacementPolicy.SPREAD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        ordered = sorted(units, key=_order)
        gpus, devices = _numbered(unit.gpu.uuid for unit in ordered), _numbered(unit.uuid for unit in ordered)
        self._ids = [unit.id for unit in ordered]
        self._positions = {unit_id: position for position, unit_id in enumerate(self._ids)}
        self._gpus, self._devices = [gpus[unit.gpu.uuid] for unit in ordered], [devices[unit.uuid] for unit in ordered]
        self._per_gpu, self._per_device = Counter(self._gpus), Counter(self._devices)
        self._count = packed if policy is PlacementPolicy.PACKED else spread
        self._chooser = Chooser(pair_scores(list(gpus), links), clock)

    def prefer(self, available: Collection[str], required: Collection[str], size: int) -> list[str]:
        """`size` ids, required ones first; fewer if there are not enough. Unknown ids come last."""
        must, must_unknown = self._split_known(required)
        free, unknown = self._split_known({*available, *required})
        first = [*self._ids_at(must), *must_unknown]
        chosen = self._from_gpus(free, frozenset(must), size - len(must_unknown)) if size > len(first) else []
        return list(dict.fromkeys([*first, *self._ids_at(chosen), *unknown]))[: max(0, size)]

    def _split_known(self, ids: Iterable[str]) -> tuple[list[int], list[str]]:
        """The positions of known ids in order, and the unknown ids."""
        distinct = set(ids)
        known = sorted(self._positions[unit_id] for unit_id in distinct if unit_id in self._positions)
        return known, sorted((unit_id for unit_id in distinct if unit_id not in self._positions), key=natural_order)

    def _ids_at(self, positions: Iterable[int]) -> list[str]:
        return [self._ids[position] for position in sorted(positions)]

    def _from_gpus(self, free: Sequence[int], must: frozenset[int], size: int) -> list[int]:
        by_gpu = _grouped(free, self._gpus)
        counts = self._count(_unit_counts(self._per_gpu, by_gpu, must), size, self._chooser.choose)
        return [unit for gpu, count in counts.items() for unit in self._from_devices(by_gpu[gpu], must, count)]

    def _from_devices(self, free: Sequence[int], must: frozenset[int], size: int) -> list[int]:
        """Units within one GPU, whose MIG devices can be shared too."""
        by_device = _grouped(free, self._devices)
        counts = self._count(_unit_counts(self._per_device, by_device, must), size, _lowest)
        return [
            unit
            for device, count in counts.items()
            for unit in sorted(by_device[device], key=lambda position: position not in must)[:count]
        ]


class CachedPreference:
    """Recomputes the preference when the units or their links have changed."""

    def __init__(self) -> None:
        self._cached: tuple[dict[str, GpuUnit], GpuLinks, UnitPreference] | None = None

    def get(self, units: dict[str, GpuUnit], links: GpuLinks, packed: bool) -> UnitPreference:
        cached = self._cached
        if cached is None or (cached[0] is not units and cached[0] != units) or cached[1] != links:
            policy = PlacementPolicy.PACKED if packed else PlacementPolicy.SPREAD
            cached = self._cached = (units, links, UnitPreference(units.values(), links, policy))
        return cached[2]


class UnitCounts(msgspec.Struct, frozen=True):
    """The number of units of each holder: all, the free ones, and those required for the container."""

    total: Mapping[int, int]
    free: Mapping[int, int]
    required: Mapping[int, int]

    def remaining(self, taken: Mapping[int, int]) -> dict[int, int]:
        """The free units of each holder beyond those taken; omits holders without any."""
        counts = {holder: count - taken.get(holder, 0) for holder, count in sorted(self.free.items())}
        return {holder: count for holder, count in counts.items() if count > 0}


def spread(counts: UnitCounts, size: int, choose: ChooseHolders) -> dict[int, int]:
    """One unit of each holder before a second unit of any, from holders with the fewest units in use first."""
    taken = {holder: count for holder, count in counts.required.items() if count}
    while (missing := size - sum(taken.values())) > 0 and (candidates := counts.remaining(taken)):
        in_use = {
            holder: (taken.get(holder, 0), counts.total.get(holder, 0) - counts.free[holder]) for holder in candidates
        }
        least = min(in_use.values())
        equal = [holder for holder in candidates if in_use[holder] == least]
        for holder in _choose_equal(equal, taken, missing, choose):
            taken[holder] = taken.get(holder, 0) + 1
    return taken


def packed(counts: UnitCounts, size: int, choose: ChooseHolders) -> dict[int, int]:
    """As few holders as possible; among sufficient ones those with the fewest units left."""
    taken = {holder: count for holder, count in counts.required.items() if count}
    required = list(taken)
    _fill(taken, counts, required, size)
    missing = size - sum(taken.values())
    candidates = {holder: count for holder, count in counts.remaining(taken).items() if holder not in required}
    if missing > 0 and candidates:
        _fill(taken, counts, _fewest(candidates, required, missing, choose), size)
    return taken


def _choose_equal(equal: Sequence[int], taken: Collection[int], missing: int, choose: ChooseHolders) -> Iterable[int]:
    if len(equal) <= missing:
        return equal
    fresh = [holder for holder in equal if holder not in taken]
    if not fresh:  # the container has all of them already: none adds other links
        return equal[:missing]
    chosen = choose([*fresh, *taken], taken, len(taken) + missing)
    return [holder for holder in chosen if holder not in taken]


def _fewest(
    candidates: Mapping[int, int], required: Sequence[int], missing: int, choose: ChooseHolders
) -> Iterable[int]:
    """The smallest number of holders with the missing units."""
    fullest = sorted(candidates, key=lambda holder: (-candidates[holder], holder))
    count = next(
        (few for few in range(1, len(fullest)) if sum(candidates[holder] for holder in fullest[:few]) >= missing),
        len(fullest),
    )
    least = -(-missing // count)
    enough = [holder for holder in candidates if candidates[holder] >= least]
    if count == 1:
        fitting = min(candidates[holder] for holder in enough) if enough else 0
        enough = [holder for holder in enough if candidates[holder] == fitting]
    if len(enough) < count:
        return fullest[:count]
    chosen = choose([*enough, *required], required, len(required) + count)
    return [holder for holder in chosen if holder not in required]


def _fill(taken: dict[int, int], counts: UnitCounts, holders: Iterable[int], size: int) -> None:
    """Takes the missing units from these holders: all from the fullest GPU with enough, otherwise all they have."""
    allowed = set(holders)
    while (missing := size - sum(taken.values())) > 0:
        left = {holder: count for holder, count in counts.remaining(taken).items() if holder in allowed}
        if not left:
            return
        enough = {holder: count for holder, count in left.items() if count >= missing}
        holder = min(enough or left, key=lambda holder: (left[holder], holder))
        taken[holder] = taken.get(holder, 0) + min(missing, left[holder])


def _order(unit: GpuUnit) -> tuple[int, str, int, int, str]:
    """The order of NVIDIA's tools."""
    mig = -1 if unit.mig is None else unit.mig.index
    return unit.gpu.index, unit.gpu.uuid, mig, -1 if unit.replica is None else unit.replica, unit.id


def _numbered(uuids: Iterable[str]) -> dict[str, int]:
    return {uuid: number for number, uuid in enumerate(dict.fromkeys(uuids))}


def _grouped(positions: Iterable[int], holders: Sequence[int]) -> dict[int, list[int]]:
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for position in positions:
        groups[holders[position]].append(position)
    return groups


def _unit_counts(total: Counter[int], free: dict[int, list[int]], must: frozenset[int]) -> UnitCounts:
    required = {holder: len(must.intersection(positions)) for holder, positions in free.items()} if must else {}
    return UnitCounts(total, {holder: len(positions) for holder, positions in free.items()}, required)


def _lowest(holders: Iterable[int], required: Iterable[int], size: int) -> list[int]:
    first = sorted(set(required))
    return [*first, *sorted(set(holders) - set(first))][:size]
