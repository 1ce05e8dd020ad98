"""The scores of pairs of GPUs, and the resulting hierarchy of a machine's GPUs.

A pair scores more points the nearer it is over PCIe, and far more for each NVLink. Two GPUs under one PCIe switch are
interchangeable for all others, and so are two switches on one socket: `build_hierarchy` finds these groups from the
scores alone, which spares `partition` sets with only other names. Pure; `chooser` makes the choice.
"""

from collections.abc import Iterable, Sequence

import msgspec

from plugwright.plugins.nvidia.driver import GpuLink, GpuLinks

__all__ = [
    "HierarchyNode",
    "MeshNode",
    "Scores",
    "UniformNode",
    "build_hierarchy",
    "find_meshes",
    "link_score",
    "pair_scores",
]

Scores = Sequence[Sequence[int]]  # scores[i][j] == scores[j][i]; the diagonal is not used

_PER_LEVEL = 10
_PER_NVLINK = 100  # one NVLink outweighs every PCIe level


class UniformNode(msgspec.Struct, frozen=True):
    """Any two GPUs of different branches have the same score."""

    score: int
    singles: tuple[int, ...]  # branches of one GPU
    branches: tuple["HierarchyNode", ...] = ()


class MeshNode(msgspec.Struct, frozen=True):
    """GPUs without a hierarchy, as in a cube mesh."""

    members: tuple[int, ...]


HierarchyNode = UniformNode | MeshNode


def link_score(link: GpuLink) -> int:
    return _PER_LEVEL * link.level + _PER_NVLINK * link.nvlinks


def pair_scores(gpus: Sequence[str], links: GpuLinks) -> list[list[int]]:
    """The scores of every pair of these GPUs, in their order."""
    return [[link_score(links.between(one, other)) if one != other else 0 for other in gpus] for one in gpus]


def build_hierarchy(members: Sequence[int], scores: Scores) -> HierarchyNode:
    for score in sorted({scores[one][other] for one in members for other in members if one < other}):
        branches = _split(members, scores, score)
        if len(branches) > 1:
            singles = tuple(branch[0] for branch in branches if len(branch) == 1)
            larger = tuple(build_hierarchy(branch, scores) for branch in branches if len(branch) > 1)
            return UniformNode(score, singles, larger)
    return MeshNode(tuple(members)) if len(members) > 1 else UniformNode(0, tuple(members))


def find_meshes(node: HierarchyNode) -> list[MeshNode]:
    """The meshes of a hierarchy, in order."""
    return [node] if isinstance(node, MeshNode) else [mesh for branch in node.branches for mesh in find_meshes(branch)]


def _split(members: Iterable[int], scores: Scores, score: int) -> list[list[int]]:
    """As many branches as possible with this score between any two GPUs of different branches."""
    branches: list[list[int]] = []
    for member in members:
        row = scores[member]
        near = [branch for branch in branches if any(row[other] != score for other in branch)]
        apart = [branch for branch in branches if branch not in near]
        branches = [*apart, sorted([member, *(other for branch in near for other in branch)])]
    return sorted(branches)
