"""How well a set of GPUs can be cut into groups of one size: the highest sum of pair scores within the groups.

What does not fill a group makes one smaller group, whose pairs count too. Exact, or `Late`. Nothing is worked out
twice: sets are known by their shapes, and `shapes` has few of them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, islice
from math import comb
from operator import itemgetter

from plugwright.plugins.nvidia.topology.bounds import Bounds
from plugwright.plugins.nvidia.topology.shapes import Alikes, Part, Shape, Shapes, bits

__all__ = ["MOST_SETS", "Branch", "Cuts", "Late", "Ways", "named"]

MOST_SETS = 20_000  # tried one by one: all of 16 GPUs in a mesh; more takes longer than anybody waits
_AT_A_TIME = 100  # before the next look at the clock

Ways = list[tuple[Shape, int]]  # what may be left, and the most that what was taken is worth
Branch = Sequence[Ways]  # by how many are taken of it
Start = tuple[int, int, int]  # single GPUs: how many are taken, how many are left, the worth of those taken
Left = tuple[int, tuple[Shape, ...]]  # how many single GPUs, and which branches
_Found = dict[tuple[int, int, tuple[Shape, ...]], int]  # by how many are taken, and what is left: the worth


class Late(Exception):
    """The time for an exact answer is over."""


class Cuts:
    """Answers about shapes, remembered. `bounds` are for the GPUs that the shapes asked for are made of."""

    def __init__(self, shapes: Shapes, is_late: Callable[[], bool]) -> None:
        self.shapes, self._is_late = shapes, is_late
        self.bounds = Bounds((), ())
        self._best: dict[tuple[Shape, int], int] = {}
        self._branches: dict[tuple[Shape, int, bool], Branch] = {}

    def best(self, shape: Shape, size: int) -> int:
        """The highest score of a cut into groups of this size."""
        count = self.shapes.sizes[shape]
        if count <= size:
            return self.shapes.wholes[shape]
        if size == 1:
            return 0
        found = self._best.get((shape, size))
        if found is None:
            found = self._best[shape, size] = self._worked_out(shape, size)
        return found

    def _worked_out(self, shape: Shape, size: int) -> int:
        """Any GPU will do to start from: it is in a full group or in the smaller one."""
        if self._is_late():
            raise Late
        count = self.shapes.sizes[shape]
        best = self._best_with(self._take(shape, size, first=True), count - size, size)
        if count % size:
            groups = self._take(shape, count % size, first=True)
            best = max(best, self._best_with(groups, count - count % size, size))
        return best

    def _best_with(self, groups: Ways, left: int, size: int) -> int:
        groups.sort(key=itemgetter(1), reverse=True)
        most = self.bounds.most(left, size)
        best = groups[0][1] + self.best(groups[0][0], size)
        for shape, worth in groups:
            if 2 * (worth - best) + most <= 0:
                break  # nor will any of the others, which are worth less
            best = max(best, worth + self.best(shape, size))
        return best

    def _take(self, shape: Shape, count: int, first: bool) -> Ways:
        """Every way to take so many, up to likeness; `first`: with one certain GPU."""
        made = self.shapes.made[shape]
        return self._of_mesh(made, count, first) if isinstance(made, Part) else self._of_alikes(made, count, first)

    def _of_mesh(self, part: Part, count: int, first: bool) -> Ways:
        shapes, sums = self.shapes.parts[part.mesh], self.shapes.sums[part.mesh]
        low = part.mask & -part.mask if first else 0
        rest = part.mask ^ low
        return [(shapes[rest ^ each], sums[low | each]) for some in self.sets(rest, count - first) for each in some]

    def _of_alikes(self, alikes: Alikes, count: int, first: bool) -> Ways:
        score, singles = alikes.score, alikes.singles
        takes = range(1 if first and singles else 0, min(count, singles) + 1)
        starts = [(take, singles - take, score * (take * (take - 1) // 2)) for take in takes]
        branches = [self._branch(each, count) for each in alikes.branches]
        if first and not singles:  # from the smallest branch: what is scattered leaves the fewest ways
            branches[0] = self._branch(alikes.branches[0], count, first=True)
        return named(self.shapes, score, self.combined(starts, branches, count, score))

    def _branch(self, shape: Shape, count: int, first: bool = False) -> Branch:
        """Every way to take up to so many."""
        key = (shape, min(count, self.shapes.sizes[shape]), first)
        found = self._branches.get(key)
        if found is None:
            nothing: Ways = [] if first else [(shape, 0)]
            found = self._branches[key] = [nothing, *(self._take(shape, take, first) for take in range(1, key[1] + 1))]
        return found

    def sets(self, free: int, count: int) -> Iterator[list[int]]:
        """Every set of so many GPUs out of a mask, some at a time."""
        if comb(free.bit_count(), count) > MOST_SETS:
            raise Late
        every = combinations(bits(free), count)
        while some := [sum(each) for each in islice(every, _AT_A_TIME)]:
            if self._is_late():
                raise Late
            yield some

    def combined(self, starts: Iterable[Start], branches: Sequence[Branch], count: int, score: int) -> dict[Left, int]:
        """Every way to take `count` of single GPUs and branches, any two of them with this score: what is left."""
        reach = sum(len(each) - 1 for each in branches)
        found: _Found = {(taken, left, ()): worth for taken, left, worth in starts if count - reach <= taken <= count}
        for branch in branches:
            reach -= len(branch) - 1
            found = self._with(branch, found, range(count - reach, count + 1), score)
        return {(singles, left): worth for (_, singles, left), worth in found.items()}

    def _with(self, branch: Branch, found: _Found, within: range, score: int) -> _Found:
        """The ways so far, each with every way to take some of one more branch."""
        more: _Found = {}
        for (taken, singles, left), worth in found.items():
            if len(more) > MOST_SETS or self._is_late():
                raise Late
            for take in range(max(0, within.start - taken), min(len(branch), within.stop - taken)):
                across = worth + score * taken * take
                for shape, won in branch[take]:
                    key = (taken + take, singles, tuple(sorted((*left, shape))))
                    before = more.get(key)
                    if before is None or before < across + won:
                        more[key] = across + won
        return more


def named(shapes: Shapes, score: int, found: dict[Left, int]) -> Ways:
    """By shape, each once."""
    best: dict[Shape, int] = {}
    for (singles, branches), worth in found.items():
        shape = shapes.alike(score, singles, branches)
        best[shape] = max(worth, best.get(shape, worth))
    return list(best.items())
