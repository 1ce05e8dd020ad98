"""GPUs chosen by their links."""

import json
from itertools import combinations
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plugins.nvidia.topology.made import Question, graphs, machine, orders, questions, tree, trees
from tests.plugins.nvidia.topology.rules import Scores, best_rating, cuts, peers_choice, rating, together, total

from plugwright.plugins.nvidia.topology.chooser import Chooser

MACHINES = {
    "dgx-1": machine("dgx-1"),
    "dgx-a100": machine("dgx-a100"),
    "hgx-h100": machine("hgx-h100"),
    "t4": machine("t4"),
    "two sockets": tree((4, 20), (8, 10)),
    "pairs on two sockets": tree((2, 50), (4, 20), (8, 10)),
    "pairs of bridges": tree((2, 450), (8, 20)),
    "one switch": tree((8, 50)),
    "five and five": tree((5, 50), (10, 10)),
}
SIXTEEN = {
    "dgx-2": machine("dgx-2"),
    "four switches": tree((4, 50), (16, 10)),
    "four switches on two sockets": tree((4, 50), (8, 20), (16, 10)),
    "two sockets": tree((8, 20), (16, 10)),
    "eight boards": tree((2, 60), (4, 40), (8, 20), (16, 10)),
}


class Clock:
    """Time passes with every look at it."""

    def __init__(self, step: float = 1.0) -> None:
        self.now, self.step = 0.0, step

    def look(self) -> float:
        self.now += self.step
        return self.now


def ever(scores: Scores) -> Chooser:
    """Has all the time in the world."""
    return Chooser(scores, clock=lambda: 0.0, limit=1.0)


@settings(max_examples=400)
@given(questions(graphs(most=9) | trees(most=10)))
def test_no_choice_has_a_better_rating(question: Question) -> None:
    scores, free, required, size = question
    chosen = ever(scores).choose(free, required, size)
    assert rating(scores, free, chosen) == best_rating(scores, free, required, size)
    assert len(chosen) == size
    assert set(required) <= set(chosen) <= set(free)


@settings(max_examples=12)
@given(graphs(least=12), st.integers(1, 12))
def test_nor_has_any_among_twelve(scores: Scores, size: int) -> None:
    chosen = ever(scores).choose(range(12), [], size)
    assert rating(scores, range(12), chosen) == best_rating(scores, range(12), [], size)


@given(questions(graphs(most=8) | trees(most=8)))
def test_never_worse_than_the_peers_rule(question: Question) -> None:
    scores, free, required, size = question
    chosen, theirs = ever(scores).choose(free, required, size), peers_choice(scores, free, required, size)
    assert together(scores, chosen) >= together(scores, theirs)
    assert rating(scores, free, chosen)[0] >= rating(scores, free, theirs)[0]


@settings(max_examples=8)
@given(graphs(most=12, least=9), st.data())
def test_nor_among_up_to_twelve(scores: Scores, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(scores)))
    free = range(len(scores))
    chosen, theirs = ever(scores).choose(free, [], size), peers_choice(scores, free, [], size)
    assert together(scores, chosen) >= together(scores, theirs)
    assert rating(scores, free, chosen)[0] >= rating(scores, free, theirs)[0]


@pytest.mark.parametrize("name", MACHINES)
def test_never_worse_than_the_peers_rule_on_any_machine(name: str) -> None:
    scores = MACHINES[name]
    free, chooser = range(len(scores)), ever(scores)
    for size in range(1, len(scores) + 1):
        chosen, theirs = chooser.choose(free, [], size), peers_choice(scores, free, [], size)
        assert together(scores, chosen) >= together(scores, theirs)
        assert rating(scores, free, chosen)[0] >= rating(scores, free, theirs)[0]
        assert rating(scores, free, chosen) == best_rating(scores, free, [], size)


@given(questions(graphs(most=8) | trees(most=8)), st.data())
def test_other_numbers_for_the_same_gpus_change_no_rating(question: Question, data: st.DataObject) -> None:
    scores, free, required, size = question
    order = data.draw(orders(scores))
    renamed = tuple(tuple(scores[one][other] for other in order) for one in order)
    there = [order.index(gpu) for gpu in free]
    chosen = ever(renamed).choose(there, [order.index(gpu) for gpu in required], size)
    assert rating(renamed, there, chosen) == rating(scores, free, ever(scores).choose(free, required, size))


@given(questions(graphs(most=8) | trees(most=12)), st.data())
def test_the_same_question_has_the_same_answer(question: Question, data: st.DataObject) -> None:
    scores, free, required, size = question
    asked_before = ever(scores)
    for other in range(1, len(free)):
        asked_before.choose(free, [], other)
    shuffled = data.draw(st.permutations(free))
    assert asked_before.choose(shuffled, required, size) == ever(scores).choose(free, required, size)


@pytest.mark.parametrize("name", SIXTEEN)
def test_sixteen_gpus_are_cut_no_worse_than_by_the_peers_rule(name: str) -> None:
    """The rule takes seconds for some of it, in Go: what it found is in the file. See `bench/rule`."""
    scores, chooser = SIXTEEN[name], ever(SIXTEEN[name])
    for size, (cut, own) in json.loads(Path(__file__).with_name("sixteen.json").read_text())[name].items():
        groups = _drained(chooser, 16, int(size))
        assert together(scores, groups[0]) >= own
        assert total(scores, groups) >= cut


@given(graphs(most=8) | trees(most=8), st.integers(1, 8))
def test_one_request_after_the_other_makes_the_best_cut(scores: Scores, size: int) -> None:
    groups = _drained(ever(scores), len(scores), size)
    assert total(scores, groups) == max(total(scores, each) for each in cuts(tuple(range(len(scores))), size))


