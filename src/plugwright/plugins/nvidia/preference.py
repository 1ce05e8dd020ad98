"""Which units a container should get: GPUs that are well linked, and shares of GPUs packed or spread.

Never fails, whatever is asked: the kubelet refuses a pod over an error, and can do without a good answer. The links are
weighed in `topology`, shares are counted in `packing`.

How many units of each GPU a container gets, where a GPU has several: on as many GPUs as can be, or on as few.

A holder is a GPU, or within one a MIG device. Among holders that are equally good somebody else chooses: for GPUs it is
`topology.choice`, by their links. Pure.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from plugwright.model import natural_order
from plugwright.plugins.nvidia.driver import Links
from plugwright.plugins.nvidia.sharing import Unit
from plugwright.plugins.nvidia.topology.chooser import Chooser
from plugwright.plugins.nvidia.topology.scores import pair_scores

__all__ = ["Choose", "Policy", "Preference", "Stock", "packed", "spread"]

Choose = Callable[[Iterable[int], Iterable[int], int], Sequence[int]]  # so many of these, with those among them


@dataclass(frozen=True, slots=True)
class Stock:
    """Units by holder: those there are, those that are free, and those of the free that the container gets anyway."""

    total: Mapping[int, int]
    free: Mapping[int, int]
    required: Mapping[int, int]

    def open(self, taken: Mapping[int, int]) -> dict[int, int]:
        """What more could be taken of each holder that has more."""
        left = {holder: count - taken.get(holder, 0) for holder, count in sorted(self.free.items())}
        return {holder: count for holder, count in left.items() if count > 0}


def spread(stock: Stock, size: int, choose: Choose) -> dict[int, int]:
    """One unit of each holder before a second one of any; those with the fewest units in use first."""
    taken = {holder: count for holder, count in stock.required.items() if count}
    while (missing := size - sum(taken.values())) > 0 and (candidates := stock.open(taken)):
        in_use = {each: (taken.get(each, 0), stock.total.get(each, 0) - stock.free[each]) for each in candidates}
        least = min(in_use.values())
        equal = [each for each in candidates if in_use[each] == least]
        for holder in _some(equal, taken, missing, choose):
            taken[holder] = taken.get(holder, 0) + 1
    return taken


def packed(stock: Stock, size: int, choose: Choose) -> dict[int, int]:
    """As few holders as can be; of those that would do, the ones with the fewest units left."""
    taken = {holder: count for holder, count in stock.required.items() if count}
    company = list(taken)
    _fill(taken, stock, company, size)
    missing = size - sum(taken.values())
    candidates = {holder: count for holder, count in stock.open(taken).items() if holder not in company}
    if missing > 0 and candidates:
        _fill(taken, stock, _few(candidates, company, missing, choose), size)
    return taken


def _some(equal: Sequence[int], taken: Collection[int], missing: int, choose: Choose) -> Iterable[int]:
    if len(equal) <= missing:
        return equal
    fresh = [holder for holder in equal if holder not in taken]
    if not fresh:  # all of them have some already: no other links by any of them
        return equal[:missing]
    chosen = choose([*fresh, *taken], taken, len(taken) + missing)
    return [holder for holder in chosen if holder not in taken]


def _few(candidates: Mapping[int, int], company: Sequence[int], missing: int, choose: Choose) -> Iterable[int]:
    """The holders to take the missing units from: as few as can be."""
    most = sorted(candidates, key=lambda holder: (-candidates[holder], holder))
    count = next(
        (few for few in range(1, len(most)) if sum(candidates[one] for one in most[:few]) >= missing), len(most)
    )
    least = -(-missing // count)
    enough = [holder for holder in candidates if candidates[holder] >= least]
    if count == 1:
        fitting = min(candidates[holder] for holder in enough) if enough else 0
        enough = [holder for holder in enough if candidates[holder] == fitting]
    if len(enough) < count:
        return most[:count]
    return [each for each in choose([*enough, *company], company, len(company) + count) if each not in company]


def _fill(taken: dict[int, int], stock: Stock, holders: Iterable[int], size: int) -> None:
    """Takes what is missing of these holders: all of the emptiest one that has enough, else whatever they have."""
    allowed = set(holders)
    while (missing := size - sum(taken.values())) > 0:
        left = {holder: count for holder, count in stock.open(taken).items() if holder in allowed}
        if not left:
            return
        enough = {holder: count for holder, count in left.items() if count >= missing}
        holder = min(enough or left, key=lambda each: (left[each], each))
        taken[holder] = taken.get(holder, 0) + min(missing, left[holder])


class Policy(StrEnum):
    """Where the units of one container should be, when a GPU has several."""

    SPREAD = "spread"  # on as many GPUs as can be, the least used ones first
    PACKED = "packed"  # on as few GPUs as can be, the most used ones first


class Preference:
    """For the units of one resource and the links of their GPUs; to be made anew when either changes."""

    def __init__(
        self,
        units: Iterable[Unit],
        links: Links,
        policy: Policy = Policy.SPREAD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        ordered = sorted(units, key=_order)
        gpus, devices = _numbered(unit.gpu.uuid for unit in ordered), _numbered(unit.uuid for unit in ordered)
        self._ids = [unit.id for unit in ordered]
        self._places = {each: place for place, each in enumerate(self._ids)}
        # By place: there may be thousands of units.
        self._gpus, self._devices = [gpus[unit.gpu.uuid] for unit in ordered], [devices[unit.uuid] for unit in ordered]
        self._per_gpu, self._per_device = Counter(self._gpus), Counter(self._devices)
        self._count = packed if policy is Policy.PACKED else spread
        self._chooser = Chooser(pair_scores(list(gpus), links), clock)

    def prefer(self, available: Collection[str], required: Collection[str], size: int) -> list[str]:
        """`size` ids, those required first; fewer where there are not so many. Unknown ids come last."""
        must, must_unknown = self._told_apart(required)
        free, unknown = self._told_apart({*available, *required})
        first = [*self._named(must), *must_unknown]
        chosen = self._of_gpus(free, frozenset(must), size - len(must_unknown)) if size > len(first) else []
        return list(dict.fromkeys([*first, *self._named(chosen), *unknown]))[: max(0, size)]

    def _told_apart(self, ids: Iterable[str]) -> tuple[list[int], list[str]]:
        """The places of those there are, in order; and the unknown ones."""
        distinct = set(ids)
        known = sorted(self._places[each] for each in distinct if each in self._places)
        return known, sorted((each for each in distinct if each not in self._places), key=natural_order)

    def _named(self, places: Iterable[int]) -> list[str]:
        return [self._ids[place] for place in sorted(places)]

    def _of_gpus(self, free: Sequence[int], must: frozenset[int], size: int) -> list[int]:
        by_gpu = _grouped(free, self._gpus)
        counts = self._count(_stock(self._per_gpu, by_gpu, must), size, self._chooser.choose)
        return [unit for gpu, count in counts.items() for unit in self._of_devices(by_gpu[gpu], must, count)]

    def _of_devices(self, free: Sequence[int], must: frozenset[int], size: int) -> list[int]:
        """Within one GPU: its MIG devices may be shared too."""
        by_device = _grouped(free, self._devices)
        counts = self._count(_stock(self._per_device, by_device, must), size, _lowest)
        return [unit for device, count in counts.items() for unit in _first(by_device[device], must, count)]


def _order(unit: Unit) -> tuple[int, str, int, int, str]:
    """As NVIDIA's tools count them."""
    mig = -1 if unit.mig is None else unit.mig.index
    return unit.gpu.index, unit.gpu.uuid, mig, -1 if unit.replica is None else unit.replica, unit.id


def _numbered(uuids: Iterable[str]) -> dict[str, int]:
    return {uuid: number for number, uuid in enumerate(dict.fromkeys(uuids))}


def _grouped(places: Iterable[int], holders: Sequence[int]) -> dict[int, list[int]]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    for place in places:
        found[holders[place]].append(place)
    return found


def _stock(total: Counter[int], free: dict[int, list[int]], must: frozenset[int]) -> Stock:
    required = {holder: len(must.intersection(places)) for holder, places in free.items()} if must else {}
    return Stock(total, {holder: len(places) for holder, places in free.items()}, required)


def _lowest(holders: Iterable[int], required: Iterable[int], size: int) -> list[int]:
    first = sorted(set(required))
    return [*first, *sorted(set(holders) - set(first))][:size]


def _first(places: Sequence[int], must: frozenset[int], count: int) -> list[int]:
    return sorted(places, key=lambda place: place not in must)[:count]
