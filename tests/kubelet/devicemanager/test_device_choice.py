"""The selection of devices for a container; numbers in comments are those of the facts."""

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


def request(required: int, devices: Sequence[ListedDevice], mask: frozenset[int] | None = None) -> AllocationRequest:
    listed = devices_of(*devices)
    return AllocationRequest(TAPE, required, frozenset(), frozenset(), listed.healthy, mask, listed)


@dataclass
class QueriedPlugin:
    """The plugin of a selection: the queries it gets, and the preference it answers with."""

    preference: Sequence[str] = ()
    queries: list[PreferenceRequest] = field(default_factory=list)

    def select(self, request: AllocationRequest) -> frozenset[str]:
        selection = select_devices(request)
        try:
            query = next(selection)
            while True:
                self.queries.append(query.request)
                query = selection.send(self.preference)
        except StopIteration as chosen:
            return frozenset(chosen.value)


def refusal(request: AllocationRequest, *, is_registered: bool = True, refuses_unhealthy: bool = True) -> str:
    with pytest.raises(AllocationFailed) as raised:
        check_allocatable(request, is_registered=is_registered, refuses_unhealthy=refuses_unhealthy)
    return str(raised.value)


def test_a_resource_without_a_plugin_is_refused() -> None:  # 3.15
    assert refusal(request(1, PLAIN), is_registered=False) == f"cannot allocate unregistered device {TAPE}"


@pytest.mark.parametrize("required", [0, 1])
def test_allocation_without_healthy_devices_is_refused(required: int) -> None:  # 3.16, and 3.18 for none at all
    ill = request(required, [device("a", health="Unhealthy")])
    assert refusal(ill) == f"no healthy devices present; cannot allocate unhealthy devices {TAPE}"


def test_devices_that_are_held_must_be_healthy() -> None:  # 3.17
    holding = replace(request(1, [device("a", health="Unhealthy"), device("b")]), held=frozenset({"a"}))
    assert (
        refusal(holding)
        == f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {TAPE}"
    )


def test_health_is_not_checked_before_1_28() -> None:  # 3.16, 3.17 by version
    check_allocatable(request(1, [device("a", health="Unhealthy")]), is_registered=True, refuses_unhealthy=False)


def test_reusable_devices_are_taken_first_and_without_a_query() -> None:  # 3.19
    plugin = QueriedPlugin(preference=["d3"])
    reusing = replace(request(1, PLAIN), reusable=frozenset({"d1", "d2"}), available=frozenset({"d0", "d3"}))
    assert plugin.select(reusing) == {"d1"}
    assert plugin.queries == []


def test_reusable_devices_are_taken_whatever_their_health_and_numa_node() -> None:  # 3.19
    listed = (device("far", 1, health="Unhealthy"), device("near", 0))
    reusing = replace(request(1, listed, ZERO), reusable=frozenset({"far"}))
    assert QueriedPlugin().select(reusing) == {"far"}


def test_too_few_devices_are_refused_with_both_numbers() -> None:  # 3.20
    with pytest.raises(AllocationFailed) as raised:
        QueriedPlugin().select(request(5, PLAIN))
    text = f"requested number of devices unavailable for {TAPE}. Requested: 5, Available: 4"
    assert str(raised.value) == text


def test_refusal_counts_the_devices_still_missing() -> None:  # 3.12, 3.20
    reusing = replace(request(3, PLAIN), reusable=frozenset({"d0"}), available=frozenset({"d3"}))
    with pytest.raises(AllocationFailed, match="Requested: 2, Available: 1"):
        QueriedPlugin().select(reusing)


@pytest.mark.parametrize("unaligned", [request(2, PLAIN, ZERO), request(2, FOUR, None)], ids=["no topology", "no mask"])
def test_devices_without_topology_or_mask_have_no_affinity(unaligned: AllocationRequest) -> None:  # 3.21
    plugin = QueriedPlugin()
    plugin.select(unaligned)
    assert [set(query.available) for query in plugin.queries] == [unaligned.available]


def test_plugin_is_queried_without_topology_even_if_there_is_no_choice() -> None:  # 3.25
    plugin = QueriedPlugin()
    assert plugin.select(request(4, PLAIN)) == {"d0", "d1", "d2", "d3"}
    assert plugin.queries == [PreferenceRequest(("d0", "d1", "d2", "d3"), (), 4)]


def test_one_node_in_the_mask_is_enough_to_be_aligned() -> None:  # 3.22
    listed = (device("both", 0, 1), device("far", 1), device("none"))
    assert QueriedPlugin().select(request(1, listed, ZERO)) == {"both"}


def test_among_more_aligned_devices_than_needed_the_plugin_chooses() -> None:  # 3.23
    plugin = QueriedPlugin(preference=["b1", "a1"])
    assert plugin.select(request(1, FOUR, ZERO)) == {"a1"}
    assert plugin.queries == [PreferenceRequest(("a0", "a1"), (), 1)]


def test_aligned_devices_complete_a_short_preference() -> None:  # 3.23
    listed = (*FOUR, device("a2", 0))
    assert QueriedPlugin(preference=["a2"]).select(request(2, listed, ZERO)) == {"a0", "a2"}


