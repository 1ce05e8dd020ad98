"""A good set of GPUs in no time, for machines so large and so unordered that not every set can be looked at. Pure."""

from plugwright.plugins.nvidia.topology.candidates import Wanted
from plugwright.plugins.nvidia.topology.pairs import Scores

__all__ = ["grabbed"]

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
