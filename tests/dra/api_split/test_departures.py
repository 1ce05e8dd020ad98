"""Devices leave the kubelet's list so that no pod is refused which the scheduler has bound."""

from dataclasses import dataclass, field

from plugwright.dra.api_split.departures import Departures
from plugwright.dra.api_split.move_settings import MoveSettings

UNIT = ("st0",)
SETTINGS = MoveSettings()


@dataclass
class Node:
    """`departures` of one unit, by a clock of the test's own."""

    now: float = 100.0
    careful: bool = True
    departures: Departures = field(init=False)

    def __post_init__(self) -> None:
        self.departures = Departures(SETTINGS, lambda: self.now, lambda: self.careful)

    def look(self, stay: int, *, lacking: bool) -> None:
        self.departures.look(UNIT, stay, lacking=lacking)


def test_a_device_leaves_at_once_while_another_one_is_free_or_a_pod_holds_it() -> None:
    node = Node()
    assert not node.departures.may_leave(UNIT, 0), "nothing has been read yet"
    node.look(0, lacking=False)
    assert node.departures.may_leave(UNIT, 0)


def test_the_last_free_device_leaves_when_nobody_takes_it() -> None:
    node = Node()
    node.look(0, lacking=True)
    assert not node.departures.may_leave(UNIT, 0)
    node.now += SETTINGS.unwanted
    node.look(0, lacking=True)
    assert node.departures.may_leave(UNIT, 0)


def test_a_device_that_pods_take_again_and_again_leaves_in_the_end() -> None:
    node = Node()
    for listed in range(0, int(SETTINGS.patience), 2):
        node.look(listed, lacking=False)
        node.look(listed + 1, lacking=True)
        assert node.departures.is_needed(UNIT, listed + 1)
        node.now += 2
    assert not node.departures.is_needed(UNIT, listed + 1)
    node.look(listed + 2, lacking=True)
    assert node.departures.may_leave(UNIT, listed + 2)


def test_a_withheld_device_is_needed_only_while_the_scheduler_counts_it() -> None:
    node = Node()
    node.look(1, lacking=False)
    node.departures.compare(allocatable=4, offered=3)
    node.look(1, lacking=True)
    assert node.departures.is_needed(UNIT, 1)
    node.departures.compare(allocatable=3, offered=3)
    assert node.departures.is_needed(UNIT, 1), "a pod may have been bound a moment before"
    node.now += SETTINGS.bound
    assert not node.departures.is_needed(UNIT, 1)
    assert not node.departures.is_counted(UNIT, 1)


def test_a_device_that_nobody_wanted_when_it_was_withheld_is_not_needed() -> None:
    node = Node()
    node.look(1, lacking=True)
    node.departures.compare(allocatable=1, offered=0)
    assert not node.departures.is_needed(UNIT, 1)
    assert node.departures.is_counted(UNIT, 1)


def test_a_node_that_cannot_be_read_is_not_waited_for_longer_than_a_kubelet_takes() -> None:
    node = Node()
    node.look(1, lacking=False)
    assert node.departures.is_counted(UNIT, 1)
    node.now += SETTINGS.counted
    assert not node.departures.is_counted(UNIT, 1)


def test_what_was_seen_in_an_earlier_phase_does_not_count() -> None:
    node = Node()
    node.look(1, lacking=False)
    node.departures.compare(allocatable=0, offered=0)
    node.now += SETTINGS.bound
    node.look(2, lacking=False)
    assert node.departures.is_counted(UNIT, 2)


def test_where_all_devices_leave_nothing_is_waited_for() -> None:
    node = Node(careful=False)
    node.look(0, lacking=True)
    assert node.departures.may_leave(UNIT, 0)
    assert not node.departures.is_counted(UNIT, 0)
