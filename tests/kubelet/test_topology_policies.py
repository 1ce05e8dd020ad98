"""Topology policies; numbers in comments are those of the facts, T1 to T15 the worked examples of the real code."""

from collections.abc import Mapping
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.errors import ConfigError
from plugwright.kubelet.topology_manager import (
    Decision,
    TopologyHint,
    TopologyPolicy,
    TopologyScope,
    check_machine,
    merge_hints,
)

Results = Mapping[str, tuple[TopologyHint, ...] | None]
BEST_EFFORT, RESTRICTED, SINGLE = TopologyPolicy.BEST_EFFORT, TopologyPolicy.RESTRICTED, TopologyPolicy.SINGLE_NUMA_NODE


def read(text: str) -> tuple[TopologyHint, ...]:
    """Hints as the table writes them: {nodes}+ where preferred, {nodes}- where not."""
    return tuple(TopologyHint(frozenset(map(int, hint[1:-2].split(","))), hint[-1] == "+") for hint in text.split())


ONE_OF_TWO = "{0}+ {1}+ {0,1}-"
LATTER_HALF = "{1}+ {0,1}-"
TABLE = {
    "T1": (2, read(ONE_OF_TWO), {0}, {0}, {0}),
    "T2": (2, read("{0,1}+"), {0, 1}, {0, 1}, None),
    "T3": (2, read(LATTER_HALF), {1}, {1}, {1}),
    "T4": (2, (), {0, 1}, None, None),
    "T6": (2, read("{0,1}-"), {0, 1}, None, None),
    "T7": (2, read("{0}+ {0,1}-"), {0}, {0}, {0}),
    "T8": (2, read("{0}+"), {0}, {0}, {0}),
    "T8b": (2, (), {0, 1}, None, None),
    "T9": (2, read(ONE_OF_TWO), {0}, {0}, {0}),
    "T10": (2, read(LATTER_HALF), {1}, {1}, {1}),
    "T11": (2, (), {0, 1}, None, None),
    "T12": (4, read("{0}+ {2}+ {0,2}-"), {0}, {0}, {0}),
    "T13": (2, read(ONE_OF_TWO), {0}, {0}, {0}),
    "T15": (3, read("{0,1}+ {0,2}+ {1,2}+ {0,1,2}-"), {0, 1}, {0, 1}, None),
}


@pytest.mark.parametrize("example", TABLE)
def test_the_worked_examples_are_decided_as_by_the_real_kubelet(example: str) -> None:
    count, hints, *expected = TABLE[example]
    for policy, nodes in zip((BEST_EFFORT, RESTRICTED, SINGLE), expected, strict=True):
        decision = merge_hints(policy, {"a/b": hints}, range(count))
        assert decision.admitted == (nodes is not None)
        assert nodes is None or decision.hint.nodes == frozenset(nodes)


@pytest.mark.parametrize("results", [{}, {"a/b": None}])
def test_no_preference_is_admitted_by_every_policy(results: Results) -> None:  # 5.13, T5
    for policy in (BEST_EFFORT, RESTRICTED):
        assert merge_hints(policy, results, (0, 1)) == Decision(TopologyHint(frozenset({0, 1}), True), True)
    assert merge_hints(SINGLE, results, (0, 1)) == Decision(
        TopologyHint(None, True), True
    )  # 5.16: all nodes are stored as no mask


def test_policy_none_uses_no_hints_and_stores_no_mask() -> None:  # 5.16, 5.18
    assert merge_hints(TopologyPolicy.NONE, {"a/b": ()}, (0, 1)) == Decision(TopologyHint(None, False), True)


def test_no_possibility_is_an_unpreferred_hint_without_mask() -> None:  # 5.13
    decision = merge_hints(BEST_EFFORT, {"a/b": (), "a/c": read("{1}+")}, (0, 1))
    assert decision == Decision(TopologyHint(frozenset({1}), False), True)
    assert not merge_hints(RESTRICTED, {"a/b": (), "a/c": read("{1}+")}, (0, 1)).admitted


def test_two_resources_that_prefer_the_same_node_get_it() -> None:  # 5.14
    results = {"a/b": read(ONE_OF_TWO), "a/c": read(LATTER_HALF)}
    assert merge_hints(RESTRICTED, results, (0, 1)) == Decision(TopologyHint(frozenset({1}), True), True)
    assert merge_hints(SINGLE, results, (0, 1)) == Decision(TopologyHint(frozenset({1}), True), True)


def test_masks_that_are_preferred_but_not_equal_make_none_that_is() -> None:  # 5.14
    results = {"a/b": read("{0}+"), "a/c": read("{0,1}+")}
    assert merge_hints(BEST_EFFORT, results, (0, 1)) == Decision(TopologyHint(frozenset({0}), False), True)
    assert not merge_hints(RESTRICTED, results, (0, 1)).admitted


def test_resources_on_different_nodes_share_nothing_and_get_all_nodes() -> None:  # 5.15
    results = {"a/b": read("{0}+"), "a/c": read("{1}+")}
    assert merge_hints(BEST_EFFORT, results, (0, 1)) == Decision(TopologyHint(frozenset({0, 1}), False), True)
    assert merge_hints(SINGLE, results, (0, 1)) == Decision(TopologyHint(None, False), False)  # 5.16


def test_size_of_an_unpreferred_mask_is_the_greatest_minimum() -> None:  # 5.15
    results = {"a/b": read("{0}- {0,1}- {0,1,2}-"), "a/c": read("{0,1}- {0,1,2}-")}
    assert merge_hints(BEST_EFFORT, results, range(3)).hint == TopologyHint(frozenset({0, 1}), False)


