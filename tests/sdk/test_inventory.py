"""One list of devices out of several sources, and since when a device has had its state."""

import logging
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plugwright.attributes import Consumption, CounterSet, Version
from plugwright.errors import InvalidValue, ListTooLarge
from plugwright.model import Device
from plugwright.sdk.inventory import DeviceSources, Inventory, Snapshot, compose

steady = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # however busy the machine is

LISTS = st.lists(st.sets(st.sampled_from(["st0", "st1", "st2", "st3"])), min_size=1, max_size=8)


class Clock:
    """A clock that goes up by one with every tick."""

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


def latest(inventory: Inventory) -> Snapshot:
    assert inventory.latest.value is not None
    return inventory.latest.value


def states(inventory: Inventory) -> dict[str, str]:
    """Each device's reason, empty if it is healthy."""
    return {key: "" if device.healthy else device.reason for key, device in latest(inventory).devices.items()}


def test_nothing_is_published_before_the_first_list(inventory: Inventory) -> None:
    inventory.add_held({"st0": ()})
    inventory.cordon({"st0": "dusty"})
    inventory.distrust("no driver")
    inventory.forget(["st1"])
    assert inventory.latest.value is None


def test_an_empty_list_is_a_list(inventory: Inventory) -> None:
    inventory.update([])
    assert (latest(inventory).devices, latest(inventory).encoded) == ({}, b"")


def test_devices_are_listed_in_natural_order(inventory: Inventory) -> None:
    inventory.update([Device("st10"), Device("st9"), Device("st1")])
    assert list(latest(inventory).devices) == ["st1", "st9", "st10"]


def test_a_list_replaces_the_last(inventory: Inventory) -> None:
    inventory.update([Device("st0"), Device("st1", "Unhealthy", "no tape")])
    inventory.update([Device("st0", "Unhealthy", "jammed"), Device("st1")])
    assert states(inventory) == {"st0": "jammed", "st1": ""}


def test_the_same_list_again_is_not_published(inventory: Inventory) -> None:
    inventory.update([Device("st0"), Device("st1")])
    before = latest(inventory)
    inventory.update([Device("st1"), Device("st0")])
    assert latest(inventory) is before


def test_a_list_may_be_any_iterable(inventory: Inventory) -> None:
    inventory.update(Device(f"st{number}") for number in range(2))
    assert set(latest(inventory).devices) == {"st0", "st1"}


WRONG = [None, "st0", 5, ["st0"], [Device("st0"), None], [[Device("st0")]], {"st0": Device("st0")}, Device("st0")]


@pytest.mark.parametrize("devices", WRONG, ids=repr)
def test_a_list_of_the_wrong_kind_is_refused_whole(devices: object, inventory: Inventory) -> None:
    inventory.update([Device("st7")])
    before = latest(inventory)
    with pytest.raises(InvalidValue, match=r"discover\(\) of example.com/tape must yield lists of devices, got"):
        inventory.update(devices)
    assert latest(inventory) is before


def test_a_list_with_an_id_twice_is_refused_whole(inventory: Inventory) -> None:
    inventory.update([Device("st7")])
    with pytest.raises(InvalidValue, match="lists 'st0' twice"):
        inventory.update([Device("st0"), Device("st1"), Device("st0", "Unhealthy")])
    assert states(inventory) == {"st7": ""}


def test_a_list_too_large_is_refused_whole_and_the_next_one_is_taken(inventory: Inventory) -> None:
    inventory.update([Device("st0")])
    with pytest.raises(ListTooLarge, match=r"example.com/tape lists 60001 devices in \d+ bytes"):
        inventory.update([Device(f"{number:063}") for number in range(60_000)])
    assert (states(inventory), inventory.removed_since) == ({"st0": ""}, {})
    inventory.update([Device("st0"), Device("st1")])
    assert states(inventory) == {"st0": "", "st1": ""}


def test_a_device_no_longer_found_stays_listed_as_unhealthy(inventory: Inventory, clock: Clock) -> None:
    inventory.update([Device("st0", numa=[1], attributes={"model": "T1"}), Device("st1")])
    clock.tick()
    inventory.update([Device("st1")])
    gone = Device("st0", "Unhealthy", "gone: discovery no longer finds it", [1], {"model": "T1"}, "gone")
    assert latest(inventory).devices["st0"] == gone
    assert latest(inventory).since == {"st0": 1, "st1": 0}
    assert inventory.removed_since == {"st0": 1}


def test_removed_since_lasts_from_the_first_removal_until_the_device_returns(
    inventory: Inventory, clock: Clock
) -> None:
    inventory.update([Device("st0")])
    for _ in range(3):
        clock.tick()
        inventory.update([])
    assert (inventory.removed_since, latest(inventory).since) == ({"st0": 1}, {"st0": 1})
    clock.tick()
    inventory.update([Device("st0")])
    assert (states(inventory), inventory.removed_since, latest(inventory).since) == ({"st0": ""}, {}, {"st0": 4})


