"""How many units of each GPU a container gets, where a GPU has several: on as many GPUs as can be, or on as few.

A holder is a GPU, or within one a MIG device. Among holders that are equally good somebody else chooses: for GPUs it is
`topology.choice`, by their links. Pure.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Choose", "Stock", "packed", "spread"]

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
