"""One list out of all that is known of the devices, and since when each is as it is."""

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plugwright.errors import InvalidValue, ListTooLarge
from plugwright.model import Device
from plugwright.sdk.inventory import Inventory, Knowledge, Snapshot, compose

steady = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # however busy the machine is

LISTS = st.lists(st.sets(st.sampled_from(["st0", "st1", "st2", "st3"])), min_size=1, max_size=8)


class Clock:
    """Tells a time that goes up by one each time it is set on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def tick(self) -> None:
        self.now += 1


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def inventory(clock: Clock) -> Inventory:
    return Inventory("example.com/tape", clock, clock)


def newest(inventory: Inventory) -> Snapshot:
    assert inventory.newest.value is not None
    return inventory.newest.value


def states(inventory: Inventory) -> dict[str, str]:
    """Each device's reason, empty if it is healthy."""
    return {each: "" if device.healthy else device.reason for each, device in newest(inventory).devices.items()}


def test_nothing_is_told_before_the_first_list(inventory: Inventory) -> None:
    inventory.hold({"st0": ()})
    inventory.cordon({"st0": "dusty"})
    inventory.fail("no driver")
    inventory.drop(["st1"])
    assert inventory.newest.value is None


def test_an_empty_list_is_a_list(inventory: Inventory) -> None:
    inventory.find([])
    assert (newest(inventory).devices, newest(inventory).encoded.count) == ({}, 0)


def test_devices_are_listed_in_natural_order(inventory: Inventory) -> None:
    inventory.find([Device("st10"), Device("st9"), Device("st1")])
    assert list(newest(inventory).devices) == ["st1", "st9", "st10"]


def test_a_list_replaces_the_last(inventory: Inventory) -> None:
    inventory.find([Device("st0"), Device("st1", "Unhealthy", "no tape")])
    inventory.find([Device("st0", "Unhealthy", "jammed"), Device("st1")])
    assert states(inventory) == {"st0": "jammed", "st1": ""}


def test_the_same_list_again_is_no_news(inventory: Inventory) -> None:
    inventory.find([Device("st0"), Device("st1")])
    before = newest(inventory)
    inventory.find([Device("st1"), Device("st0")])
    assert newest(inventory) is before


def test_a_list_may_be_any_iterable(inventory: Inventory) -> None:
    inventory.find(Device(f"st{number}") for number in range(2))
    assert set(newest(inventory).devices) == {"st0", "st1"}


WRONG = [None, "st0", 5, ["st0"], [Device("st0"), None], [[Device("st0")]], {"st0": Device("st0")}, Device("st0")]


@pytest.mark.parametrize("devices", WRONG, ids=repr)
def test_a_list_of_the_wrong_kind_is_refused_whole(devices: object, inventory: Inventory) -> None:
    inventory.find([Device("st7")])
    before = newest(inventory)
    with pytest.raises(InvalidValue, match=r"discover\(\) of example.com/tape yields lists of devices, not"):
        inventory.find(devices)
    assert newest(inventory) is before


def test_a_list_with_an_id_twice_is_refused_whole(inventory: Inventory) -> None:
    inventory.find([Device("st7")])
    with pytest.raises(InvalidValue, match="lists 'st0' twice"):
        inventory.find([Device("st0"), Device("st1"), Device("st0", "Unhealthy")])
    assert states(inventory) == {"st7": ""}


def test_a_list_too_large_is_refused_whole_and_the_next_one_is_taken(inventory: Inventory) -> None:
    inventory.find([Device("st0")])
    with pytest.raises(ListTooLarge, match=r"example.com/tape lists 60001 devices in \d+ bytes"):
        inventory.find([Device(f"{number:063}") for number in range(60_000)])
    assert (states(inventory), inventory.departures) == ({"st0": ""}, {})
    inventory.find([Device("st0"), Device("st1")])
    assert states(inventory) == {"st0": "", "st1": ""}


def test_a_device_no_longer_found_stays_listed_as_unhealthy(inventory: Inventory, clock: Clock) -> None:
    inventory.find([Device("st0", numa=[1], attributes={"model": "T1"}), Device("st1")])
    clock.tick()
    inventory.find([Device("st1")])
    gone = Device("st0", "Unhealthy", "gone: discovery no longer finds it", [1], {"model": "T1"})
    assert newest(inventory).devices["st0"] == gone
    assert newest(inventory).since == {"st0": 1, "st1": 0}
    assert inventory.departures == {"st0": 1}


def test_a_departure_lasts_from_its_beginning_and_ends_with_a_return(inventory: Inventory, clock: Clock) -> None:
    inventory.find([Device("st0")])
    for _ in range(3):
        clock.tick()
        inventory.find([])
    assert (inventory.departures, newest(inventory).since) == ({"st0": 1}, {"st0": 1})
    clock.tick()
    inventory.find([Device("st0")])
    assert (states(inventory), inventory.departures, newest(inventory).since) == ({"st0": ""}, {}, {"st0": 4})


def test_a_departed_device_is_dropped_when_told_and_a_found_one_is_not(inventory: Inventory) -> None:
    inventory.find([Device("st0"), Device("st1")])
    inventory.find([Device("st1")])
    inventory.drop(["st0", "st1", "st9"])
    assert (states(inventory), inventory.departures) == ({"st1": ""}, {})


def test_held_devices_are_listed_with_the_first_list(inventory: Inventory, clock: Clock) -> None:
    inventory.hold({"st0": (1,), "st1": ()})
    clock.tick()
    inventory.find([Device("st1")])
    held = Device("st0", "Unhealthy", "gone: a pod holds it, discovery does not find it", [1])
    assert newest(inventory).devices == {"st0": held, "st1": Device("st1")}
    assert inventory.departures == {"st0": 0}


