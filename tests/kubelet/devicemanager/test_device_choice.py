"""Which devices a container gets; the numbers are those of the facts."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kubelet.actors import TAPE, device

from plugwright.errors import AllocationFailed
from plugwright.kubelet.devicemanager.allocation import AllocationRequest, check_allocatable, select_devices
from plugwright.kubelet.devicemanager.devices import DeviceStore, ResourceDevices
from plugwright.model import PreferenceRequest
from plugwright.protocol.messages import ListedDevice

FOUR = (device("a0", 0), device("a1", 0), device("b0", 1), device("b1", 1))
PLAIN = tuple(map(device, ("d0", "d1", "d2", "d3")))
ZERO = frozenset({0})


def devices_of(*devices: ListedDevice) -> ResourceDevices:
    store = DeviceStore()
    store.update(TAPE, devices)
    return store.of(TAPE)


def claim(required: int, devices: Sequence[ListedDevice], mask: frozenset[int] | None = None) -> AllocationRequest:
    listed = devices_of(*devices)
    return AllocationRequest(TAPE, required, frozenset(), frozenset(), listed.healthy, mask, listed)


@dataclass
class Asked:
    """A plugin's side of a choice: what it is asked, and the wish it answers with."""

    wish: Sequence[str] = ()
    questions: list[PreferenceRequest] = field(default_factory=list)

    def choose(self, claim: AllocationRequest) -> frozenset[str]:
        choosing = select_devices(claim)
        try:
            question = next(choosing)
            while True:
                self.questions.append(question.request)
                question = choosing.send(self.wish)
        except StopIteration as chosen:
            return frozenset(chosen.value)


def refusal(claim: AllocationRequest, *, is_registered: bool = True, refuses_unhealthy: bool = True) -> str:
    with pytest.raises(AllocationFailed) as told:
        check_allocatable(claim, is_registered=is_registered, refuses_unhealthy=refuses_unhealthy)
    return str(told.value)


def test_a_resource_without_a_plugin_is_refused() -> None:  # 3.15
    assert refusal(claim(1, PLAIN), is_registered=False) == f"cannot allocate unregistered device {TAPE}"


@pytest.mark.parametrize("required", [0, 1])
def test_nothing_is_handed_out_where_nothing_is_healthy(required: int) -> None:  # 3.16, and 3.18 for none at all
    ill = claim(required, [device("a", health="Unhealthy")])
    assert refusal(ill) == f"no healthy devices present; cannot allocate unhealthy devices {TAPE}"


def test_devices_that_are_held_must_be_healthy() -> None:  # 3.17
    holding = replace(claim(1, [device("a", health="Unhealthy"), device("b")]), held=frozenset({"a"}))
    assert (
        refusal(holding)
        == f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {TAPE}"
    )


def test_kubelets_before_1_28_did_not_look_at_health_first() -> None:  # 3.16, 3.17 by version
    check_allocatable(claim(1, [device("a", health="Unhealthy")]), is_registered=True, refuses_unhealthy=False)


def test_what_an_init_container_left_is_taken_first_and_without_asking() -> None:  # 3.19
    asked = Asked(wish=["d3"])
    reusing = replace(claim(1, PLAIN), reusable=frozenset({"d1", "d2"}), available=frozenset({"d0", "d3"}))
    assert asked.choose(reusing) == {"d1"}
    assert asked.questions == []


def test_neither_health_nor_numa_matter_for_what_is_reused() -> None:  # 3.19
    listed = (device("far", 1, health="Unhealthy"), device("near", 0))
    reusing = replace(claim(1, listed, ZERO), reusable=frozenset({"far"}))
    assert Asked().choose(reusing) == {"far"}


def test_too_few_devices_are_refused_with_both_numbers() -> None:  # 3.20
    with pytest.raises(AllocationFailed) as told:
        Asked().choose(claim(5, PLAIN))
    text = f"requested number of devices unavailable for {TAPE}. Requested: 5, Available: 4"
    assert str(told.value) == text


def test_what_is_still_missing_is_what_is_requested() -> None:  # 3.12, 3.20
    reusing = replace(claim(3, PLAIN), reusable=frozenset({"d0"}), available=frozenset({"d3"}))
    with pytest.raises(AllocationFailed, match="Requested: 2, Available: 1"):
        Asked().choose(reusing)


@pytest.mark.parametrize("unaligned", [claim(2, PLAIN, ZERO), claim(2, FOUR, None)], ids=["no topology", "no mask"])
def test_without_topology_or_mask_all_devices_are_alike(unaligned: AllocationRequest) -> None:  # 3.21
    asked = Asked()
    asked.choose(unaligned)
    assert [set(each.available) for each in asked.questions] == [unaligned.available]


def test_without_topology_the_plugin_is_asked_even_if_there_is_no_choice() -> None:  # 3.25
    asked = Asked()
    assert asked.choose(claim(4, PLAIN)) == {"d0", "d1", "d2", "d3"}
    assert asked.questions == [PreferenceRequest(("d0", "d1", "d2", "d3"), (), 4)]


def test_one_node_in_the_mask_is_enough_to_be_aligned() -> None:  # 3.22
    listed = (device("both", 0, 1), device("far", 1), device("none"))
    assert Asked().choose(claim(1, listed, ZERO)) == {"both"}


def test_among_more_aligned_devices_than_needed_the_plugin_chooses() -> None:  # 3.23
    asked = Asked(wish=["b1", "a1"])
    assert asked.choose(claim(1, FOUR, ZERO)) == {"a1"}
    assert asked.questions == [PreferenceRequest(("a0", "a1"), (), 1)]


