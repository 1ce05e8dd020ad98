"""Every set of GPUs that a request could be given, up to likeness: of sets that leave the same shape, the best one.

Of equal ones it is the one with the lowest numbers, so that the same question always has the same answer. Which
candidate is the best is `choice`'s work.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from plugwright.plugins.nvidia.topology.cuts import Branch, Cuts, Ways, named
from plugwright.plugins.nvidia.topology.kinship import Alike, Kin, Mesh, grown, meshes
from plugwright.plugins.nvidia.topology.pairs import Scores
from plugwright.plugins.nvidia.topology.shapes import Shape, Shapes, bits

__all__ = ["Candidate", "Tree", "Wanted"]


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
