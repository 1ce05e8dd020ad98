"""How good it is to have two GPUs together: one whole number for each pair.

The nearer over PCIe the more points, and far more for each NVLink, through an NVSwitch or not. Who is chosen by these
numbers is `preference`'s work.

How the GPUs of a machine belong together: a tree in which the branches are alike in the eyes of the others.

Two GPUs under one PCIe switch are the same to everyone else, and so are two switches at one socket. `grown` finds all
of that in the scores alone, so that `cuts` need not try what differs in names only. Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from plugwright.plugins.nvidia.driver import Link, Links

__all__ = ["Alike", "Kin", "Mesh", "Scores", "grown", "meshes", "pair_scores", "score"]

Scores = Sequence[Sequence[int]]  # scores[i][j] == scores[j][i]; what is on the diagonal does not matter

_PER_LEVEL = 10
_PER_NVLINK = 100  # one link outweighs the nearest place on PCIe


def score(link: Link) -> int:
    return _PER_LEVEL * link.level + _PER_NVLINK * link.nvlinks


def pair_scores(gpus: Sequence[str], links: Links) -> list[list[int]]:
    """The scores of every pair of these GPUs, in their order."""
    return [[score(links.between(one, other)) if one != other else 0 for other in gpus] for one in gpus]


@dataclass(frozen=True, slots=True)
class Alike:
    """Any two GPUs of different branches have the same score."""

    score: int
    singles: tuple[int, ...]  # branches of one GPU
    branches: tuple["Kin", ...] = ()


@dataclass(frozen=True, slots=True)
class Mesh:
    """GPUs linked in no such order, as in a cube mesh: each one counts for itself."""

    members: tuple[int, ...]


Kin = Alike | Mesh


def grown(members: Sequence[int], scores: Scores) -> Kin:
    """The tree over these GPUs."""
    for score in sorted({scores[one][other] for one in members for other in members if one < other}):
        branches = _apart(members, scores, score)
        if len(branches) > 1:
            singles = tuple(branch[0] for branch in branches if len(branch) == 1)
            return Alike(score, singles, tuple(grown(branch, scores) for branch in branches if len(branch) > 1))
    return Mesh(tuple(members)) if len(members) > 1 else Alike(0, tuple(members))


def meshes(kin: Kin) -> list[Mesh]:
    """Those in the tree, in order."""
    return [kin] if isinstance(kin, Mesh) else [mesh for branch in kin.branches for mesh in meshes(branch)]


def _apart(members: Iterable[int], scores: Scores, score: int) -> list[list[int]]:
    """The members in as many branches as can be, any two GPUs of different ones with this score between them."""
    branches: list[list[int]] = []
    for member in members:
        row = scores[member]
        near = [branch for branch in branches if any(row[other] != score for other in branch)]
        apart = [branch for branch in branches if branch not in near]
        branches = [*apart, sorted([member, *(other for branch in near for other in branch)])]
    return sorted(branches)