def test_aligned_devices_fill_up_a_short_wish() -> None:  # 3.23
    listed = (*FOUR, device("a2", 0))
    assert Asked(wish=["a2"]).choose(claim(2, listed, ZERO)) == {"a0", "a2"}


def test_as_many_aligned_devices_as_needed_are_taken_without_asking() -> None:  # 3.24
    asked = Asked(wish=["b0", "b1"])
    assert asked.choose(claim(2, FOUR, ZERO)) == {"a0", "a1"}
    assert asked.questions == []


def test_beside_too_few_aligned_devices_the_plugin_chooses_among_all() -> None:  # 3.24
    asked = Asked(wish=["a0", "a1", "b1"])
    assert asked.choose(claim(3, FOUR, ZERO)) == {"a0", "a1", "b1"}
    assert asked.questions == [PreferenceRequest(("a0", "a1", "b0", "b1"), ("a0", "a1"), 3)]


def test_devices_of_other_nodes_go_before_those_without_any() -> None:  # 3.24
    listed = (device("a", 0), device("x"), device("z", 1))
    assert Asked().choose(claim(2, listed, ZERO)) == {"a", "z"}


def test_the_size_asked_for_counts_what_was_taken_over() -> None:  # 3.23, 3.24
    asked = Asked()
    reusing = replace(claim(2, PLAIN), reusable=frozenset({"d0"}), available=frozenset({"d1", "d2"}))
    assert asked.choose(reusing) == {"d0", "d1"}
    assert asked.questions == [PreferenceRequest(("d0", "d1", "d2"), ("d0",), 2)]


@pytest.mark.parametrize(
    ("wish", "chosen"),
    [
        (["d3", "d1"], {"d3", "d1"}),
        (["d3", "d3"], {"d0", "d3"}),
        (["nobody", "taken", "d2"], {"d0", "d2"}),
        (["d3", "d2", "d1"], {"d3", "d2"}),
        ([], {"d0", "d1"}),
    ],
    ids=["followed", "repeated", "not to be had", "too many", "empty"],
)
def test_an_answer_is_a_wish(wish: list[str], chosen: set[str]) -> None:  # 3.29
    assert Asked(wish).choose(claim(2, PLAIN)) == chosen


def test_unaligned_wishes_are_dropped_where_aligned_devices_are_enough() -> None:  # 3.29
    assert Asked(["b0", "b1"]).choose(claim(1, FOUR, ZERO)) == {"a0"}


NODES = st.sampled_from([(), (0,), (1,), (0, 1), (2,)])
CLAIMS = st.builds(
    lambda devices, reusable, required, mask: replace(
        claim(required, [device(name, *nodes) for name, nodes in devices.items()], mask),
        reusable=frozenset(reusable & devices.keys()),
        available=frozenset(devices.keys() - reusable),
    ),
    st.dictionaries(st.sampled_from([f"d{n}" for n in range(8)]), NODES, min_size=1),
    st.sets(st.sampled_from(["d0", "d1", "d2"])),
    st.integers(1, 6),
    st.none() | st.frozensets(st.sampled_from([0, 1, 2]), min_size=1),
)
WISHES = st.lists(st.sampled_from([f"d{n}" for n in range(9)]))


def split(claim: AllocationRequest) -> tuple[set[str], set[str]]:
    """The available devices that touch the mask, and those that have no node: none and all, if there is no mask."""
    if claim.mask is None or not claim.devices.has_topology:
        return set(), set(claim.available)
    near = {each for each in claim.available if claim.mask & set(claim.devices.nodes(each))}
    return near, {each for each in claim.available if not claim.devices.nodes(each)}


@given(CLAIMS, WISHES)
def test_a_choice_is_complete_and_from_what_there_is(
    claim: AllocationRequest, wish: list[str]
) -> None:  # 3.19, 3.20, 3.26
    asked = Asked(wish)
    if claim.required > len(claim.reusable | claim.available):
        with pytest.raises(AllocationFailed, match="requested number of devices unavailable"):
            asked.choose(claim)
        return
    chosen = asked.choose(claim)
    assert len(chosen) == claim.required
    assert chosen <= claim.reusable | claim.available
    assert len(chosen & claim.reusable) == min(claim.required, len(claim.reusable))
    assert asked.choose(claim) == chosen  # the same question has the same answer


@given(CLAIMS, WISHES)
def test_a_choice_is_as_near_as_it_can_be_and_then_as_wished(
    claim: AllocationRequest, wish: list[str]
) -> None:  # 3.21 to 3.25
    missing = claim.required - len(claim.reusable)
    if not 0 < missing <= len(claim.available):
        return
    asked, (near, _) = Asked(wish), split(claim)
    fresh = asked.choose(claim) - claim.reusable
    if missing < len(near):
        assert len(fresh & set(wish) & near) == min(missing, len(set(wish) & near))
        assert fresh <= near
    else:
        assert near <= fresh
        left = missing - len(near)
        assert len((fresh - near) & set(wish)) == min(left, len((claim.available - near) & set(wish)))
        assert len(asked.questions) == bool(left)
    for question in asked.questions:
        assert set(question.required) <= set(question.available)
        assert question.size == claim.required


@given(CLAIMS)
def test_without_a_wish_devices_of_other_nodes_go_first(claim: AllocationRequest) -> None:  # 3.24
    missing = claim.required - len(claim.reusable)
    near, anywhere = split(claim)
    far = claim.available - near - anywhere
    if len(near) < missing <= len(claim.available):
        fresh = Asked().choose(claim) - claim.reusable
        assert len(fresh & far) == min(missing - len(near), len(far))