def test_a_mask_below_the_size_is_nearer_than_one_above_it() -> None:  # 5.15
    results = {"a/b": read("{0,1}- {1,2,3}-"), "a/c": read("{0,4}- {1,2,3}-")}  # merged: {0}, {1} and {1,2,3}
    assert merge_hints(BEST_EFFORT, results, range(5)).hint == TopologyHint(frozenset({0}), False)


def test_a_mask_above_the_size_is_better_than_none() -> None:  # 5.15
    results = {"a/b": read("{0}- {1,2}-"), "a/c": read("{3}- {1,2}-")}
    assert merge_hints(BEST_EFFORT, results, range(4)).hint == TopologyHint(frozenset({1, 2}), False)


def test_the_closest_nodes_win_where_distances_count() -> None:  # 5.15, prefer-closest-numa-nodes
    distances = {0: [10, 31, 21], 1: [31, 10, 11], 2: [21, 11, 10]}
    results = {"a/b": read("{0,1}+ {0,2}+ {1,2}+ {0,1,2}-")}
    assert merge_hints(RESTRICTED, results, range(3)).hint.nodes == frozenset({0, 1})
    assert merge_hints(RESTRICTED, results, range(3), distances=distances).hint.nodes == frozenset({1, 2})


def test_one_node_alone_is_stored_as_no_mask_by_single_numa_node() -> None:  # 5.16
    assert merge_hints(SINGLE, {"a/b": read("{0}+")}, [0]) == Decision(TopologyHint(None, True), True)


def test_the_defaults_are_spelled_as_in_the_kubelets_configuration() -> None:  # 5.17
    assert [*TopologyPolicy] == ["none", "best-effort", "restricted", "single-numa-node"]
    assert [*TopologyScope] == ["container", "pod"]


def test_more_than_eight_nodes_are_refused_with_a_policy() -> None:  # 5.17
    check_machine(TopologyPolicy.NONE, range(9))
    check_machine(RESTRICTED, range(8))
    check_machine(RESTRICTED, range(9), limit=9)
    with pytest.raises(ConfigError, match=r"policy restricted the number of NUMA nodes must be at most 8, got 9"):
        check_machine(RESTRICTED, range(9))
    with pytest.raises(ConfigError, match="at least 8, got 7"):
        check_machine(RESTRICTED, range(2), limit=7)


@pytest.mark.parametrize("node", [-1, 64])
def test_a_node_that_no_mask_can_hold_is_refused(node: int) -> None:  # 5.17
    check_machine(TopologyPolicy.NONE, [0, 63])
    with pytest.raises(ConfigError, match=f"0 to 63, got {node}"):
        check_machine(TopologyPolicy.NONE, [0, node])


def test_five_resources_on_eight_nodes_are_decided_without_trying_every_combination() -> None:
    every = tuple(
        TopologyHint(frozenset(node for node in range(8) if mask >> node & 1), False) for mask in range(1, 256)
    )  # 255 to the fifth power: a million million combinations
    assert merge_hints(BEST_EFFORT, {f"a/{name}": every for name in "bcdef"}, range(8)).hint == TopologyHint(
        frozenset({0}), False
    )


MACHINE = (0, 1, 3)
masks = st.sets(st.sampled_from(MACHINE), min_size=1).map(frozenset)
found_hints = st.lists(st.builds(TopologyHint, masks, st.booleans()), max_size=5).map(tuple)
all_results = st.dictionaries(st.sampled_from(["a/b", "a/c", "a/d"]), st.none() | found_hints)
Merged = tuple[frozenset[int], bool]


def naive(policy: TopologyPolicy, results: Results) -> Decision:
    """The facts 5.13 to 5.16 a second time, combination by combination and comparison by comparison."""
    choices = [
        [TopologyHint(None, True)] if hints is None else list(hints) or [TopologyHint(None, False)]
        for hints in results.values()
    ]
    choices = choices or [[TopologyHint(None, True)]]
    if policy is SINGLE:
        choices = [[hint for hint in hints if hint.preferred and len(hint.nodes or {0}) == 1] for hints in choices]
    sizes = [[len(hint.nodes) for hint in hints if hint.nodes is not None] for hints in choices]
    largest = max((min(resource_sizes) for resource_sizes in sizes if resource_sizes), default=0)
    current: Merged | None = None
    for combination in product(*choices):
        candidate = merged(combination)
        if candidate[0] and (current is None or beats(candidate, current, largest)):
            current = candidate
    nodes, preferred = current or (frozenset(MACHINE), False)
    stored = None if policy is SINGLE and nodes == set(MACHINE) else nodes
    return Decision(TopologyHint(stored, preferred), policy is BEST_EFFORT or preferred)


def merged(combination: tuple[TopologyHint, ...]) -> Merged:
    present = [hint.nodes for hint in combination if hint.nodes is not None]
    preferred = all(hint.preferred for hint in combination) and len(set(present)) <= 1
    return frozenset(MACHINE).intersection(*present), preferred


def beats(candidate: Merged, current: Merged, largest: int) -> bool:
    if candidate[1] != current[1]:
        return candidate[1]
    size, present = len(candidate[0]), len(current[0])
    narrower = (size, number(candidate[0])) < (present, number(current[0]))
    if current[1] or present > largest:
        return narrower
    if size == present:
        return narrower
    return present < size <= largest


def number(nodes: frozenset[int]) -> int:
    return sum(2**node for node in nodes)


@given(st.sampled_from([BEST_EFFORT, RESTRICTED, SINGLE]), all_results)
def test_decisions_are_those_of_the_facts_word_for_word(policy: TopologyPolicy, results: Results) -> None:
    assert merge_hints(policy, results, MACHINE) == naive(policy, results)
