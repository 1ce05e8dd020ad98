"""The chooser: GPUs by their links, never worse than NVIDIA's rule, and in time."""

import json
from itertools import combinations
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plugins.nvidia.topology.machines import Request, graphs, machine, orders, requests, tree, trees
from tests.plugins.nvidia.topology.rules import Scores, best_rating, nvidia_choice, partitions, rating, together, total

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


class SteppingClock:
    """Advances with every reading."""

    def __init__(self, step: float = 1.0) -> None:
        self.now, self.step = 0.0, step

    def read(self) -> float:
        self.now += self.step
        return self.now


def unlimited(scores: Scores) -> Chooser:
    """Without a time limit."""
    return Chooser(scores, clock=lambda: 0.0, limit=1.0)


@settings(max_examples=400)
@given(requests(graphs(most=9) | trees(most=10)))
def test_the_choice_has_the_best_rating(request: Request) -> None:
    scores, free, required, size = request
    chosen = unlimited(scores).choose(free, required, size)
    assert rating(scores, free, chosen) == best_rating(scores, free, required, size)
    assert len(chosen) == size
    assert set(required) <= set(chosen) <= set(free)


@settings(max_examples=12)
@given(graphs(least=12), st.integers(1, 12))
def test_the_choice_has_the_best_rating_among_twelve(scores: Scores, size: int) -> None:
    chosen = unlimited(scores).choose(range(12), [], size)
    assert rating(scores, range(12), chosen) == best_rating(scores, range(12), [], size)


@given(requests(graphs(most=8) | trees(most=8)))
def test_the_choice_is_never_worse_than_nvidias_rule(request: Request) -> None:
    scores, free, required, size = request
    chosen, theirs = unlimited(scores).choose(free, required, size), nvidia_choice(scores, free, required, size)
    assert together(scores, chosen) >= together(scores, theirs)
    assert rating(scores, free, chosen)[0] >= rating(scores, free, theirs)[0]


@settings(max_examples=8)
@given(graphs(most=12, least=9), st.data())
def test_the_choice_is_never_worse_than_nvidias_rule_among_up_to_twelve(scores: Scores, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(scores)))
    free = range(len(scores))
    chosen, theirs = unlimited(scores).choose(free, [], size), nvidia_choice(scores, free, [], size)
    assert together(scores, chosen) >= together(scores, theirs)
    assert rating(scores, free, chosen)[0] >= rating(scores, free, theirs)[0]


@pytest.mark.parametrize("name", MACHINES)
def test_the_choice_is_never_worse_than_nvidias_rule_on_any_machine(name: str) -> None:
    scores = MACHINES[name]
    free, chooser = range(len(scores)), unlimited(scores)
    for size in range(1, len(scores) + 1):
        chosen, theirs = chooser.choose(free, [], size), nvidia_choice(scores, free, [], size)
        assert together(scores, chosen) >= together(scores, theirs)
        assert rating(scores, free, chosen)[0] >= rating(scores, free, theirs)[0]
        assert rating(scores, free, chosen) == best_rating(scores, free, [], size)


@given(requests(graphs(most=8) | trees(most=8)), st.data())
def test_the_numbering_of_gpus_does_not_change_the_rating(request: Request, data: st.DataObject) -> None:
    scores, free, required, size = request
    order = data.draw(orders(scores))
    renamed = tuple(tuple(scores[one][other] for other in order) for one in order)
    there = [order.index(gpu) for gpu in free]
    chosen = unlimited(renamed).choose(there, [order.index(gpu) for gpu in required], size)
    assert rating(renamed, there, chosen) == rating(scores, free, unlimited(scores).choose(free, required, size))


@given(requests(graphs(most=8) | trees(most=12)), st.data())
def test_the_same_request_has_the_same_answer(request: Request, data: st.DataObject) -> None:
    scores, free, required, size = request
    asked_before = unlimited(scores)
    for other in range(1, len(free)):
        asked_before.choose(free, [], other)
    shuffled = data.draw(st.permutations(free))
    assert asked_before.choose(shuffled, required, size) == unlimited(scores).choose(free, required, size)


@pytest.mark.parametrize("name", SIXTEEN)
def test_sixteen_gpus_are_partitioned_no_worse_than_by_nvidias_rule(name: str) -> None:
    """The rule takes seconds for some of it, in Go: what it found is in the file. See `bench/rule`."""
    scores, chooser = SIXTEEN[name], unlimited(SIXTEEN[name])
    for size, (partition, own) in json.loads(Path(__file__).with_name("sixteen.json").read_text())[name].items():
        groups = _drained(chooser, 16, int(size))
        assert together(scores, groups[0]) >= own
        assert total(scores, groups) >= partition


@given(graphs(most=8) | trees(most=8), st.integers(1, 8))
def test_successive_requests_make_the_best_partition(scores: Scores, size: int) -> None:
    groups = _drained(unlimited(scores), len(scores), size)
    assert total(scores, groups) == max(total(scores, groups) for groups in partitions(tuple(range(len(scores))), size))


