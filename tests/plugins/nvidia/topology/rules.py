"""References for the choice: the rule of NVIDIA's own plugin, and brute force. Slow and independent of our code.

The rule is written from its description: partition all free GPUs into groups of the requested size, in every possible
way; of the best partition that has a full group with all required GPUs, take the best such group.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations

__all__ = ["Rating", "Scores", "best_rating", "nvidia_choice", "partitions", "rating", "together", "total"]

Scores = tuple[tuple[int, ...], ...]
Group = tuple[int, ...]
Rating = tuple[int, ...]


def together(scores: Scores, group: Sequence[int]) -> int:
    return sum(scores[one][other] for one, other in combinations(group, 2))


def total(scores: Scores, groups: Sequence[Group]) -> int:
    return sum(together(scores, group) for group in groups)


def partitions(free: Group, size: int) -> Iterator[tuple[Group, ...]]:
    """Every partition into groups of this size and, if there is a remainder, one smaller group."""
    if not free:
        yield ()
        return
    first, others = free[0], free[1:]
    for count in {min(size, len(free)), len(free) % size or size}:
        for partners in combinations(others, count - 1):
            rest = tuple(gpu for gpu in others if gpu not in partners)
            for groups in partitions(rest, size):
                yield ((first, *partners), *groups)


def nvidia_choice(scores: Scores, free: Sequence[int], required: Sequence[int], size: int) -> Group:
    """The first partition wins a tie. A group that is not full is never taken: NVIDIA's plugin does, and crashes."""
    best, groups_of_best = -1, tuple[Group, ...]()
    for groups in partitions(tuple(free), size):
        full = tuple(group for group in groups if len(group) == size and set(required) <= set(group))
        if full and (score := total(scores, groups)) > best:
            best, groups_of_best = score, full
    return max(groups_of_best, key=lambda group: together(scores, group))


def rating(scores: Scores, free: Sequence[int], chosen: Sequence[int]) -> Rating:
    """The score of the partition, of the choice itself, and of the rest in pairs, fours, eights: higher is better."""
    rest = tuple(sorted(set(free) - set(chosen)))
    own = together(scores, chosen)
    sizes = [size for size in (2, 4, 8) if size < len(free)]
    return (
        own + _best_partition(scores, rest, len(chosen)),
        own,
        *(_best_partition(scores, rest, size) for size in sizes),
    )


def best_rating(scores: Scores, free: Sequence[int], required: Sequence[int], size: int) -> Rating:
    sets = (chosen for chosen in combinations(sorted(free), size) if set(required) <= set(chosen))
    return max(rating(scores, free, chosen) for chosen in sets)


@cache
def _best_partition(scores: Scores, free: Group, size: int) -> int:
    if len(free) <= size:
        return together(scores, free)
    first, others = free[0], free[1:]
    best = -1
    for count in {size, len(free) % size or size}:
        for partners in combinations(others, count - 1):
            rest = tuple(gpu for gpu in others if gpu not in partners)
            best = max(best, together(scores, (first, *partners)) + _best_partition(scores, rest, size))
    return best
