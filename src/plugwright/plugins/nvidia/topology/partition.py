"""The best partition of a set of GPUs into groups of one size: the highest sum of pair scores within the groups.

The remaining GPUs form one smaller group, whose pairs count too. Exact, or `TimeLimitExceeded`.

Sets are identified by their shape, which omits the names of the GPUs: a machine with 65,536 sets of GPUs has a few
hundred shapes, unless its links have no regularity. `Partitioner` computes each shape once, and `ScoreBounds` excludes
worse candidates. Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, combinations, islice
from math import comb
from operator import itemgetter

import msgspec

from plugwright.plugins.nvidia.topology.scores import Scores

__all__ = [
    "MAX_SETS",
    "Branch",
    "MeshShape",
    "Partitioner",
    "ScoreBounds",
    "Shape",
    "ShapeTable",
    "Subsets",
    "TimeLimitExceeded",
    "UniformShape",
    "best_by_shape",
    "bits",
]

MAX_SETS = 20_000  # tried one by one: all sets of 16 GPUs in a mesh; more would take too long
_BATCH = 100  # sets between two checks of the clock
_SMALL_MESH = 8  # GPUs; a mesh of this size has 256 sets

Shape = int  # its number in a `ShapeTable`
Subsets = list[tuple[Shape, int]]  # the shape of the GPUs that are left, and the highest score of those taken
Branch = Sequence[Subsets]  # by the number of GPUs taken
SinglesTaken = tuple[int, int, int]  # single GPUs: how many are taken, how many are left, the score of those taken
Remainder = tuple[int, tuple[Shape, ...]]  # how many single GPUs are left, and the shapes of the branches
_Combinations = dict[tuple[int, int, tuple[Shape, ...]], int]  # the score by the number taken and the remainder


class TimeLimitExceeded(Exception):
    """There was not enough time for an exact result."""


class UniformShape(msgspec.Struct, frozen=True):
    """Single GPUs and larger branches, smallest first, any two of which have the same score between them."""

    score: int
    singles: int
    branches: tuple[Shape, ...]


class MeshShape(msgspec.Struct, frozen=True):
    """Some GPUs of a mesh: `mask` has a bit for each."""

    mesh: int
    mask: int


class Partitioner:
    """Partitions shapes, and caches the results. `bounds` are for the GPUs of the present shapes."""

    def __init__(self, shapes: "ShapeTable", is_late: Callable[[], bool]) -> None:
        self.shapes, self._is_late = shapes, is_late
        self.bounds = ScoreBounds((), ())
        self._best: dict[tuple[Shape, int], int] = {}
        self._branches: dict[tuple[Shape, int, bool], Branch] = {}

    def best(self, shape: Shape, size: int) -> int:
        """The highest score of a partition into groups of this size."""
        count = self.shapes.sizes[shape]
        if count <= size:
            return self.shapes.wholes[shape]
        if size == 1:
            return 0
        best = self._best.get((shape, size))
        if best is None:
            best = self._best[shape, size] = self._compute_best(shape, size)
        return best

    def subsets(self, free: int, count: int) -> Iterator[list[int]]:
        """Every set of `count` GPUs of a mask, in batches."""
        if comb(free.bit_count(), count) > MAX_SETS:
            raise TimeLimitExceeded
        all_sets = combinations(bits(free), count)
        while batch := [sum(gpus) for gpus in islice(all_sets, _BATCH)]:
            if self._is_late():
                raise TimeLimitExceeded
            yield batch

    def combined(
        self, singles: Iterable[SinglesTaken], branches: Sequence[Branch], count: int, score: int
    ) -> dict[Remainder, int]:
        """Every remainder after taking `count` of single GPUs and branches, any two of them with this score."""
        reach = sum(len(branch) - 1 for branch in branches)
        results: _Combinations = {
            (taken, left, ()): total for taken, left, total in singles if count - reach <= taken <= count
        }
        for branch in branches:
            reach -= len(branch) - 1
            results = self._with_branch(branch, results, range(count - reach, count + 1), score)
        return {(singles_left, left): total for (_, singles_left, left), total in results.items()}

    def _compute_best(self, shape: Shape, size: int) -> int:
        """Starts with any GPU, which is in a full group or in the smaller group."""
        if self._is_late():
            raise TimeLimitExceeded
        count = self.shapes.sizes[shape]
        best = self._best_with(self._take(shape, size, first=True), count - size, size)
        if count % size:
            groups = self._take(shape, count % size, first=True)
            best = max(best, self._best_with(groups, count - count % size, size))
        return best

    def _best_with(self, groups: Subsets, left: int, size: int) -> int:
        groups.sort(key=itemgetter(1), reverse=True)
        most = self.bounds.most(left, size)
        best = groups[0][1] + self.best(groups[0][0], size)
        for shape, score in groups:
            if 2 * (score - best) + most <= 0:
                break  # the remaining groups have lower scores
            best = max(best, score + self.best(shape, size))
        return best

    def _take(self, shape: Shape, count: int, first: bool) -> Subsets:
        """Every way to take `count` GPUs, one for each remaining shape; `first`: with one specific GPU."""
        made = self.shapes.made[shape]
        if isinstance(made, MeshShape):
            return self._take_from_mesh(made, count, first)
        return self._take_from_uniform(made, count, first)

    def _take_from_mesh(self, part: MeshShape, count: int, first: bool) -> Subsets:
        shapes, sums = self.shapes.parts[part.mesh], self.shapes.sums[part.mesh]
        low = part.mask & -part.mask if first else 0
        rest = part.mask ^ low
        return [
            (shapes[rest ^ gpus], sums[low | gpus]) for batch in self.subsets(rest, count - first) for gpus in batch
        ]

    def _take_from_uniform(self, uniform: UniformShape, count: int, first: bool) -> Subsets:
        score, singles = uniform.score, uniform.singles
        takes = range(1 if first and singles else 0, min(count, singles) + 1)
        starts = [(take, singles - take, score * (take * (take - 1) // 2)) for take in takes]
        branches = [self._branch(branch, count) for branch in uniform.branches]
        if first and not singles:  # from the smallest branch, which leaves the fewest ways
            branches[0] = self._branch(uniform.branches[0], count, first=True)
        return best_by_shape(self.shapes, score, self.combined(starts, branches, count, score))

    def _branch(self, shape: Shape, count: int, first: bool = False) -> Branch:
        """Every way to take up to `count` GPUs."""
        key = (shape, min(count, self.shapes.sizes[shape]), first)
        branch = self._branches.get(key)
        if branch is None:
            nothing: Subsets = [] if first else [(shape, 0)]
            branch = self._branches[key] = [nothing, *(self._take(shape, take, first) for take in range(1, key[1] + 1))]
        return branch

    def _with_branch(self, branch: Branch, before: _Combinations, within: range, score: int) -> _Combinations:
        """The combinations so far, extended by every way to take GPUs from one more branch."""
        results: _Combinations = {}
        for (taken, singles, left), total in before.items():
            if len(results) > MAX_SETS or self._is_late():
                raise TimeLimitExceeded
            for take in range(max(0, within.start - taken), min(len(branch), within.stop - taken)):
                across = total + score * taken * take
                for shape, gain in branch[take]:
                    key = (taken + take, singles, tuple(sorted((*left, shape))))
                    known = results.get(key)
                    if known is None or known < across + gain:
                        results[key] = across + gain
        return results


class ScoreBounds:
    """Upper bounds for every set of these GPUs: in a group of four a GPU has at best its three best partners.

    Every pair counts twice, once for each of its GPUs, to keep integers.
    """

    def __init__(self, scores: Scores, members: Sequence[int]) -> None:
        # By GPU: the score with its best partner, with its two best ones, and so on.
        self._partners = {
            one: [0, *accumulate(sorted([scores[one][other] for other in members if other != one], reverse=True))]
            for one in members
        }
        self._groups: dict[int, int] = {}
        self._known: dict[tuple[int, int], tuple[int, int, int, int]] = {}

    def limit_group(self, size: int, score: int) -> None:
        """States: no group of this size has a higher score."""
        self._groups[size] = 2 * score

    def per_gpu(self, size: int) -> dict[int, int]:
        """The bound of each GPU in a group of this size."""
        return {gpu: partners[min(size, len(partners)) - 1] for gpu, partners in self._partners.items()}

    def lost(self, size: int, rest: int) -> int:
        """The least loss because the last group has only `rest` GPUs, 0 without such a group."""
        if not rest:
            return 0
        full, less = self.per_gpu(size), self.per_gpu(rest)
        return sum(sorted(full[gpu] - less[gpu] for gpu in full)[:rest])

    def most(self, count: int, size: int) -> int:
        """The bound of any set of `count` GPUs: by GPU or by group, whichever is lower."""
        key = (size, count % size)
        if key not in self._known:
            self._known[key] = self._compute(*key)
        gpu, lost, group, rest = self._known[key]
        return min(count * gpu - lost, count // size * group + rest)

    def _compute(self, size: int, rest: int) -> tuple[int, int, int, int]:
        """The bounds of one GPU and of one group, the loss of the last group, and its bound."""
        gpu = max(self.per_gpu(size).values(), default=0)
        last = rest * max(self.per_gpu(rest).values(), default=0) if rest else 0
        return gpu, self.lost(size, rest), self._groups.get(size, size * gpu), last


class ShapeTable:
    """Every shape seen so far, by number. The numbers are valid only for this table."""

    def __init__(self, meshes: Iterable[Scores] = ()) -> None:
        self.sums = [_Sums(scores) for scores in meshes]
        self.parts = [_Parts(self, mesh) for mesh in range(len(self.sums))]  # by mask
        self.made: list[UniformShape | MeshShape] = []
        self.sizes: list[int] = []
        self.wholes: list[int] = []  # the score of all its GPUs as one group
        self._numbers: dict[tuple[int, ...], Shape] = {}

    def uniform(self, score: int, singles: int, branches: Iterable[Shape] = ()) -> Shape:
        """Single GPUs and branches, any two of which have this score between them."""
        sizes, larger = self.sizes, []
        for branch in branches:
            if sizes[branch] > 1:
                larger.append(branch)
            else:
                singles += sizes[branch]
        if not singles and len(larger) == 1:
            return larger[0]
        key = (score if singles + len(larger) > 1 else 0, singles, *sorted(larger))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._add_uniform(*key)
        return number

    def add_part(self, mesh: int, mask: int) -> Shape:
        """Adds a mask that is missing in `parts`."""
        size = mask.bit_count()
        return self._add(MeshShape(mesh, mask), size, self.sums[mesh][mask]) if size > 1 else self.uniform(0, size)

    def _add_uniform(self, score: int, singles: int, *branches: Shape) -> Shape:
        size = whole = 0
        for count, within in [(1, 0)] * singles + [(self.sizes[branch], self.wholes[branch]) for branch in branches]:
            whole += within + score * size * count
            size += count
        return self._add(UniformShape(score, singles, tuple(sorted(branches, key=self.sizes.__getitem__))), size, whole)

    def _add(self, made: UniformShape | MeshShape, size: int, whole: int) -> Shape:
        self.made.append(made)
        self.sizes.append(size)
        self.wholes.append(whole)
        return len(self.made) - 1


def best_by_shape(shapes: ShapeTable, score: int, results: dict[Remainder, int]) -> Subsets:
    """Remainders as shapes, each with its highest score."""
    best: dict[Shape, int] = {}
    for (singles, branches), total in results.items():
        shape = shapes.uniform(score, singles, branches)
        best[shape] = max(total, best.get(shape, total))
    return list(best.items())


def bits(mask: int) -> list[int]:
    """The bits of the mask as separate masks, lowest first."""
    single_bits = []
    while mask:
        low = mask & -mask
        single_bits.append(low)
        mask ^= low
    return single_bits


# The same masks are looked up very often: a dictionary that fills itself saves the call.
class _Sums(dict[int, int]):
    """The sum of pair scores within each set of a mesh."""

    def __init__(self, scores: Scores) -> None:
        super().__init__({0: 0})
        self._scores = scores
        for mask in range(1 << len(scores) if len(scores) <= _SMALL_MESH else 0):
            self[mask]  # now, and not while a pod waits

    def __missing__(self, mask: int) -> int:
        low = mask & -mask
        row = self._scores[low.bit_length() - 1]
        self[mask] = total = self[mask ^ low] + sum([row[bit.bit_length() - 1] for bit in bits(mask ^ low)])
        return total


class _Parts(dict[int, Shape]):
    """The shape of each set of a mesh."""

    def __init__(self, shapes: ShapeTable, mesh: int) -> None:
        super().__init__()
        self._shapes, self._mesh = shapes, mesh

    def __missing__(self, mask: int) -> Shape:
        self[mask] = shape = self._shapes.add_part(self._mesh, mask)
        return shape
