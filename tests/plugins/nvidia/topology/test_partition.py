"""Score bounds: no partition exceeds them."""

from hypothesis import given
from hypothesis import strategies as st
from tests.plugins.nvidia.topology.machines import Request, graphs, requests, tree, trees
from tests.plugins.nvidia.topology.rules import Scores, rating, together

from plugwright.plugins.nvidia.topology.partition import ScoreBounds


@given(requests(graphs(most=9) | trees(most=9)))
def test_no_partition_exceeds_the_bound(request: Request) -> None:
    scores, free, _, size = request
    cut = rating(scores, free, free[:size])[0]
    assert ScoreBounds(scores, range(len(scores))).most(len(free), size) >= 2 * cut


@given(requests(graphs(most=9) | trees(most=9)))
def test_no_partition_with_a_given_group_exceeds_the_bound(request: Request) -> None:
    scores, free, _, size = request
    bounds, group = ScoreBounds(scores, free), free[:size]
    per_gpu = bounds.per_gpu(size)
    most = sum(per_gpu[gpu] for gpu in free if gpu not in group) - bounds.lost(size, len(free) % size)
    assert most + 2 * together(scores, group) >= 2 * rating(scores, free, group)[0]


@given(st.sampled_from([2, 4, 8]))
def test_a_machine_of_equal_branches_reaches_the_bound(size: int) -> None:
    scores: Scores = tree((2, 60), (4, 40), (8, 20), (16, 10))
    cut = 16 // size * together(scores, range(size))
    assert ScoreBounds(scores, range(16)).most(16, size) == 2 * cut
