"""The best GPUs for a request out of those that are free, such that what is left is good for the next ones.

In this order: everything free, cut into groups of the size asked for, keeps the highest score that such a cut can have;
the group handed out is the best one of such a cut; what is left can best be cut into pairs, then into fours, eights and
so on; the GPUs have the lowest numbers. Exact, unless the time is over: then it is the best that was found so far.

Every set of GPUs that a request could be given, up to likeness: of sets that leave the same shape, the best one.

Of equal ones it is the one with the lowest numbers, so that the same question always has the same answer. Which
candidate is the best is `choice`'s work.

A good set of GPUs in no time, for machines so large and so unordered that not every set can be looked at. Pure.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from plugwright.plugins.nvidia.topology.partition import Bounds, Branch, Cuts, Late, Shape, Shapes, Ways, bits, named
from plugwright.plugins.nvidia.topology.scores import Alike, Kin, Mesh, Scores, grown, meshes

__all__ = ["LIMIT", "Candidate", "Chooser", "Tree", "Wanted", "grabbed"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """`size` of `free`, which is more than that, with all of `required`, which are free and no more than that."""

    free: frozenset[int]
    required: frozenset[int]
    size: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """`gpus` has a bit for each, the highest for the first one: of two sets the greater has the lower numbers."""

    gpus: int
    score: int
    left: Shape


class Tree:
    """The GPUs of a machine by kinship."""

    def __init__(self, scores: Scores) -> None:
        self.count = len(scores)
        self._kin = grown(range(self.count), scores)
        self._inner = {mesh: _among(mesh.members, scores) for mesh in meshes(self._kin)}
        # Two meshes with the same links are one, so that what is known of one is known of the other.
        self._meshes = list(dict.fromkeys(self._inner.values()))

    def shapes(self) -> Shapes:
        """Of this machine, none of them seen yet."""
        return Shapes(self._meshes)

    def candidates(self, wanted: Wanted, cuts: Cuts) -> list[Candidate]:
        numbers = {mesh: self._meshes.index(inner) for mesh, inner in self._inner.items()}
        walk = _Walk(wanted, cuts, numbers, self.count)
        low = (1 << self.count) - 1
        return [
            Candidate(worth & low, worth >> self.count, left)
            for left, worth in next(walk.ways(self._kin, [wanted.size]))
        ]

    def bit(self, gpu: int) -> int:
        return 1 << (self.count - 1 - gpu)

    def named(self, gpus: int) -> tuple[int, ...]:
        """The numbers behind the bits of a candidate."""
        return tuple(gpu for gpu in range(self.count) if gpus & self.bit(gpu))


@dataclass(frozen=True, slots=True)
class _Walk:
    """Through the tree. A worth is a score, with the GPUs that have it in the low bits."""

    wanted: Wanted
    cuts: Cuts
    numbers: dict[Mesh, int]
    count: int

    def ways(self, kin: Kin, takes: Iterable[int]) -> Iterator[Ways]:
        return self._of_mesh(kin, takes) if isinstance(kin, Mesh) else self._of_alike(kin, takes)

    def _branch(self, kin: Kin) -> Branch:
        free = sum(1 for gpu in _members(kin) if gpu in self.wanted.free)
        return list(self.ways(kin, range(min(free, self.wanted.size) + 1)))

    def _of_mesh(self, mesh: Mesh, takes: Iterable[int]) -> Iterator[Ways]:
        known, number = self.cuts.shapes, self.numbers[mesh]
        shapes, sums = known.parts[number], known.sums[number]
        names = {1 << place: self._bit(gpu) for place, gpu in enumerate(mesh.members) if gpu in self.wanted.free}
        required = sum(1 << place for place, gpu in enumerate(mesh.members) if gpu in self.wanted.required)
        others = sum(names) - required
        for take in takes:
            found = self.cuts.sets(others, take - required.bit_count()) if take >= required.bit_count() else ()
            yield [
                (
                    shapes[others ^ each],
                    sums[each | required] << self.count | sum([names[bit] for bit in bits(each | required)]),
                )
                for some in found
                for each in some
            ]

    def _of_alike(self, alike: Alike, takes: Iterable[int]) -> Iterator[Ways]:
        free = [gpu for gpu in alike.singles if gpu in self.wanted.free]
        order = sorted(free, key=lambda gpu: (gpu not in self.wanted.required, gpu))
        least = sum(1 for gpu in free if gpu in self.wanted.required)
        worth = alike.score << self.count
        starts = [
            (take, len(free) - take, worth * (take * (take - 1) // 2) + sum(map(self._bit, order[:take])))
            for take in range(least, min(self.wanted.size, len(free)) + 1)
        ]
        branches = [branch for branch in map(self._branch, alike.branches) if len(branch) > 1]
        for take in takes:
            yield named(self.cuts.shapes, alike.score, self.cuts.combined(starts, branches, take, worth))

    def _bit(self, gpu: int) -> int:
        return 1 << (self.count - 1 - gpu)


def _members(kin: Kin) -> Iterator[int]:
    if isinstance(kin, Mesh):
        yield from kin.members
        return
    yield from kin.singles
    for branch in kin.branches:
        yield from _members(branch)


def _among(members: tuple[int, ...], scores: Scores) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(scores[one][other] for other in members) for one in members)


_MOST_STEPS = 100_000  # some hundredths of a second


def grabbed(scores: Scores, wanted: Wanted) -> tuple[int, ...]:
    """From what is required, or from each GPU in turn, always the one that goes best with those already taken."""
    starts = [sorted(wanted.required)] if wanted.required else [[gpu] for gpu in sorted(wanted.free)]
    most = max(1, _MOST_STEPS // (wanted.size * len(wanted.free)))
    found = [_from(start, scores, wanted) for start in starts[:most]]
    return max(found, key=lambda each: each[0])[1]


def _from(start: list[int], scores: Scores, wanted: Wanted) -> tuple[int, tuple[int, ...]]:
    taken, total = list(start), 0
    gains = {gpu: sum(scores[gpu][other] for other in taken) for gpu in sorted(wanted.free - set(taken))}
    while len(taken) < wanted.size:
        best = max(gains, key=gains.__getitem__)
        total += gains.pop(best)
        for gpu in gains:
            gains[gpu] += scores[gpu][best]
        taken.append(best)
    return total, tuple(sorted(taken))


LIMIT = 0.1  # seconds; the kubelet admits no other pod meanwhile
_MOST_SHAPES = 20_000  # some MiB; a machine with its links in good order has hundreds
_MOST_ANSWERS = 256


class Chooser:
    """For one machine; what was worked out once is remembered."""

    def __init__(self, scores: Scores, clock: Callable[[], float] = time.monotonic, limit: float = LIMIT) -> None:
        self._scores, self._clock, self._limit = scores, clock, limit
        self._end = 0.0
        self._tree = Tree(scores)
        self._answers: dict[Wanted, tuple[int, ...]] = {}
        self._cuts = self._nothing_known()

    def choose(self, free: Iterable[int], required: Iterable[int], size: int) -> tuple[int, ...]:
        """`size` of `free`, all of `required` among them, in order; fewer where there are not so many."""
        must = frozenset(required)
        wanted = Wanted(must | frozenset(free), must, size)
        if size <= len(must):
            return tuple(sorted(must)[: max(0, size)])
        if size >= len(wanted.free):
            return tuple(sorted(wanted.free))
        return self._answers.get(wanted) or self._worked_out(wanted)

    def _nothing_known(self) -> Cuts:
        return Cuts(self._tree.shapes(), self._is_late)

    def _is_late(self) -> bool:
        return self._clock() >= self._end

    def _worked_out(self, wanted: Wanted) -> tuple[int, ...]:
        self._end = self._clock() + self._limit
        best: list[Candidate] = []
        try:
            for best in self._ever_better(wanted):  # noqa: B007  the last one counts
                pass
        except Late:
            answer = self._named(best) if best else grabbed(self._scores, wanted)
        else:
            answer = self._remembered(wanted, self._named(best))
        if len(self._cuts.shapes.made) > _MOST_SHAPES:
            self._cuts = self._nothing_known()
        return answer

    def _named(self, best: list[Candidate]) -> tuple[int, ...]:
        return self._tree.named(max(each.gpus for each in best))

    def _remembered(self, wanted: Wanted, answer: tuple[int, ...]) -> tuple[int, ...]:
        if len(self._answers) >= _MOST_ANSWERS:
            self._answers.clear()
        self._answers[wanted] = answer
        return answer

    def _ever_better(self, wanted: Wanted) -> Iterator[list[Candidate]]:
        """The best candidates so far, equally good ones, until they are the best there are."""
        best: list[Candidate] = []
        for best in self._highest(wanted):
            yield best
        size = 2
        while len(best) > 1 and size < len(wanted.free):
            kept = [self._cuts.best(each.left, size) for each in best]
            best = [each for each, score in zip(best, kept, strict=True) if score == max(kept)]
            yield best
            size *= 2

    def _highest(self, wanted: Wanted) -> Iterator[list[Candidate]]:
        """By the score of the cut, then by their own. All scores twice, as in `bounds`."""
        highest = (0, 0)
        best: list[Candidate] = []
        for most, candidate in self._ranked(wanted):
            if best and (most, candidate.score) < highest:
                return  # nor can any of the others be better: those who could be the best come first
            reached = 2 * (candidate.score + self._cuts.best(candidate.left, wanted.size)), candidate.score
            if not best or reached > highest:
                highest, best = reached, []
            if reached == highest:
                best = [*best, candidate]
            yield best

    def _ranked(self, wanted: Wanted) -> list[tuple[int, Candidate]]:
        """Each candidate with what the cut can reach with it at most; the highest first."""
        size, left = wanted.size, len(wanted.free) - wanted.size
        found = self._tree.candidates(wanted, self._cuts)
        bounds = self._cuts.bounds = Bounds(self._scores, sorted(wanted.free))
        if not wanted.required:
            bounds.learn(size, max(each.score for each in found))
        each = {self._tree.bit(gpu): most for gpu, most in bounds.each(size).items()}
        together = sum(each.values()) - bounds.lost(size, left % size)
        most = bounds.most(left, size)
        ranked = [
            (2 * one.score + min(most, together - sum([each[bit] for bit in bits(one.gpus)])), one) for one in found
        ]
        return sorted(ranked, key=lambda pair: (pair[0], pair[1].score, pair[1].gpus), reverse=True)
