"""Which units a container should get: GPUs that are well linked, and shares of GPUs packed or spread.

Never fails, whatever is asked: the kubelet refuses a pod over an error, and can do without a good answer. The links are
weighed in `topology`, shares are counted in `packing`.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from plugwright.model import natural_order
from plugwright.plugins.nvidia.gpus import Links
from plugwright.plugins.nvidia.packing import Stock, packed, spread
from plugwright.plugins.nvidia.sharing import Unit
from plugwright.plugins.nvidia.topology.choice import Chooser
from plugwright.plugins.nvidia.topology.pairs import scores

__all__ = ["Policy", "Preference"]


class Policy(StrEnum):
    """Where the units of one container should be, when a GPU has several."""

    SPREAD = "spread"  # on as many GPUs as can be, the least used ones first
    PACKED = "packed"  # on as few GPUs as can be, the most used ones first


@dataclass(frozen=True, slots=True)
class _Place:
    """Of a unit: its GPU and its device by number, and its own place among all units."""

    gpu: int
    device: int
    order: int


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
        gpus = list(dict.fromkeys(unit.gpu.uuid for unit in ordered))
        devices = {uuid: number for number, uuid in enumerate(dict.fromkeys(unit.uuid for unit in ordered))}
        numbers = {uuid: number for number, uuid in enumerate(gpus)}
        self._places = {
            unit.id: _Place(numbers[unit.gpu.uuid], devices[unit.uuid], order) for order, unit in enumerate(ordered)
        }
        self._per_gpu = Counter(place.gpu for place in self._places.values())
        self._per_device = Counter(place.device for place in self._places.values())
        self._count = packed if policy is Policy.PACKED else spread
        self._chooser = Chooser(scores(gpus, links), clock)

    def prefer(self, available: Iterable[str], required: Iterable[str], size: int) -> list[str]:
        """`size` ids, those required first; fewer where there are not so many. Unknown ids come last."""
        must = sorted(set(required), key=self._rank)
        free = sorted({*available, *must}, key=self._rank)
        if size <= len(must):
            return must[: max(0, size)]
        known = [unit for unit in free if unit in self._places]
        unknown = [unit for unit in free if unit not in self._places]
        strangers = sum(1 for unit in must if unit not in self._places)
        chosen = self._of_gpus(known, frozenset(must), size - strangers)
        return list(dict.fromkeys([*must, *sorted(chosen, key=self._rank), *unknown]))[:size]

    def _rank(self, unit: str) -> tuple[object, ...]:
        place = self._places.get(unit)
        return (0, place.order) if place else (1, natural_order(unit))

    def _of_gpus(self, free: Sequence[str], must: frozenset[str], size: int) -> list[str]:
        by_gpu = _grouped(free, lambda unit: self._places[unit].gpu)
        counts = self._count(_stock(self._per_gpu, by_gpu, must), size, self._chooser.choose)
        return [unit for gpu, count in counts.items() for unit in self._of_devices(by_gpu[gpu], must, count)]

    def _of_devices(self, free: Sequence[str], must: frozenset[str], size: int) -> list[str]:
        """Within one GPU: its MIG devices may be shared too."""
        by_device = _grouped(free, lambda unit: self._places[unit].device)
        counts = self._count(_stock(self._per_device, by_device, must), size, _lowest)
        return [unit for device, count in counts.items() for unit in _first(by_device[device], must, count)]


def _order(unit: Unit) -> tuple[object, ...]:
    # NVIDIA's own order is by index; ids decide between units that have none.
    mig = -1 if unit.mig is None else unit.mig.index
    return (unit.gpu.index, unit.gpu.uuid, mig, -1 if unit.replica is None else unit.replica, natural_order(unit.id))


def _grouped(units: Iterable[str], holder_of: Callable[[str], int]) -> dict[int, list[str]]:
    found: defaultdict[int, list[str]] = defaultdict(list)
    for unit in units:
        found[holder_of(unit)].append(unit)
    return found


def _stock(total: Counter[int], free: dict[int, list[str]], must: frozenset[str]) -> Stock:
    required = {holder: sum(1 for unit in units if unit in must) for holder, units in free.items()}
    return Stock(total, {holder: len(units) for holder, units in free.items()}, required)


def _lowest(holders: Iterable[int], required: Iterable[int], size: int) -> list[int]:
    first = sorted(set(required))
    return sorted([*first, *sorted(set(holders) - set(first))][:size])


def _first(units: Sequence[str], must: frozenset[str], count: int) -> list[str]:
    return sorted(units, key=lambda unit: unit not in must)[:count]