def test_a_single_gpu_is_taken_where_no_pair_is_broken() -> None:
    pairs = unlimited(tree((2, 450), (8, 10)))
    assert pairs.choose([0, 1, 2, 4, 5, 6, 7], [], 1) == (2,)


def test_a_strong_pair_is_spared_though_more_links_meet_elsewhere() -> None:
    """Three GPUs with 60 between any two, and a pair with 100: one of the three loses more, and is still given."""
    scores = [[0] * 5 for _ in range(5)]
    for one, other in combinations(range(3), 2):
        scores[one][other] = scores[other][one] = 60
    scores[3][4] = scores[4][3] = 100
    assert unlimited(tuple(map(tuple, scores))).choose(range(5), [], 1) == (0,)


def test_a_pair_is_taken_from_a_socket_that_is_no_longer_whole() -> None:
    sockets = unlimited(tree((2, 50), (4, 20), (8, 10)))
    assert sockets.choose([0, 1, 2, 3, 6, 7], [], 2) == (6, 7)


def test_the_last_pair_matters_as_much_as_the_first() -> None:
    """In a row of four the middle pair is the best, and would leave the ends without any link."""
    row = ((0, 3, 0, 0), (3, 0, 4, 0), (0, 4, 0, 3), (0, 0, 3, 0))
    assert unlimited(row).choose(range(4), [], 2) == (0, 1)


def test_required_gpus_are_joined_by_their_best_partners() -> None:
    assert unlimited(machine("dgx-1")).choose([0, 1, 2, 6, 7], [6], 2) == (6, 7)
    assert unlimited(tree((2, 50), (4, 20), (8, 10))).choose(range(8), [5], 4) == (4, 5, 6, 7)


def test_the_best_partner_is_left_to_a_gpu_that_has_no_other() -> None:
    """On a DGX-1, 7 goes best with 6; then 4 and 5 would be left with one link where 5-6 and 4-7 have two each."""
    assert unlimited(machine("dgx-1")).choose(range(8), [6], 2) == (5, 6)


def test_equal_gpus_are_taken_in_order() -> None:
    assert unlimited(tree((16, 1810))).choose(range(3, 16), [], 5) == (3, 4, 5, 6, 7)


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
def test_unusual_requests_have_answers(
    free: list[int], required: list[int], size: int, expected: tuple[int, ...]
) -> None:
    assert unlimited(tree((2, 50), (4, 20))).choose(free, required, size) == expected


def test_a_machine_without_gpus_has_an_answer() -> None:
    assert unlimited(()).choose([], [], 1) == ()


@given(requests(graphs(most=9) | trees(most=10)), st.integers(0, 30))
def test_after_the_time_limit_there_is_still_a_complete_answer(request: Request, ticks: int) -> None:
    scores, free, required, size = request
    chosen = Chooser(scores, clock=SteppingClock().read, limit=ticks).choose(free, required, size)
    assert len(chosen) == size
    assert set(required) <= set(chosen) <= set(free)


def test_more_time_never_makes_the_answer_worse() -> None:
    scores = _disorder(12)
    answers = [Chooser(scores, SteppingClock().read, limit).choose(range(12), [], 4) for limit in range(0, 2000, 50)]
    cut = [rating(scores, range(12), chosen)[:2] for chosen in answers]
    assert cut[0] < cut[-1] == best_rating(scores, range(12), [], 4)[:2]
    assert cut[1:] == sorted(cut[1:])


def test_an_answer_after_the_time_limit_is_not_remembered() -> None:
    scores, clock = _disorder(12), SteppingClock(step=1.0)
    chooser, exact = Chooser(scores, clock.read, limit=1.0), unlimited(scores).choose(range(12), [], 4)
    assert chooser.choose(range(12), [], 4) != exact
    clock.step = 0.0
    assert chooser.choose(range(12), [], 4) == exact


def test_too_many_gpus_without_order_are_chosen_greedily() -> None:
    scores = _disorder(40)
    chosen = unlimited(scores).choose(range(40), [7], 20)
    assert len(chosen) == 20
    assert 7 in chosen
    assert together(scores, chosen) > together(scores, range(20))


def test_a_tree_with_no_two_branches_alike_is_given_up_in_time() -> None:
    """Forty GPUs one behind the other: every set is of a shape of its own, and there are a billion of twenty."""
    scores = tuple(tuple(0 if one == other else max(one, other) for other in range(40)) for one in range(40))
    chosen = Chooser(scores, SteppingClock().read, limit=300.0).choose(range(40), [], 20)
    assert len(chosen) == 20


def _drained(chooser: Chooser, count: int, size: int) -> list[tuple[int, ...]]:
    """The groups of successive requests until no GPU is free."""
    free, groups = set(range(count)), []
    while free:
        groups.append(chooser.choose(free, [], size))
        free -= set(groups[-1])
    return groups


def _disorder(size: int) -> Scores:
    chance = Random(3)
    pairs = {pair: chance.choice([10, 20, 50, 110, 250]) for pair in combinations(range(size), 2)}
    return tuple(
        tuple(0 if one == other else pairs[min(one, other), max(one, other)] for other in range(size))
        for one in range(size)
    )
