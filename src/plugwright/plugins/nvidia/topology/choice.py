"""The best GPUs for a request out of those that are free, such that what is left is good for the next ones.

In this order: everything free, cut into groups of the size asked for, keeps the highest score that such a cut can have;
the group handed out is the best one of such a cut; what is left can best be cut into pairs, then into fours, eights and
so on; the GPUs have the lowest numbers. Exact, unless the time is over: then it is the best that was found so far.
"""

import time
from collections.abc import Callable, Iterable, Iterator

from plugwright.plugins.nvidia.topology.bounds import Bounds
from plugwright.plugins.nvidia.topology.candidates import Candidate, Tree, Wanted
from plugwright.plugins.nvidia.topology.cuts import Cuts, Late
from plugwright.plugins.nvidia.topology.greed import grabbed
from plugwright.plugins.nvidia.topology.pairs import Scores
from plugwright.plugins.nvidia.topology.shapes import bits

__all__ = ["LIMIT", "Chooser"]

LIMIT = 0.1  # seconds; the kubelet admits no other pod meanwhile
_MOST_SHAPES = 20_000  # some MiB; a machine with its links in good order has hundreds
_MOST_ANSWERS = 256


class Chooser:
    """For one machine; what was worked out once is remembered."""

    def __init__(self, scores: Scores, clock: Callable[[], float] = time.monotonic, limit: float = LIMIT) -> None:
        self._scores, self._clock, self._limit = scores, clock, limit
        self._end = 0.0
        self._tree = Tree(scores)
        self._answers: dict[Wanted, tuple[int, ...]] = {}
        self._cuts = self._nothing_known()

    def choose(self, free: Iterable[int], required: Iterable[int], size: int) -> tuple[int, ...]:
        """`size` of `free`, all of `required` among them, in order; fewer where there are not so many."""
        must = frozenset(required)
        wanted = Wanted(must | frozenset(free), must, size)
        if size <= len(must):
            return tuple(sorted(must)[: max(0, size)])
        if size >= len(wanted.free):
            return tuple(sorted(wanted.free))
        return self._answers.get(wanted) or self._worked_out(wanted)

    def _nothing_known(self) -> Cuts:
        return Cuts(self._tree.shapes(), self._is_late)

    def _is_late(self) -> bool:
        return self._clock() >= self._end

    def _worked_out(self, wanted: Wanted) -> tuple[int, ...]:
        self._end = self._clock() + self._limit
        best: list[Candidate] = []
        try:
            for best in self._ever_better(wanted):  # noqa: B007  the last one counts
                pass
        except Late:
            answer = self._named(best) if best else grabbed(self._scores, wanted)
        else:
            answer = self._remembered(wanted, self._named(best))
        if len(self._cuts.shapes.made) > _MOST_SHAPES:
            self._cuts = self._nothing_known()
        return answer

    def _named(self, best: list[Candidate]) -> tuple[int, ...]:
        return self._tree.named(max(each.gpus for each in best))

    def _remembered(self, wanted: Wanted, answer: tuple[int, ...]) -> tuple[int, ...]:
        if len(self._answers) >= _MOST_ANSWERS:
            self._answers.clear()
        self._answers[wanted] = answer
        return answer

    def _ever_better(self, wanted: Wanted) -> Iterator[list[Candidate]]:
        """The best candidates so far, equally good ones, until they are the best there are."""
        best: list[Candidate] = []
        for best in self._highest(wanted):
            yield best
        size = 2
        while len(best) > 1 and size < len(wanted.free):
            kept = [self._cuts.best(each.left, size) for each in best]
            best = [each for each, score in zip(best, kept, strict=True) if score == max(kept)]
            yield best
            size *= 2

    def _highest(self, wanted: Wanted) -> Iterator[list[Candidate]]:
        """By the score of the cut, then by their own. All scores twice, as in `bounds`."""
        highest = (0, 0)
        best: list[Candidate] = []
        for most, candidate in self._ranked(wanted):
            if best and (most, candidate.score) < highest:
                return  # nor can any of the others be better: those who could be the best come first
            reached = 2 * (candidate.score + self._cuts.best(candidate.left, wanted.size)), candidate.score
            if not best or reached > highest:
                highest, best = reached, []
            if reached == highest:
                best = [*best, candidate]
            yield best

    def _ranked(self, wanted: Wanted) -> list[tuple[int, Candidate]]:
        """Each candidate with what the cut can reach with it at most; the highest first."""
        size, left = wanted.size, len(wanted.free) - wanted.size
        found = self._tree.candidates(wanted, self._cuts)
        bounds = self._cuts.bounds = Bounds(self._scores, sorted(wanted.free))
        if not wanted.required:
            bounds.learn(size, max(each.score for each in found))
        each = {self._tree.bit(gpu): most for gpu, most in bounds.each(size).items()}
        together = sum(each.values()) - bounds.lost(size, left % size)
        most = bounds.most(left, size)
        ranked = [
            (2 * one.score + min(most, together - sum([each[bit] for bit in bits(one.gpus)])), one) for one in found
        ]
        return sorted(ranked, key=lambda pair: (pair[0], pair[1].score, pair[1].gpus), reverse=True)
