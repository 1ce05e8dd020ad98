"""Sets of GPUs with their names forgotten: two sets of one shape are as good as each other.

A machine with 65,536 sets of GPUs has a few hundred shapes, unless its links are in no order at all. How well they can
be cut into groups is `cuts`' work.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from plugwright.plugins.nvidia.topology.pairs import Scores

__all__ = ["Alikes", "Part", "Shape", "Shapes", "bits"]

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
