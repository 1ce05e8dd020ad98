"""Topology hints; numbers in comments are those of the facts, T1 to T15 the worked examples of the real code."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.kubelet.topology_manager import ResourceTopology, TopologyHint, topology_hints

FOUR = {"a": (0,), "b": (0,), "c": (1,), "d": (1,)}
TWO_NODES = (0, 1)


def all_free(known: Mapping[str, tuple[int, ...]]) -> ResourceTopology:
    return ResourceTopology(known, set(known))


def written(hints: tuple[TopologyHint, ...] | None) -> str:
    """As in the table: {nodes}+ where preferred, {nodes}- where not."""
    if hints is None:
        return "no preference"
    return " ".join(f"{{{','.join(map(str, sorted(hint.nodes or ())))}}}{'-+'[hint.preferred]}" for hint in hints)


IN_USE_A = ResourceTopology(FOUR, {"b", "c", "d"})
EXAMPLES: dict[str, tuple[ResourceTopology, int, str]] = {
    "T1 all free": (all_free(FOUR), 1, "{0}+ {1}+ {0,1}-"),
    "T2 all free": (all_free(FOUR), 3, "{0,1}+"),
    "T3 a in use": (IN_USE_A, 2, "{1}+ {0,1}-"),
    "T4 plus e without topology": (all_free({**FOUR, "e": ()}), 5, ""),
    "T5 no device has topology": (all_free({"a": (), "b": ()}), 1, "no preference"),
    "T6 b unhealthy": (ResourceTopology({"a": (0,), "b": (0,), "c": (1,)}, {"a", "c"}), 2, "{0,1}-"),
    "T7 a of the own init container": (replace(IN_USE_A, reusable={"a"}), 2, "{0}+ {0,1}-"),
    "T7 in pod scope": (IN_USE_A, 2, "{1}+ {0,1}-"),
    "T8 b on an unknown node": (all_free({"a": (0,), "b": (7,)}), 1, "{0}+"),
    "T8b only b, on an unknown node": (all_free({"b": (7,)}), 1, ""),
    "T9 s on both": (all_free({"s": (0, 1), "c": (1,)}), 1, "{0}+ {1}+ {0,1}-"),
    "T10 own c and d held": (ResourceTopology(FOUR, {"a", "b"}, held={"c", "d"}), 2, "{1}+ {0,1}-"),
    "T11 own c held": (ResourceTopology(FOUR, {"a", "b", "d"}, held={"c"}), 2, ""),
    "T13 nothing wanted": (all_free({"a": (0,), "c": (1,)}), 0, "{0}+ {1}+ {0,1}-"),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_worked_examples_come_out_as_in_the_real_kubelet(example: str) -> None:
    topology, request, expected = EXAMPLES[example]
    assert written(topology_hints(topology, request, TWO_NODES)) == expected


def test_masks_are_of_nodes_that_carry_devices() -> None:  # 5.6, T12
    topology = all_free({"a": (0,), "c": (2,)})
    assert written(topology_hints(topology, 1, range(4))) == "{0}+ {2}+ {0,2}-"


def test_masks_come_by_size_then_in_node_order() -> None:  # 5.7, T15
    topology = all_free({"a": (0,), "b": (1,), "c": (2,)})
    assert written(topology_hints(topology, 2, range(3))) == "{0,1}+ {0,2}+ {1,2}+ {0,1,2}-"


def test_before_1_36_masks_are_of_every_node_of_the_machine() -> None:  # 5.6
    topology = all_free({"a": (0,), "c": (2,)})
    hints = topology_hints(topology, 1, range(3), masks_of_devices_only=False)
    assert written(hints) == "{0}+ {2}+ {0,1}- {0,2}- {1,2}- {0,1,2}-"


def test_an_unhealthy_device_on_a_node_of_its_own_makes_the_node_a_candidate() -> None:  # 5.6
    topology = ResourceTopology({"a": (0,), "b": (1,)}, {"a"})
    assert written(topology_hints(topology, 1, TWO_NODES)) == "{0}+ {0,1}-"


def test_a_device_without_nodes_is_no_topology_even_beside_a_request_too_large() -> None:  # 5.3 before 5.4 and 5.5
    assert topology_hints(ResourceTopology({"a": ()}, {"a"}), 9, TWO_NODES) is None
    assert topology_hints(ResourceTopology({"a": ()}, set(), held={"a"}), 9, TWO_NODES) is None


def test_too_few_devices_are_no_possibility() -> None:  # 5.5
    assert topology_hints(IN_USE_A, 4, TWO_NODES) == ()


def test_reusable_devices_count_as_available() -> None:  # 5.5
    assert written(topology_hints(replace(IN_USE_A, reusable={"a"}), 4, TWO_NODES)) == "{0,1}+"


def test_hints_of_a_container_with_devices_are_those_of_its_devices() -> None:  # 5.4
    topology = ResourceTopology(FOUR, {"a", "b"}, reusable={"a"}, held={"c"})
    assert written(topology_hints(topology, 1, TWO_NODES)) == "{1}+ {0,1}-"


def test_a_held_device_that_left_the_list_counts_nowhere() -> None:  # 5.4; the real kubelet crashes from 1.34 on (2.25)
    assert topology_hints(ResourceTopology({"a": (0,)}, {"a"}, held={"gone"}), 1, TWO_NODES) == ()


def test_unhealthy_devices_lower_the_minimum_size() -> None:  # 5.8, 5.12
    known = {"a": (0,), "b": (0,), "c": (1,)}
    assert written(topology_hints(all_free(known), 2, TWO_NODES)) == "{0}+ {0,1}-"
    assert written(topology_hints(ResourceTopology(known, {"a", "c"}), 2, TWO_NODES)) == "{0,1}-"


def test_a_mask_without_a_reusable_device_is_dropped() -> None:  # 5.9
    topology = ResourceTopology(FOUR, {"b", "d"}, reusable={"a", "c"})
    assert written(topology_hints(topology, 1, TWO_NODES)) == "{0,1}-"


def test_a_reusable_device_without_topology_drops_no_mask_and_counts_nowhere() -> None:  # 5.9, 5.10
    topology = ResourceTopology({**FOUR, "e": ()}, {"a", "c", "d"}, reusable={"e"})
    assert written(topology_hints(topology, 2, TWO_NODES)) == "{1}+ {0,1}-"


def test_a_machine_without_nodes_has_no_possibility() -> None:
    assert topology_hints(all_free(FOUR), 1, ()) == ()


def test_unknown_node_number_costs_nothing() -> None:  # 5.6; 5.17: masks hold 0 to 63
    assert written(topology_hints(all_free({"a": (0,), "b": (2**62,), "c": (-1,)}), 1, TWO_NODES)) == "{0}+"


def test_thousands_of_devices_on_eight_nodes_are_counted_by_class() -> None:
    known = {f"d{number}": (number % 8,) for number in range(50_000)}
    hints = topology_hints(all_free(known), 12_500, range(8))
    assert hints is not None
    assert [len(hint.nodes or ()) for hint in hints if hint.preferred] == [2] * 28
    assert len(hints) == 255 - 8


nodes = st.lists(st.integers(0, 4), unique=True, max_size=3).map(tuple)


@st.composite
def supplies(draw: st.DrawFn) -> ResourceTopology:
    known = draw(st.dictionaries(st.sampled_from("abcdefgh"), nodes, max_size=8))
    some = st.sets(st.sampled_from("abcdefgh"))
    return ResourceTopology(known, draw(some) & set(known), draw(some), draw(st.one_of(st.just(set[str]()), some)))


def naive(
    topology: ResourceTopology, request: int, machine: list[int], devices_only: bool
) -> tuple[TopologyHint, ...] | None:
    """The facts 5.3 to 5.11 a second time, device by device and mask by mask."""
    known, available, reusable = topology.known, set(topology.available), set(topology.reusable)
    if all(not where for where in known.values()):
        return None
    if topology.held and len(topology.held) != request:
        return ()
    if topology.held:
        available, reusable = set(topology.held), set()
    elif len(available | reusable) < request:
        return ()
    carrying = sorted({node for where in known.values() for node in where if node in machine})
    candidates = carrying if devices_only and carrying else machine
    masks = [set(nodes) for size in range(len(candidates)) for nodes in combinations(candidates, size + 1)]
    enough = [len(mask) for mask in masks if sum(bool(mask & set(where)) for where in known.values()) >= request]
    placed = [set(known[device]) for device in reusable if known.get(device)]
    kept = []
    for mask in masks:
        there = [set(known.get(device, ())) & mask for device in available]
        if all(mask & where for where in placed) and len(placed) + sum(map(bool, there)) >= request:
            kept.append(mask)
    least = min([*enough, len(candidates)])
    return tuple(TopologyHint(frozenset(mask), len(mask) == least) for mask in kept)


@given(supplies(), st.integers(0, 9), st.lists(st.integers(0, 3), unique=True).map(sorted), st.booleans())
def test_hints_are_those_of_the_facts_word_for_word(
    topology: ResourceTopology, request: int, machine: list[int], devices_only: bool
) -> None:
    expected = naive(topology, request, machine, devices_only)
    assert topology_hints(topology, request, machine, masks_of_devices_only=devices_only) == expected