def test_forget_drops_a_removed_device_and_keeps_a_discovered_one(inventory: Inventory) -> None:
    inventory.update([Device("st0"), Device("st1")])
    inventory.update([Device("st1")])
    inventory.forget(["st0", "st1", "st9"])
    assert (states(inventory), inventory.removed_since) == ({"st1": ""}, {})


def test_held_devices_are_listed_with_the_first_list(inventory: Inventory, clock: Clock) -> None:
    inventory.add_held({"st0": (1,), "st1": ()})
    clock.tick()
    inventory.update([Device("st1")])
    held = Device(
        "st0", "Unhealthy", "a pod holds it, but it is not found, or no longer in the configuration", [1], code="gone"
    )
    assert latest(inventory).devices == {"st0": held, "st1": Device("st1")}
    assert inventory.removed_since == {"st0": 0}


def test_held_devices_are_listed_after_the_first_list_too(inventory: Inventory, clock: Clock) -> None:
    inventory.update([Device("st1")])
    clock.tick()
    inventory.add_held({"st0": (0, 1), "st1": ()})
    assert latest(inventory).devices["st0"].numa == (0, 1)
    assert (latest(inventory).since, inventory.removed_since) == ({"st0": 1, "st1": 0}, {"st0": 1})


def test_holding_a_removed_device_changes_nothing(inventory: Inventory) -> None:
    inventory.update([Device("st0")])
    inventory.update([])
    before = latest(inventory)
    inventory.add_held({"st0": (3,)})
    assert latest(inventory) is before


def test_a_held_id_that_no_device_can_have_is_left_out(inventory: Inventory) -> None:
    inventory.add_held({"": (), "st 0": (), "x" * 64: (), "st0": (-1,)})
    inventory.publish_without_list()
    assert list(latest(inventory).devices) == ["st0"]


def test_publish_without_list_publishes_what_is_known_and_only_once(inventory: Inventory) -> None:
    inventory.add_held({"st0": ()})
    inventory.distrust("no driver")
    inventory.publish_without_list()
    assert states(inventory) == {"st0": "a pod holds it, but it is not found, or no longer in the configuration"}
    before = latest(inventory)
    inventory.publish_without_list()
    assert latest(inventory) is before


def test_a_failing_discovery_marks_healthy_devices_and_leaves_other_reasons(inventory: Inventory) -> None:
    inventory.update([Device("st0"), Device("st1", "Unhealthy", "no tape"), Device("st2")])
    inventory.update([Device("st0"), Device("st1", "Unhealthy", "no tape")])
    inventory.distrust("no driver")
    assert states(inventory) == {"st0": "no driver", "st1": "no tape", "st2": "gone: discovery no longer finds it"}


def test_a_list_ends_the_failure(inventory: Inventory, clock: Clock) -> None:
    inventory.update([Device("st0")])
    clock.tick()
    inventory.distrust("no driver")
    assert latest(inventory).since == {"st0": 1}
    clock.tick()
    inventory.update([Device("st0")])
    assert (states(inventory), latest(inventory).since) == ({"st0": ""}, {"st0": 2})


def test_a_cordon_wins_over_everything_and_is_lifted_again(inventory: Inventory) -> None:
    inventory.cordon({"st0": "dusty", "st1": "dusty", "st2": "dusty", "st9": "not there"})
    inventory.update([Device("st0"), Device("st1", "Unhealthy", "no tape"), Device("st2")])
    inventory.update([Device("st0"), Device("st1", "Unhealthy", "no tape")])
    inventory.distrust("no driver")
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
        inventory.update([device])
        since.append(latest(inventory).since["st0"])
        clock.tick()
    assert since == [0, 0, 0, 3, 3, 5]


def test_a_change_that_the_kubelet_cannot_see_keeps_the_message(inventory: Inventory) -> None:
    inventory.update([Device("st0", "Unhealthy", "hot", attributes={"temperature": 90})])
    before = latest(inventory)
    inventory.update([Device("st0", "Unhealthy", "very hot", attributes={"temperature": 99})])
    assert latest(inventory) is not before
    assert latest(inventory).encoded == before.encoded


