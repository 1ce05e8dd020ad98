"""The default preference: fewest NUMA nodes, then stable order; and any plugin's answer made a valid one."""

from collections.abc import Iterable, Sequence
from itertools import combinations
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plugwright.model import Device, PreferenceRequest
from plugwright.sdk import plugin

steady = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # however busy the machine is

PLACES = st.lists(st.lists(st.integers(0, 4), max_size=2), max_size=7)
MANY_PLACES = st.lists(st.lists(st.integers(0, 40), max_size=2), max_size=40)
IDS = st.sampled_from([f"g{number}" for number in range(6)])


def devices_at(places: Iterable[list[int]]) -> list[Device]:
    return [Device(f"g{number}", numa=nodes) for number, nodes in enumerate(places)]


def ids(devices: Iterable[Device]) -> list[str]:
    return [device.id for device in devices]


def nodes_needed(devices: Sequence[Device]) -> int:
    """The fewest NUMA nodes such that every device is near one of them; devices on none are near all."""
    nodes = {node for device in devices for node in device.numa}
    for count in range(len(nodes) + 1):
        for chosen in map(set, combinations(sorted(nodes), count)):
            if all(not device.numa or chosen & set(device.numa) for device in devices):
                return count
    raise AssertionError("all nodes together are enough")


def fewest(available: list[Device], required: list[Device], size: int) -> int:
    free = [device for device in available if device not in required]
    return min(nodes_needed([*required, *more]) for more in combinations(free, size - len(required)))


@st.composite
def requests(draw: st.DrawFn, places: st.SearchStrategy[list[list[int]]]) -> tuple[list[Device], list[Device], int]:
    """Devices, some of them required, and a size that can be met."""
    available = devices_at(draw(places))
    required = [device for device in available if draw(st.booleans())] if draw(st.booleans()) else []
    return available, required, draw(st.integers(len(required), len(available)))


@steady
@given(requests(PLACES))
def test_no_other_choice_touches_fewer_numa_nodes(request: tuple[list[Device], list[Device], int]) -> None:
    assert nodes_needed(plugin.fewest_numa_nodes(*request)) == fewest(*request)


@steady
@given(st.one_of(requests(PLACES), requests(MANY_PLACES)))
def test_the_choice_is_as_large_as_asked_has_what_is_required_and_nothing_else(
    request: tuple[list[Device], list[Device], int],
) -> None:
    available, required, size = request
    chosen = plugin.fewest_numa_nodes(available, required, size)
    assert len(chosen) == len(set(ids(chosen))) == size
    assert set(required) <= set(chosen) <= set(available)


@steady
@given(st.one_of(requests(PLACES), requests(MANY_PLACES)), st.randoms(use_true_random=False))
def test_the_choice_is_the_same_whatever_the_order_of_the_input(
    request: tuple[list[Device], list[Device], int], random: Random
) -> None:
    available, required, size = request
    shuffled, among = list(available), list(required)
    random.shuffle(shuffled)
    random.shuffle(among)
    assert plugin.fewest_numa_nodes(shuffled, among, size) == plugin.fewest_numa_nodes(*request)


@steady
@given(requests(PLACES), st.integers(-3, 20))
def test_a_size_that_cannot_be_met_gives_what_there_is(
    request: tuple[list[Device], list[Device], int], size: int
) -> None:
    available, required, _ = request
    chosen = plugin.fewest_numa_nodes(available, required, max(0, size))
    assert len(chosen) == max(0, min(size, len(available)))


def test_among_equals_the_order_is_that_of_the_ids() -> None:
    assert ids(plugin.fewest_numa_nodes(devices_at([[0]] * 12), [], 3)) == ["g0", "g1", "g2"]
    assert ids(plugin.fewest_numa_nodes(devices_at([[]] * 12)[9:], [], 2)) == ["g9", "g10"]


def test_one_node_that_is_enough_is_better_than_two_with_lower_ids() -> None:
    assert ids(plugin.fewest_numa_nodes(devices_at([[0], [1], [1]]), [], 2)) == ["g1", "g2"]


def test_a_required_device_decides_for_its_node() -> None:
    available = devices_at([[0], [0], [1], [1]])
    assert ids(plugin.fewest_numa_nodes(available, [available[2]], 2)) == ["g2", "g3"]


def test_required_devices_that_are_not_available_are_chosen_too() -> None:
    spare, available = Device("spare", numa=[1]), devices_at([[0], [1]])
    assert ids(plugin.fewest_numa_nodes(available, [spare], 2)) == ["spare", "g1"]


def test_more_required_than_asked_gives_no_more_than_asked() -> None:
    required = devices_at([[0], [1], [2]])
    assert ids(plugin.fewest_numa_nodes([], required, 2)) == ["g0", "g1"]


def test_a_single_node_that_is_enough_is_found_among_very_many() -> None:
    available = devices_at([[node] for node in range(16)] + [[15]])
    assert ids(plugin.fewest_numa_nodes(available, [], 2)) == ["g15", "g16"]


@steady
@given(st.lists(st.text(max_size=3) | IDS), st.lists(IDS, unique=True), st.lists(IDS, unique=True), st.integers(0, 8))
def test_any_answer_becomes_a_valid_one(
    answer: list[str], available: list[str], required: list[str], size: int
) -> None:
    request = PreferenceRequest(tuple(available), tuple(required), size)
    chosen = plugin.valid_preference([*answer, *sorted(available)], request)
    assert len(chosen) == len(set(chosen)) == min(size, len({*available, *required}))
    assert chosen[: len(required)] == required[:size]
    assert set(chosen) <= {*available, *required}


@steady
@given(st.lists(IDS, unique=True, min_size=1))
def test_a_valid_answer_is_kept_as_it_is(answer: list[str]) -> None:
    request = PreferenceRequest(tuple(f"g{number}" for number in range(6)), (), len(answer))
    assert plugin.valid_preference([*answer, *request.available], request) == answer
