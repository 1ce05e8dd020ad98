"""What no cut into groups can exceed: a GPU in a group of four has three partners, at best its three best ones.

Everything is counted twice, once for each GPU of a pair, so that the numbers stay whole. Pure.
"""

from collections.abc import Sequence
from itertools import accumulate

from plugwright.plugins.nvidia.topology.pairs import Scores

__all__ = ["Bounds"]


class Bounds:
    """Over some GPUs of a machine, and so over any set of these."""

    def __init__(self, scores: Scores, members: Sequence[int]) -> None:
        # By GPU: its best partner, its two best ones, and so on.
        self._partners = {
            one: [0, *accumulate(sorted([scores[one][other] for other in members if other != one], reverse=True))]
            for one in members
        }
        self._groups: dict[int, int] = {}
        self._known: dict[tuple[int, int], tuple[int, int, int, int]] = {}

    def learn(self, size: int, score: int) -> None:
        """That no group of this size has a higher score."""
        self._groups[size] = 2 * score

    def each(self, size: int) -> dict[int, int]:
        """By GPU: what it can have in a group of this size."""
        return {one: partners[min(size, len(partners)) - 1] for one, partners in self._partners.items()}

    def lost(self, size: int, rest: int) -> int:
        """What is lost at least because the last group has `rest` GPUs only, 0 for no such group."""
        if not rest:
            return 0
        full, less = self.each(size), self.each(rest)
        return sum(sorted(full[one] - less[one] for one in full)[:rest])

    def most(self, count: int, size: int) -> int:
        """For any set of so many GPUs: each at its best, or each group at its best, whichever is less."""
        key = (size, count % size)
        if key not in self._known:
            self._known[key] = self._worked_out(*key)
        each, lost, group, rest = self._known[key]
        return min(count * each - lost, count // size * group + rest)

    def _worked_out(self, size: int, rest: int) -> tuple[int, int, int, int]:
        """The most for a GPU, what is lost by the last group, and the most for a group and for the last one."""
        each = max(self.each(size).values(), default=0)
        last = rest * max(self.each(rest).values(), default=0) if rest else 0
        return each, self.lost(size, rest), self._groups.get(size, size * each), last
