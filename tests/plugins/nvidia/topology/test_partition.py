"""What no cut can exceed."""

from hypothesis import given
from hypothesis import strategies as st
from tests.plugins.nvidia.topology.made import Question, graphs, questions, tree, trees
from tests.plugins.nvidia.topology.rules import Scores, rating, together

from plugwright.plugins.nvidia.topology.partition import Bounds


@given(questions(graphs(most=9) | trees(most=9)))
def test_no_cut_of_any_of_the_gpus_exceeds_it(question: Question) -> None:
    scores, free, _, size = question
    cut = rating(scores, free, free[:size])[0]
    assert Bounds(scores, range(len(scores))).most(len(free), size) >= 2 * cut


@given(questions(graphs(most=9) | trees(most=9)))
def test_nor_does_any_with_one_certain_group(question: Question) -> None:
    scores, free, _, size = question
    bounds, group = Bounds(scores, free), free[:size]
    each = bounds.each(size)
    most = sum(each[gpu] for gpu in free if gpu not in group) - bounds.lost(size, len(free) % size)
    assert most + 2 * together(scores, group) >= 2 * rating(scores, free, group)[0]


@given(st.sampled_from([2, 4, 8]))
def test_a_machine_of_equal_branches_reaches_it(size: int) -> None:
    scores: Scores = tree((2, 60), (4, 40), (8, 20), (16, 10))
    cut = 16 // size * together(scores, range(size))
    assert Bounds(scores, range(16)).most(16, size) == 2 * cut