def test_as_many_aligned_devices_as_needed_are_taken_without_a_query() -> None:  # 3.24
    plugin = QueriedPlugin(preference=["b0", "b1"])
    assert plugin.select(request(2, FOUR, ZERO)) == {"a0", "a1"}
    assert plugin.queries == []


def test_beside_too_few_aligned_devices_the_plugin_chooses_among_all() -> None:  # 3.24
    plugin = QueriedPlugin(preference=["a0", "a1", "b1"])
    assert plugin.select(request(3, FOUR, ZERO)) == {"a0", "a1", "b1"}
    assert plugin.queries == [PreferenceRequest(("a0", "a1", "b0", "b1"), ("a0", "a1"), 3)]


def test_devices_of_other_nodes_go_before_those_without_any() -> None:  # 3.24
    listed = (device("a", 0), device("x"), device("z", 1))
    assert QueriedPlugin().select(request(2, listed, ZERO)) == {"a", "z"}


def test_size_of_a_query_counts_reused_devices() -> None:  # 3.23, 3.24
    plugin = QueriedPlugin()
    reusing = replace(request(2, PLAIN), reusable=frozenset({"d0"}), available=frozenset({"d1", "d2"}))
    assert plugin.select(reusing) == {"d0", "d1"}
    assert plugin.queries == [PreferenceRequest(("d0", "d1", "d2"), ("d0",), 2)]


@pytest.mark.parametrize(
    ("preference", "chosen"),
    [
        (["d3", "d1"], {"d3", "d1"}),
        (["d3", "d3"], {"d0", "d3"}),
        (["nobody", "taken", "d2"], {"d0", "d2"}),
        (["d3", "d2", "d1"], {"d3", "d2"}),
        ([], {"d0", "d1"}),
    ],
    ids=["followed", "repeated", "not to be had", "too many", "empty"],
)
def test_preference_is_followed_as_far_as_possible(preference: list[str], chosen: set[str]) -> None:  # 3.29
    assert QueriedPlugin(preference).select(request(2, PLAIN)) == chosen


def test_unaligned_preference_is_dropped_where_aligned_devices_are_enough() -> None:  # 3.29
    assert QueriedPlugin(["b0", "b1"]).select(request(1, FOUR, ZERO)) == {"a0"}


NODES = st.sampled_from([(), (0,), (1,), (0, 1), (2,)])
CLAIMS = st.builds(
    lambda devices, reusable, required, mask: replace(
        request(required, [device(name, *nodes) for name, nodes in devices.items()], mask),
        reusable=frozenset(reusable & devices.keys()),
        available=frozenset(devices.keys() - reusable),
    ),
    st.dictionaries(st.sampled_from([f"d{n}" for n in range(8)]), NODES, min_size=1),
    st.sets(st.sampled_from(["d0", "d1", "d2"])),
    st.integers(1, 6),
    st.none() | st.frozensets(st.sampled_from([0, 1, 2]), min_size=1),
)
WISHES = st.lists(st.sampled_from([f"d{n}" for n in range(9)]))


def split(request: AllocationRequest) -> tuple[set[str], set[str]]:
    """The available devices that touch the mask, and those that have no node: none and all, if there is no mask."""
    if request.mask is None or not request.devices.has_topology:
        return set(), set(request.available)
    near = {device_id for device_id in request.available if request.mask & set(request.devices.nodes(device_id))}
    return near, {device_id for device_id in request.available if not request.devices.nodes(device_id)}


@given(CLAIMS, WISHES)
def test_selection_is_complete_and_from_the_candidates(
    request: AllocationRequest, preference: list[str]
) -> None:  # 3.19, 3.20, 3.26
    plugin = QueriedPlugin(preference)
    if request.required > len(request.reusable | request.available):
        with pytest.raises(AllocationFailed, match="requested number of devices unavailable"):
            plugin.select(request)
        return
    chosen = plugin.select(request)
    assert len(chosen) == request.required
    assert chosen <= request.reusable | request.available
    assert len(chosen & request.reusable) == min(request.required, len(request.reusable))
    assert plugin.select(request) == chosen  # the same query has the same answer


@given(CLAIMS, WISHES)
def test_selection_is_aligned_first_and_then_as_preferred(
    request: AllocationRequest, preference: list[str]
) -> None:  # 3.21 to 3.25
    missing = request.required - len(request.reusable)
    if not 0 < missing <= len(request.available):
        return
    plugin, (near, _) = QueriedPlugin(preference), split(request)
    fresh = plugin.select(request) - request.reusable
    if missing < len(near):
        assert len(fresh & set(preference) & near) == min(missing, len(set(preference) & near))
        assert fresh <= near
    else:
        assert near <= fresh
        left = missing - len(near)
        assert len((fresh - near) & set(preference)) == min(left, len((request.available - near) & set(preference)))
        assert len(plugin.queries) == bool(left)
    for query in plugin.queries:
        assert set(query.required) <= set(query.available)
        assert query.size == request.required


@given(CLAIMS)
def test_selection_without_a_preference_takes_unaligned_devices_before_those_without_affinity(
    request: AllocationRequest,
) -> None:  # 3.24
    missing = request.required - len(request.reusable)
    near, anywhere = split(request)
    far = request.available - near - anywhere
    if len(near) < missing <= len(request.available):
        fresh = QueriedPlugin().select(request) - request.reusable
        assert len(fresh & far) == min(missing - len(near), len(far))
