"""Machines for tests: trees of PCIe switches, NVIDIA's machines, and graphs without any order."""

from collections.abc import Callable
from itertools import combinations

from hypothesis import strategies as st
from tests.plugins.nvidia.topology.rules import Scores

from plugwright.plugins.nvidia import simulated_machines
from plugwright.plugins.nvidia.topology.scores import pair_scores

__all__ = ["Request", "graphs", "machine", "orders", "requests", "tree", "trees"]

MESHED = 0.15  # of the branches
Request = tuple[Scores, list[int], list[int], int]  # scores, free GPUs, required GPUs, size

PALETTES = st.sampled_from(
    [(10, 20), (0, 1), (10, 20, 50, 110, 210), (1, 2, 3, 4, 5, 6, 7), (0, 10, 60, 150, 450, 1810)]
)
# Whole graphs from one seed: drawn score by score they would come out small and even, and hard to get wrong.
CHANCE = st.randoms(use_true_random=True)


def tree(*levels: tuple[int, int]) -> Scores:
    """`(2, 50), (4, 20)`: twos with 50 between them, fours with 20; the last level is the machine."""
    count = levels[-1][0]
    return _matrix(count, lambda one, other: next(score for size, score in levels if one // size == other // size))


def machine(name: str) -> Scores:
    snapshot = simulated_machines.load(name)
    scores = pair_scores([gpu.uuid for gpu in snapshot.gpus], snapshot.links)
    return tuple(tuple(row) for row in scores)


@st.composite
def graphs(draw: st.DrawFn, most: int = 12, least: int = 2) -> Scores:
    """Any score between any two."""
    count, palette, chance = draw(st.sampled_from(range(least, most + 1))), draw(PALETTES), draw(CHANCE)
    pairs = {pair: chance.choice(palette) for pair in combinations(range(count), 2)}
    return _matrix(count, lambda one, other: pairs[min(one, other), max(one, other)])


@st.composite
def trees(draw: st.DrawFn, most: int = 12) -> Scores:
    """Branches in branches, of any size and with any score, so that farther is not always weaker; some have a mesh."""
    count, palette, chance = draw(st.sampled_from(range(2, most + 1))), draw(PALETTES), draw(CHANCE)
    pairs: dict[tuple[int, int], int] = {}
    level = [[gpu] for gpu in range(count)]
    while len(level) > 1:
        size = min(len(level), chance.choice((2, 2, 3, 4)))
        joined, level = level[:size], level[size:]
        scores = palette if chance.random() < MESHED else (chance.choice(palette),)
        for one, other in combinations(joined, 2):
            pairs |= {(min(a, b), max(a, b)): chance.choice(scores) for a in one for b in other}
        level.append([gpu for branch in joined for gpu in branch])
    return _matrix(count, lambda one, other: pairs[min(one, other), max(one, other)])


@st.composite
def requests(draw: st.DrawFn, of: st.SearchStrategy[Scores]) -> Request:
    """For such a machine: any GPUs are free, some of them required, and enough for the size."""
    scores, chance = draw(of), draw(CHANCE)
    free = chance.sample(range(len(scores)), chance.randint(1, len(scores)))
    size = chance.randint(1, len(free))
    return scores, free, chance.sample(free, min(size, chance.choice((0, 0, 1, 2)))), size


def orders(scores: Scores) -> st.SearchStrategy[list[int]]:
    return st.permutations(range(len(scores)))


def _matrix(count: int, score: Callable[[int, int], int]) -> Scores:
    return tuple(tuple(0 if one == other else score(one, other) for other in range(count)) for one in range(count))