def test_a_gpu_alone_is_taken_where_no_pair_is_broken() -> None:
    pairs = ever(tree((2, 450), (8, 10)))
    assert pairs.choose([0, 1, 2, 4, 5, 6, 7], [], 1) == (2,)


def test_a_strong_pair_is_spared_though_more_links_meet_elsewhere() -> None:
    """Three GPUs with 60 between any two, and a pair with 100: one of the three loses more, and is still given."""
    scores = [[0] * 5 for _ in range(5)]
    for one, other in combinations(range(3), 2):
        scores[one][other] = scores[other][one] = 60
    scores[3][4] = scores[4][3] = 100
    assert ever(tuple(map(tuple, scores))).choose(range(5), [], 1) == (0,)


def test_a_pair_is_taken_from_a_socket_that_is_no_longer_whole() -> None:
    sockets = ever(tree((2, 50), (4, 20), (8, 10)))
    assert sockets.choose([0, 1, 2, 3, 6, 7], [], 2) == (6, 7)


def test_the_last_pair_matters_as_much_as_the_first() -> None:
    """In a row of four the middle pair is the best, and would leave the ends without any link."""
    row = ((0, 3, 0, 0), (3, 0, 4, 0), (0, 4, 0, 3), (0, 0, 3, 0))
    assert ever(row).choose(range(4), [], 2) == (0, 1)


def test_what_is_required_is_joined_by_its_best_partners() -> None:
    assert ever(machine("dgx-1")).choose([0, 1, 2, 6, 7], [6], 2) == (6, 7)
    assert ever(tree((2, 50), (4, 20), (8, 10))).choose(range(8), [5], 4) == (4, 5, 6, 7)


def test_the_best_partner_is_left_to_a_gpu_that_has_no_other() -> None:
    """On a DGX-1, 7 goes best with 6; then 4 and 5 would be left with one link where 5-6 and 4-7 have two each."""
    assert ever(machine("dgx-1")).choose(range(8), [6], 2) == (5, 6)


def test_gpus_that_are_all_alike_are_taken_in_order() -> None:
    assert ever(tree((16, 1810))).choose(range(3, 16), [], 5) == (3, 4, 5, 6, 7)


@pytest.mark.parametrize(
    ("free", "required", "size", "expected"),
    [
        ([], [], 3, ()),
        ([1, 2], [], 5, (1, 2)),
        ([1, 2], [], 0, ()),
        ([1, 2], [], -1, ()),
        ([1, 2], [3], 2, (2, 3)),
        ([0, 1, 2], [1, 2], 1, (1,)),
    ],
)
def test_odd_questions_have_answers(free: list[int], required: list[int], size: int, expected: tuple[int, ...]) -> None:
    assert ever(tree((2, 50), (4, 20))).choose(free, required, size) == expected


def test_a_machine_without_gpus_has_an_answer() -> None:
    assert ever(()).choose([], [], 1) == ()


@given(questions(graphs(most=9) | trees(most=10)), st.integers(0, 30))
def test_when_the_time_is_over_there_is_still_a_whole_answer(question: Question, ticks: int) -> None:
    scores, free, required, size = question
    chosen = Chooser(scores, clock=Clock().look, limit=ticks).choose(free, required, size)
    assert len(chosen) == size
    assert set(required) <= set(chosen) <= set(free)


def test_more_time_never_makes_the_answer_worse() -> None:
    scores = _disorder(12)
    found = [Chooser(scores, Clock().look, limit).choose(range(12), [], 4) for limit in range(0, 2000, 50)]
    cut = [rating(scores, range(12), chosen)[:2] for chosen in found]
    assert cut[0] < cut[-1] == best_rating(scores, range(12), [], 4)[:2]
    assert cut[1:] == sorted(cut[1:])


def test_an_answer_given_in_haste_is_not_kept() -> None:
    scores, clock = _disorder(12), Clock(step=1.0)
    chooser, exact = Chooser(scores, clock.look, limit=1.0), ever(scores).choose(range(12), [], 4)
    assert chooser.choose(range(12), [], 4) != exact
    clock.step = 0.0
    assert chooser.choose(range(12), [], 4) == exact


def test_too_many_gpus_without_order_are_chosen_in_haste() -> None:
    scores = _disorder(40)
    chosen = ever(scores).choose(range(40), [7], 20)
    assert len(chosen) == 20
    assert 7 in chosen
    assert together(scores, chosen) > together(scores, range(20))


def test_a_tree_with_no_two_branches_alike_is_given_up_in_time() -> None:
    """Forty GPUs one behind the other: every set is of a shape of its own, and there are a billion of twenty."""
    scores = tuple(tuple(0 if one == other else max(one, other) for other in range(40)) for one in range(40))
    chosen = Chooser(scores, Clock().look, limit=300.0).choose(range(40), [], 20)
    assert len(chosen) == 20


def _drained(chooser: Chooser, count: int, size: int) -> list[tuple[int, ...]]:
    """What the GPUs are given as, one request after the other until none is free."""
    free, groups = set(range(count)), []
    while free:
        groups.append(chooser.choose(free, [], size))
        free -= set(groups[-1])
    return groups


def _disorder(size: int) -> Scores:
    chance = Random(3)
    found = {pair: chance.choice([10, 20, 50, 110, 250]) for pair in combinations(range(size), 2)}
    return tuple(
        tuple(0 if one == other else found[min(one, other), max(one, other)] for other in range(size))
        for one in range(size)
    )