CARD = CounterSet("card0", {"memory": 2})
ONLY_FOR_CLAIMS = {
    "a capacity": Device("st0", capacity={"memory": "40Gi"}),
    "another capacity": Device("st0", capacity={"memory": "80Gi"}),
    "a device that is shared": Device("st0", capacity={"memory": "80Gi"}, allow_multiple=True),
    "counters": Device("st0", consumes=[Consumption(CARD, {"memory": 1})]),
    "other counters": Device("st0", consumes=[Consumption(CARD, {"memory": 2})]),
    "a text": Device("st0", attributes={"driver": "1.2.3"}),
    "a version": Device("st0", attributes={"driver": Version("1.2.3")}),
    "a number": Device("st0", attributes={"driver": 1}),
    "a truth": Device("st0", attributes={"driver": True}),
}


def test_what_only_claims_see_is_a_change_too(inventory: Inventory) -> None:
    inventory.update([Device("st0")])
    for name, device in ONLY_FOR_CLAIMS.items():
        before = latest(inventory)
        inventory.update([device])
        assert latest(inventory) is not before, name
        assert latest(inventory).encoded == before.encoded
        same = latest(inventory)
        inventory.update([device.replace()])
        assert latest(inventory) is same, name


@steady
@given(LISTS, st.sampled_from(["", "no driver"]), st.sets(st.sampled_from(["st0", "st1"])))
def test_every_device_ever_found_stays_listed_and_is_healthy_only_if_it_is_sound(
    lists: list[set[str]], failure: str, cordoned: set[str]
) -> None:
    inventory = Inventory("example.com/tape", Clock())
    inventory.cordon(dict.fromkeys(cordoned, "dusty"))
    for found in lists:
        inventory.update([Device(device_id) for device_id in found])
    inventory.distrust(failure)
    ever = set().union(*lists)
    sound = set() if failure else lists[-1] - cordoned
    assert {key: device.healthy for key, device in latest(inventory).devices.items()} == {
        device_id: device_id in sound for device_id in ever
    }
    assert inventory.removed_since.keys() == ever - lists[-1]


def test_compose_merges_removed_cordoned_and_failed_devices() -> None:
    known = DeviceSources(
        discovered={"b": Device("b")}, removed={"a": Device("a", "Unhealthy", "gone")}, cordons={"b": "x"}
    )
    cordoned = Device("b", "Unhealthy", "cordoned: x", code="cordoned")
    assert list(compose(known).values()) == [Device("a", "Unhealthy", "gone"), cordoned]


def test_a_list_that_is_taken_can_turn_unhealthy(inventory: Inventory) -> None:
    with suppress(ListTooLarge):  # to refuse it at once would do as well
        inventory.update([Device(f"{number:063}") for number in range(55_188)])
    inventory.distrust("no driver")
    assert inventory.latest.value is None or not latest(inventory).devices[f"{0:063}"].healthy


def changes(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    records = [vars(record) for record in caplog.records if record.getMessage() == "device changed health"]
    return [(facts["levelname"], facts["device"], facts["reason"]) for facts in records]


def test_each_change_of_health_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "plugwright.sdk.inventory")
    inventory = Inventory("example.com/tape")
    inventory.update([Device("st0"), Device("st1", "Unhealthy", "no tape")])
    inventory.update([Device("st0", "Unhealthy", "dust"), Device("st1", "Unhealthy", "no tape, still")])
    inventory.update([Device("st0"), Device("st1", "Unhealthy", "no tape")])
    inventory.update([Device("st0")])
    assert changes(caplog) == [("WARNING", "st1", "no tape"), ("WARNING", "st0", "dust"), ("INFO", "st0", "")]


def test_another_reason_is_logged_if_the_last_one_has_lasted(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    inventory = Inventory("example.com/tape", clock)
    for reason, ticks in (("dust", 60), ("96 degrees", 10), ("97 degrees", 59), ("dust", 60), ("no tape", 60)):
        inventory.update([Device("st0", "Unhealthy", reason)])
        for _ in range(ticks):
            clock.tick()
    inventory.update([Device("st0", "Unhealthy", "no tape")])
    assert [reason for _, _, reason in changes(caplog)] == ["dust", "96 degrees", "no tape"]


def test_a_device_that_another_configuration_lacks_says_so(inventory: Inventory) -> None:
    inventory.update([Device("st0"), Device("st1")])
    inventory.reconfigure()
    inventory.update([Device("st0")])
    inventory.update([])
    assert states(inventory) == {
        "st0": "gone: discovery no longer finds it",
        "st1": "no longer in the configuration: listed until no pod can hold it",
    }


def test_many_changes_of_health_at_once_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "plugwright.sdk.inventory")
    inventory = Inventory("example.com/tape")
    inventory.update([Device(f"st{number}") for number in range(5_000)])
    inventory.distrust("no driver")
    [record] = caplog.records
    facts = vars(record)
    assert (facts["message"], facts["levelname"]) == ("devices changed health", "WARNING")
    assert (facts["unhealthy"], facts["healthy"], facts["reason"]) == (5_000, 0, "no driver")
    assert len(facts["devices"]) < 200
