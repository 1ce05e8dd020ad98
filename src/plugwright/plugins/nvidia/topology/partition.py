"""What no cut into groups can exceed: a GPU in a group of four has three partners, at best its three best ones.

Everything is counted twice, once for each GPU of a pair, so that the numbers stay whole. Pure.

How well a set of GPUs can be cut into groups of one size: the highest sum of pair scores within the groups.

What does not fill a group makes one smaller group, whose pairs count too. Exact, or `Late`. Nothing is worked out
twice: sets are known by their shapes, and `shapes` has few of them.

Sets of GPUs with their names forgotten: two sets of one shape are as good as each other.

A machine with 65,536 sets of GPUs has a few hundred shapes, unless its links are in no order at all. How well they can
be cut into groups is `cuts`' work.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, islice
from math import comb
from operator import itemgetter

from plugwright.plugins.nvidia.topology.scores import Scores

__all__ = [
    "MOST_SETS",
    "Alikes",
    "Bounds",
    "Branch",
    "Cuts",
    "Late",
    "Part",
    "Shape",
    "Shapes",
    "Ways",
    "bits",
    "named",
]


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


Shape = int
_SMALL = 8  # GPUs in a mesh; so many have 256 sets


@dataclass(frozen=True, slots=True)
class Alikes:
    """Single GPUs and larger branches, the smallest first, any two of which have the same score between them."""

    score: int
    singles: int
    branches: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Some GPUs of a mesh: `mask` has a bit for each."""

    mesh: int
    mask: int


class Shapes:
    """Every shape seen so far, by number. The numbers are good for this object only."""

    def __init__(self, meshes: Iterable[Scores] = ()) -> None:
        self.sums = [_Sums(scores) for scores in meshes]
        self.parts = [_Parts(self, mesh) for mesh in range(len(self.sums))]  # by mask
        self.made: list[Alikes | Part] = []
        self.sizes: list[int] = []
        self.wholes: list[int] = []  # the score of all of it as one group
        self._numbers: dict[tuple[int, ...], Shape] = {}

    def alike(self, score: int, singles: int, branches: Iterable[Shape] = ()) -> Shape:
        """Single GPUs and branches, any two of which have this score between them."""
        sizes, kept = self.sizes, []
        for branch in branches:
            if sizes[branch] > 1:
                kept.append(branch)
            else:
                singles += sizes[branch]
        if not singles and len(kept) == 1:
            return kept[0]
        key = (score if singles + len(kept) > 1 else 0, singles, *sorted(kept))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._add_alike(*key)
        return number

    def add_part(self, mesh: int, mask: int) -> Shape:
        """For a mask that `parts` has not yet."""
        size = mask.bit_count()
        return self._add(Part(mesh, mask), size, self.sums[mesh][mask]) if size > 1 else self.alike(0, size)

    def _add_alike(self, score: int, singles: int, *branches: Shape) -> Shape:
        size = whole = 0
        for count, within in [(1, 0)] * singles + [(self.sizes[each], self.wholes[each]) for each in branches]:
            whole += within + score * size * count
            size += count
        return self._add(Alikes(score, singles, tuple(sorted(branches, key=self.sizes.__getitem__))), size, whole)

    def _add(self, made: Alikes | Part, size: int, whole: int) -> Shape:
        self.made.append(made)
        self.sizes.append(size)
        self.wholes.append(whole)
        return len(self.made) - 1


def bits(mask: int) -> list[int]:
    """Each bit of the mask as a mask of its own, the lowest first."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low)
        mask ^= low
    return found


# Both are asked for the same masks over and over: a dictionary that fills itself answers without a call.
class _Sums(dict[int, int]):
    """The sum of pair scores within each set of a mesh."""

    def __init__(self, scores: Scores) -> None:
        super().__init__({0: 0})
        self._scores = scores
        for mask in range(1 << len(scores) if len(scores) <= _SMALL else 0):
            self[mask]  # now, rather than while a pod waits

    def __missing__(self, mask: int) -> int:
        low = mask & -mask
        row = self._scores[low.bit_length() - 1]
        self[mask] = total = self[mask ^ low] + sum([row[bit.bit_length() - 1] for bit in bits(mask ^ low)])
        return total


class _Parts(dict[int, Shape]):
    """The shape of each set of a mesh."""

    def __init__(self, shapes: Shapes, mesh: int) -> None:
        super().__init__()
        self._shapes, self._mesh = shapes, mesh

    def __missing__(self, mask: int) -> Shape:
        self[mask] = shape = self._shapes.add_part(self._mesh, mask)
        return shape


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
