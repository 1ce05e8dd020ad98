"""Devices leave the kubelet's list so that no pod is refused which the scheduler has bound."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from plugwright.dra.both.leaving import Leaving
from plugwright.dra.both.move_settings import MoveSettings

UNIT = ("st0",)
SETTINGS = MoveSettings()


@dataclass
class Node:
    """`leaving` of one unit, by a clock of the test's own."""

    now: float = 100.0
    careful: bool = True
    leaving: Leaving = field(init=False)

    def __post_init__(self) -> None:
        self.leaving = Leaving(replace(SETTINGS, clock=lambda: self.now), lambda: self.careful)

    def look(self, stay: int, *, lacking: bool) -> None:
        self.leaving.look(UNIT, stay, lacking=lacking)


def test_a_device_leaves_at_once_while_another_one_is_free_or_a_pod_holds_it() -> None:
    node = Node()
    assert not node.leaving.may_leave(UNIT, 0), "nothing has been read yet"
    node.look(0, lacking=False)
    assert node.leaving.may_leave(UNIT, 0)


def test_the_last_free_device_leaves_when_nobody_takes_it() -> None:
    node = Node()
    node.look(0, lacking=True)
    assert not node.leaving.may_leave(UNIT, 0)
    node.now += SETTINGS.unwanted
    node.look(0, lacking=True)
    assert node.leaving.may_leave(UNIT, 0)


def test_a_device_that_pods_take_again_and_again_leaves_in_the_end() -> None:
    node = Node()
    for listed in range(0, int(SETTINGS.patience), 2):
        node.look(listed, lacking=False)
        node.look(listed + 1, lacking=True)
        assert node.leaving.is_needed(UNIT, listed + 1)
        node.now += 2
    assert not node.leaving.is_needed(UNIT, listed + 1)
    node.look(listed + 2, lacking=True)
    assert node.leaving.may_leave(UNIT, listed + 2)


def test_a_withheld_device_is_needed_only_while_the_scheduler_counts_it() -> None:
    node = Node()
    node.look(1, lacking=False)
    node.leaving.compare(allocatable=4, offered=3)
    node.look(1, lacking=True)
    assert node.leaving.is_needed(UNIT, 1)
    node.leaving.compare(allocatable=3, offered=3)
    assert node.leaving.is_needed(UNIT, 1), "a pod may have been bound a moment before"
    node.now += SETTINGS.bound
    assert not node.leaving.is_needed(UNIT, 1)
    assert not node.leaving.is_counted(UNIT, 1)


def test_a_device_that_nobody_wanted_when_it_was_withheld_is_not_needed() -> None:
    node = Node()
    node.look(1, lacking=True)
    node.leaving.compare(allocatable=1, offered=0)
    assert not node.leaving.is_needed(UNIT, 1)
    assert node.leaving.is_counted(UNIT, 1)


def test_a_node_that_cannot_be_read_is_not_waited_for_longer_than_a_kubelet_takes() -> None:
    node = Node()
    node.look(1, lacking=False)
    assert node.leaving.is_counted(UNIT, 1)
    node.now += SETTINGS.counted
    assert not node.leaving.is_counted(UNIT, 1)


def test_what_was_seen_in_an_earlier_state_does_not_count() -> None:
    node = Node()
    node.look(1, lacking=False)
    node.leaving.compare(allocatable=0, offered=0)
    node.now += SETTINGS.bound
    node.look(2, lacking=False)
    assert node.leaving.is_counted(UNIT, 2)


def test_where_all_devices_leave_nothing_is_waited_for() -> None:
    node = Node(careful=False)
    node.look(0, lacking=True)
    assert node.leaving.may_leave(UNIT, 0)
    assert not node.leaving.is_counted(UNIT, 0)
