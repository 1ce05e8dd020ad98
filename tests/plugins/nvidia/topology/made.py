"""Made-up machines: trees of PCIe switches, machines of NVIDIA's, and graphs with no order at all."""

from collections.abc import Callable
from itertools import combinations

from hypothesis import strategies as st
from tests.plugins.nvidia.topology.rules import Scores

from plugwright.plugins.nvidia import machines
from plugwright.plugins.nvidia.topology import pairs

__all__ = ["graphs", "machine", "orders", "tree", "trees"]

ANYTHING = st.sampled_from([0, 10, 20, 30, 40, 50, 60, 110, 210, 150, 450, 1810])


def tree(*levels: tuple[int, int]) -> Scores:
    """`(2, 50), (4, 20)`: twos with 50 between them, fours with 20; the last level is the machine."""
    count = levels[-1][0]
    return _matrix(count, lambda one, other: next(score for size, score in levels if one // size == other // size))


def machine(name: str) -> Scores:
    reading = machines.load(name)
    found = pairs.scores([gpu.uuid for gpu in reading.gpus], reading.links)
    return tuple(tuple(row) for row in found)


@st.composite
def graphs(draw: st.DrawFn, most: int = 12, least: int = 2) -> Scores:
    """Any score between any two."""
    count = draw(st.integers(least, most))
    found = {pair: draw(ANYTHING) for pair in combinations(range(count), 2)}
    return _matrix(count, lambda one, other: found[min(one, other), max(one, other)])


@st.composite
def trees(draw: st.DrawFn, most: int = 12) -> Scores:
    """Branches in branches, of any size and with any score, so that farther is not always weaker; some have a mesh."""
    count = draw(st.integers(2, most))
    level = [[place] for place in range(count)]
    found: dict[tuple[int, int], int] = {}
    if draw(st.booleans()):
        mesh = draw(graphs(most=min(5, count)))
        found = {pair: mesh[pair[0]][pair[1]] for pair in combinations(range(len(mesh)), 2)}
        level = [list(range(len(mesh))), *level[len(mesh) :]]
    while len(level) > 1:
        size = draw(st.integers(2, len(level)))
        score = draw(ANYTHING)
        joined, level = level[:size], level[size:]
        for one, other in combinations(joined, 2):
            found |= {(min(a, b), max(a, b)): score for a in one for b in other}
        level = [*level, [place for branch in joined for place in branch]]
    return _matrix(count, lambda one, other: found[min(one, other), max(one, other)])


def orders(scores: Scores) -> st.SearchStrategy[list[int]]:
    return st.permutations(range(len(scores)))


def _matrix(count: int, score: Callable[[int, int], int]) -> Scores:
    return tuple(tuple(0 if one == other else score(one, other) for other in range(count)) for one in range(count))
