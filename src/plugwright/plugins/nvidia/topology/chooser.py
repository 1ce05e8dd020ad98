"""The best free GPUs for a request, leaving good sets for later requests.

In order of priority: the best partition of all free GPUs into groups of the requested size keeps the highest possible
score; the chosen group is the best one of such a partition; the remaining GPUs have the best partitions into pairs,
then into fours, eights and so on; the GPUs have the lowest numbers, so the same request always gets the same answer.
Exact within a time limit, after which the best result so far counts, or `greedy_choice`. Pure.
"""

import time
from collections.abc import Callable, Iterable, Iterator

import msgspec

from plugwright.plugins.nvidia.topology.partition import (
    Branch,
    Partitioner,
    ScoreBounds,
    Shape,
    ShapeTable,
    Subsets,
    TimeLimitExceeded,
    best_by_shape,
    bits,
)
from plugwright.plugins.nvidia.topology.scores import (
    HierarchyNode,
    MeshNode,
    Scores,
    UniformNode,
    build_hierarchy,
    find_meshes,
)

__all__ = ["TIME_LIMIT", "Candidate", "Chooser", "GpuRequest", "GpuTree", "greedy_choice"]

TIME_LIMIT = 0.1  # seconds, during which the kubelet admits no other pod
_MAX_SHAPES = 20_000  # some MiB; a machine with regular links has hundreds
_MAX_ANSWERS = 256
_MAX_GREEDY_STEPS = 100_000  # some hundredths of a second


class GpuRequest(msgspec.Struct, frozen=True):
    """`size` of `free`, which contains more, including all of `required`, which are free and at most `size`."""

    free: frozenset[int]
    required: frozenset[int]
    size: int


class Candidate(msgspec.Struct, frozen=True):
    """`gpus` has a bit for each, the highest for the first: of two sets the greater has the lower numbers."""

    gpus: int
    score: int
    left: Shape


class Chooser:
    """Chooses GPUs of one machine; caches its results."""

    def __init__(self, scores: Scores, clock: Callable[[], float] = time.monotonic, limit: float = TIME_LIMIT) -> None:
        self._scores, self._clock, self._limit = scores, clock, limit
        self._deadline = 0.0
        self._tree = GpuTree(scores)
        self._answers: dict[GpuRequest, tuple[int, ...]] = {}
        self._partitioner = self._new_partitioner()

    def choose(self, free: Iterable[int], required: Iterable[int], size: int) -> tuple[int, ...]:
        """`size` of `free` including all of `required`, in order; fewer if there are not enough."""
        must = frozenset(required)
        request = GpuRequest(must | frozenset(free), must, size)
        if size <= len(must):
            return tuple(sorted(must)[: max(0, size)])
        if size >= len(request.free):
            return tuple(sorted(request.free))
        return self._answers.get(request) or self._compute(request)

    def _new_partitioner(self) -> Partitioner:
        return Partitioner(self._tree.shapes(), lambda: self._clock() >= self._deadline)

    def _compute(self, request: GpuRequest) -> tuple[int, ...]:
        self._deadline = self._clock() + self._limit
        best: list[Candidate] = []
        try:
            for best in self._improving(request):  # noqa: B007  the last one counts
                pass
        except TimeLimitExceeded:
            answer = self._lowest_numbers(best) if best else greedy_choice(self._scores, request)
        else:
            answer = self._lowest_numbers(best)
            if len(self._answers) >= _MAX_ANSWERS:
                self._answers.clear()
            self._answers[request] = answer
        if len(self._partitioner.shapes.made) > _MAX_SHAPES:
            self._partitioner = self._new_partitioner()
        return answer

    def _lowest_numbers(self, best: list[Candidate]) -> tuple[int, ...]:
        return self._tree.numbers(max(candidate.gpus for candidate in best))

    def _improving(self, request: GpuRequest) -> Iterator[list[Candidate]]:
        """The best candidates so far, equally good ones, until they are the best overall."""
        best: list[Candidate] = []
        for best in self._highest(request):
            yield best
        size = 2
        while len(best) > 1 and size < len(request.free):
            scores = [self._partitioner.best(candidate.left, size) for candidate in best]
            best = [candidate for candidate, score in zip(best, scores, strict=True) if score == max(scores)]
            yield best
            size *= 2

    def _highest(self, request: GpuRequest) -> Iterator[list[Candidate]]:
        """Candidates by the score of the partition, then by their own. Scores count twice, as in `ScoreBounds`."""
        highest = (0, 0)
        best: list[Candidate] = []
        for most, candidate in self._ranked(request):
            if best and (most, candidate.score) < highest:
                return  # the remaining candidates have lower bounds
            partition = candidate.score + self._partitioner.best(candidate.left, request.size)
            reached = 2 * partition, candidate.score
            if not best or reached > highest:
                highest, best = reached, []
            if reached == highest:
                best = [*best, candidate]
            yield best

    def _ranked(self, request: GpuRequest) -> list[tuple[int, Candidate]]:
        """The candidates with the upper bounds of their partitions, highest first."""
        size, left = request.size, len(request.free) - request.size
        candidates = self._tree.candidates(request, self._partitioner)
        bounds = self._partitioner.bounds = ScoreBounds(self._scores, sorted(request.free))
        if not request.required:
            bounds.limit_group(size, max(candidate.score for candidate in candidates))
        per_gpu = {self._tree.bit(gpu): most for gpu, most in bounds.per_gpu(size).items()}
        together = sum(per_gpu.values()) - bounds.lost(size, left % size)
        most = bounds.most(left, size)
        ranked = [
            (2 * candidate.score + min(most, together - sum([per_gpu[bit] for bit in bits(candidate.gpus)])), candidate)
            for candidate in candidates
        ]
        return sorted(ranked, key=lambda pair: (pair[0], pair[1].score, pair[1].gpus), reverse=True)


