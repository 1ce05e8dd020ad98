"""What choices are measured against: the rule of NVIDIA's own plugin, and brute force. Slow, plain, and on their own.

The rule is written from its description: cut everything free into groups of the size asked for, in every possible way;
of the best cut that has a full group with everything required, take the best such group.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations

__all__ = ["Rating", "Scores", "best_rating", "cuts", "peers_choice", "rating", "together", "total"]

Scores = tuple[tuple[int, ...], ...]
Group = tuple[int, ...]
Rating = tuple[int, ...]


def together(scores: Scores, group: Sequence[int]) -> int:
    return sum(scores[one][other] for one, other in combinations(group, 2))


def total(scores: Scores, groups: Sequence[Group]) -> int:
    return sum(together(scores, group) for group in groups)


def cuts(free: Group, size: int) -> Iterator[tuple[Group, ...]]:
    """Every way to cut them into groups of this size and, if they do not come out even, one smaller group."""
    if not free:
        yield ()
        return
    first, others = free[0], free[1:]
    for count in {min(size, len(free)), len(free) % size or size}:
        for partners in combinations(others, count - 1):
            rest = tuple(gpu for gpu in others if gpu not in partners)
            for groups in cuts(rest, size):
                yield ((first, *partners), *groups)


def peers_choice(scores: Scores, free: Sequence[int], required: Sequence[int], size: int) -> Group:
    """The first cut found wins a tie. A group that is not full is never taken: the peer does, and dies of it."""
    best, groups_of_best = -1, tuple[Group, ...]()
    for groups in cuts(tuple(free), size):
        full = tuple(group for group in groups if len(group) == size and set(required) <= set(group))
        if full and (score := total(scores, groups)) > best:
            best, groups_of_best = score, full
    return max(groups_of_best, key=lambda group: together(scores, group))


def rating(scores: Scores, free: Sequence[int], chosen: Sequence[int]) -> Rating:
    """The whole cut, the choice itself, and what is left in pairs, fours, eights: the higher the better."""
    rest = tuple(sorted(set(free) - set(chosen)))
    own = together(scores, chosen)
    sizes = [size for size in (2, 4, 8) if size < len(free)]
    return (own + _best_cut(scores, rest, len(chosen)), own, *(_best_cut(scores, rest, size) for size in sizes))


def best_rating(scores: Scores, free: Sequence[int], required: Sequence[int], size: int) -> Rating:
    sets = (chosen for chosen in combinations(sorted(free), size) if set(required) <= set(chosen))
    return max(rating(scores, free, chosen) for chosen in sets)


@cache
def _best_cut(scores: Scores, free: Group, size: int) -> int:
    if len(free) <= size:
        return together(scores, free)
    first, others = free[0], free[1:]
    best = -1
    for count in {size, len(free) % size or size}:
        for partners in combinations(others, count - 1):
            rest = tuple(gpu for gpu in others if gpu not in partners)
            best = max(best, together(scores, (first, *partners)) + _best_cut(scores, rest, size))
    return best
