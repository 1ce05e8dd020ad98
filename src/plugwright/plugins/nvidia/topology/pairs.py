"""How good it is to have two GPUs together: one whole number for each pair.

The nearer over PCIe the more points, and far more for each NVLink, through an NVSwitch or not. Who is chosen by these
numbers is `preference`'s work.
"""

from collections.abc import Sequence

from plugwright.plugins.nvidia.gpus import Link, Links

__all__ = ["Scores", "score", "scores"]

Scores = Sequence[Sequence[int]]  # scores[i][j] == scores[j][i]; what is on the diagonal does not matter

_PER_LEVEL = 10
_PER_NVLINK = 100  # one link outweighs the nearest place on PCIe


def score(link: Link) -> int:
    return _PER_LEVEL * link.level + _PER_NVLINK * link.nvlinks


def scores(gpus: Sequence[str], links: Links) -> list[list[int]]:
    """The scores of every pair of these GPUs, in their order."""
    return [[score(links.between(one, other)) if one != other else 0 for other in gpus] for one in gpus]