class GpuTree:
    """The hierarchy of a machine's GPUs, and every candidate for a request: one for each remaining shape."""

    def __init__(self, scores: Scores) -> None:
        self.count = len(scores)
        self._root = build_hierarchy(range(self.count), scores)
        self._inner = {
            mesh: tuple(tuple(scores[one][other] for other in mesh.members) for one in mesh.members)
            for mesh in find_meshes(self._root)
        }
        # Meshes with the same scores are merged, so that results for one apply to the others.
        self._meshes = list(dict.fromkeys(self._inner.values()))

    def shapes(self) -> ShapeTable:
        """An empty table for the shapes of this machine."""
        return ShapeTable(self._meshes)

    def candidates(self, request: GpuRequest, partitioner: Partitioner) -> list[Candidate]:
        numbers = {mesh: self._meshes.index(inner) for mesh, inner in self._inner.items()}
        walk = _TreeWalk(request, partitioner, numbers, self.count)
        low = (1 << self.count) - 1
        return [
            Candidate(value & low, value >> self.count, left)
            for left, value in next(walk.subsets(self._root, [request.size]))
        ]

    def bit(self, gpu: int) -> int:
        return 1 << (self.count - 1 - gpu)

    def numbers(self, gpus: int) -> tuple[int, ...]:
        """The GPUs behind the bits of a candidate."""
        return tuple(gpu for gpu in range(self.count) if gpus & self.bit(gpu))


class _TreeWalk(msgspec.Struct, frozen=True):
    """Collects subsets through the hierarchy. A value is a score, with the bits of the GPUs in its low bits.

    Of subsets leaving the same shape, only the subset with the highest value is kept; ties have the lowest numbers.
    """

    request: GpuRequest
    partitioner: Partitioner
    mesh_numbers: dict[MeshNode, int]
    count: int

    def subsets(self, node: HierarchyNode, takes: Iterable[int]) -> Iterator[Subsets]:
        return self._of_mesh(node, takes) if isinstance(node, MeshNode) else self._of_uniform(node, takes)

    def _branch(self, node: HierarchyNode) -> Branch:
        free = sum(1 for gpu in _members(node) if gpu in self.request.free)
        return list(self.subsets(node, range(min(free, self.request.size) + 1)))

    def _of_mesh(self, mesh: MeshNode, takes: Iterable[int]) -> Iterator[Subsets]:
        table, number = self.partitioner.shapes, self.mesh_numbers[mesh]
        shapes, sums = table.parts[number], table.sums[number]
        members = list(enumerate(mesh.members))
        gpu_bits = {1 << position: self._bit(gpu) for position, gpu in members if gpu in self.request.free}
        required = sum(1 << position for position, gpu in members if gpu in self.request.required)
        others = sum(gpu_bits) - required
        for take in takes:
            more = take - required.bit_count()
            batches = self.partitioner.subsets(others, more) if more >= 0 else ()
            yield [
                (
                    shapes[others ^ gpus],
                    sums[gpus | required] << self.count | sum([gpu_bits[bit] for bit in bits(gpus | required)]),
                )
                for batch in batches
                for gpus in batch
            ]

    def _of_uniform(self, node: UniformNode, takes: Iterable[int]) -> Iterator[Subsets]:
        free = [gpu for gpu in node.singles if gpu in self.request.free]
        order = sorted(free, key=lambda gpu: (gpu not in self.request.required, gpu))
        least = sum(1 for gpu in free if gpu in self.request.required)
        score = node.score << self.count
        starts = [
            (take, len(free) - take, score * (take * (take - 1) // 2) + sum(map(self._bit, order[:take])))
            for take in range(least, min(self.request.size, len(free)) + 1)
        ]
        branches = [branch for branch in map(self._branch, node.branches) if len(branch) > 1]
        for take in takes:
            results = self.partitioner.combined(starts, branches, take, score)
            yield best_by_shape(self.partitioner.shapes, node.score, results)

    def _bit(self, gpu: int) -> int:
        return 1 << (self.count - 1 - gpu)


def _members(node: HierarchyNode) -> Iterator[int]:
    if isinstance(node, MeshNode):
        yield from node.members
        return
    yield from node.singles
    for branch in node.branches:
        yield from _members(branch)


def greedy_choice(scores: Scores, request: GpuRequest) -> tuple[int, ...]:
    """From the required GPUs, or from each GPU in turn, always adds the GPU with the highest score to those taken.

    For machines too large and irregular to try every set.
    """
    starts = [sorted(request.required)] if request.required else [[gpu] for gpu in sorted(request.free)]
    most = max(1, _MAX_GREEDY_STEPS // (request.size * len(request.free)))
    results = [_grow(start, scores, request) for start in starts[:most]]
    return max(results, key=lambda result: result[0])[1]


def _grow(start: list[int], scores: Scores, request: GpuRequest) -> tuple[int, tuple[int, ...]]:
    taken, total = list(start), 0
    gains = {gpu: sum(scores[gpu][other] for other in taken) for gpu in sorted(request.free - set(taken))}
    while len(taken) < request.size:
        best = max(gains, key=gains.__getitem__)
        total += gains.pop(best)
        for gpu in gains:
            gains[gpu] += scores[gpu][best]
        taken.append(best)
    return total, tuple(sorted(taken))