def test_held_devices_are_listed_after_the_first_list_too(inventory: Inventory, clock: Clock) -> None:
    inventory.find([Device("st1")])
    clock.tick()
    inventory.hold({"st0": (0, 1), "st1": ()})
    assert newest(inventory).devices["st0"].numa == (0, 1)
    assert (newest(inventory).since, inventory.departures) == ({"st0": 1, "st1": 0}, {"st0": 1})


def test_holding_what_has_departed_changes_nothing(inventory: Inventory) -> None:
    inventory.find([Device("st0")])
    inventory.find([])
    before = newest(inventory)
    inventory.hold({"st0": (3,)})
    assert newest(inventory) is before


def test_a_held_id_that_nobody_could_make_is_left_out(inventory: Inventory) -> None:
    inventory.hold({"": (), "st 0": (), "x" * 64: (), "st0": (-1,)})
    inventory.settle()
    assert list(newest(inventory).devices) == ["st0"]


def test_settling_tells_what_is_known_and_only_once(inventory: Inventory) -> None:
    inventory.hold({"st0": ()})
    inventory.fail("no driver")
    inventory.settle()
    assert states(inventory) == {"st0": "gone: a pod holds it, discovery does not find it"}
    before = newest(inventory)
    inventory.settle()
    assert newest(inventory) is before


def test_a_failing_discovery_marks_healthy_devices_and_leaves_other_reasons(inventory: Inventory) -> None:
    inventory.find([Device("st0"), Device("st1", "Unhealthy", "no tape"), Device("st2")])
    inventory.find([Device("st0"), Device("st1", "Unhealthy", "no tape")])
    inventory.fail("no driver")
    assert states(inventory) == {"st0": "no driver", "st1": "no tape", "st2": "gone: discovery no longer finds it"}


def test_a_list_ends_the_failure(inventory: Inventory, clock: Clock) -> None:
    inventory.find([Device("st0")])
    clock.tick()
    inventory.fail("no driver")
    assert newest(inventory).since == {"st0": 1}
    clock.tick()
    inventory.find([Device("st0")])
    assert (states(inventory), newest(inventory).since) == ({"st0": ""}, {"st0": 2})


def test_a_cordon_wins_over_everything_and_is_lifted_again(inventory: Inventory) -> None:
    inventory.cordon({"st0": "dusty", "st1": "dusty", "st2": "dusty", "st9": "not there"})
    inventory.find([Device("st0"), Device("st1", "Unhealthy", "no tape"), Device("st2")])
    inventory.find([Device("st0"), Device("st1", "Unhealthy", "no tape")])
    inventory.fail("no driver")
    assert states(inventory) == dict.fromkeys(["st0", "st1", "st2"], "cordoned: dusty")
    inventory.cordon({})
    assert states(inventory) == {"st0": "no driver", "st1": "no tape", "st2": "gone: discovery no longer finds it"}


def test_since_changes_only_with_health_or_reason(inventory: Inventory, clock: Clock) -> None:
    versions = [
        Device("st0"),
        Device("st0", numa=[1]),
        Device("st0", attributes={"temperature": 40}),
        Device("st0", "Unhealthy", "hot"),
        Device("st0", "Unhealthy", "hot", [1]),
        Device("st0", "Unhealthy", "very hot"),
    ]
    since = []
    for device in versions:
        inventory.find([device])
        since.append(newest(inventory).since["st0"])
        clock.tick()
    assert since == [0, 0, 0, 3, 3, 5]


def test_what_the_kubelet_cannot_see_leaves_the_message_as_it_is(inventory: Inventory) -> None:
    inventory.find([Device("st0", "Unhealthy", "hot", attributes={"temperature": 90})])
    before = newest(inventory)
    inventory.find([Device("st0", "Unhealthy", "very hot", attributes={"temperature": 99})])
    assert newest(inventory) is not before
    assert newest(inventory).encoded == before.encoded


@steady
@given(LISTS, st.sampled_from(["", "no driver"]), st.sets(st.sampled_from(["st0", "st1"])))
def test_every_device_ever_found_stays_listed_and_is_healthy_only_if_it_is_sound(
    lists: list[set[str]], failure: str, cordoned: set[str]
) -> None:
    inventory = Inventory("example.com/tape", Clock())
    inventory.cordon(dict.fromkeys(cordoned, "dusty"))
    for found in lists:
        inventory.find([Device(each) for each in found])
    inventory.fail(failure)
    ever = set().union(*lists)
    sound = set() if failure else lists[-1] - cordoned
    assert {each: device.healthy for each, device in newest(inventory).devices.items()} == {
        each: each in sound for each in ever
    }
    assert inventory.departures.keys() == ever - lists[-1]


def test_composing_is_a_matter_of_values() -> None:
    known = Knowledge(found={"b": Device("b")}, departed={"a": Device("a", "Unhealthy", "gone")}, cordons={"b": "x"})
    assert list(compose(known).values()) == [Device("a", "Unhealthy", "gone"), Device("b", "Unhealthy", "cordoned: x")]


def test_a_list_that_is_taken_can_turn_unhealthy(inventory: Inventory) -> None:
    with suppress(ListTooLarge):  # to refuse it at once would do as well
        inventory.find([Device(f"{number:063}") for number in range(55_188)])
    inventory.fail("no driver")
    assert inventory.newest.value is None or not newest(inventory).devices[f"{0:063}"].healthy
