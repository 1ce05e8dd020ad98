"""Who backs a resource, from what is known of it."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.extended_resources.backing import row, rows
from plugwright.extended_resources.resources import Backing, Holder, Key, Local, Node, Pod, Row, Setter, World

NAME = "a/b"
KUBELET = Setter("kubelet", None, kubelet=True)
HAND = Setter("curl", datetime(2026, 11, 15, 10, tzinfo=UTC), kubelet=False)
FRESH = Setter("curl", None, kubelet=False, settled=False)
GPU_CLASS = World({NAME: ("gpu.example.com",)})


def node(capacity: int | None, allocatable: int | None, setter: Setter | None = KUBELET, silence: str = "") -> Node:
    counts = [{} if number is None else {NAME: number} for number in (capacity, allocatable)]
    return Node("n1", "1", counts[0], counts[1], {NAME: setter} if setter else {}, silence, boot_id="here")


def local(*registered: str, listening: int = 0, announced: str = "", held: int = 0) -> World:
    holders = {NAME: (Holder("default", "p", held),)} if held else {}
    return World({}, Local("here", frozenset(registered), listening, frozenset({announced} - {""}), holders))


def judged(of: Node, world: World | None = None) -> tuple[Backing, Key]:
    backing, key, evidence = row(of, NAME, (), world or World()).verdict
    assert evidence
    return backing, key


@pytest.mark.parametrize(
    ("capacity", "allocatable", "setter", "expected"),
    [
        (10, 10, KUBELET, (Backing.PLUGIN, Key.SERVED)),
        (10, 1, KUBELET, (Backing.PLUGIN, Key.SERVED)),
        (10, 0, KUBELET, (Backing.UNKNOWN, Key.FADING)),
        (10, None, KUBELET, (Backing.UNKNOWN, Key.FADING)),
        (0, 0, KUBELET, (Backing.STALE, Key.FREE)),
        (4, 4, HAND, (Backing.MANUAL, Key.FREE)),
        (4, None, FRESH, (Backing.MANUAL, Key.FREE)),
        (6, 4, FRESH, (Backing.MANUAL, Key.FREE)),
        (4, 3, HAND, (Backing.PLUGIN, Key.SERVED)),
        (4, 0, HAND, (Backing.UNKNOWN, Key.FADING)),
        (0, 0, HAND, (Backing.MANUAL, Key.FREE)),
        (4, 4, None, (Backing.UNKNOWN, Key.UNCLEAR)),
        (4, 3, None, (Backing.PLUGIN, Key.SERVED)),
        (0, 0, None, (Backing.STALE, Key.FREE)),
        (None, 4, None, (Backing.UNKNOWN, Key.FREE)),
        (None, None, None, (Backing.UNKNOWN, Key.ABSENT)),
    ],
)
def test_what_the_api_alone_can_tell(
    capacity: int | None, allocatable: int | None, setter: Setter | None, expected: tuple[Backing, Key]
) -> None:
    assert judged(node(capacity, allocatable, setter)) == expected


@pytest.mark.parametrize(("capacity", "allocatable"), [(10, 10), (10, 0), (0, 0)])
def test_of_a_kubelet_that_is_silent_nothing_is_known(capacity: int, allocatable: int) -> None:
    silent = node(capacity, allocatable, silence="its kubelet has not reported")
    assert judged(silent) == (Backing.UNKNOWN, Key.UNCLEAR)


def test_what_was_set_by_hand_is_known_of_a_silent_node_too() -> None:
    assert judged(node(4, None, FRESH, silence="no kubelet has ever reported")) == (Backing.MANUAL, Key.FREE)


@pytest.mark.parametrize(
    ("capacity", "allocatable", "expected"),
    [
        (None, None, (Backing.DRA, Key.ABSENT)),
        (0, 0, (Backing.DRA, Key.FREE)),
        (4, 4, (Backing.PLUGIN, Key.SERVED)),
        (4, 0, (Backing.UNKNOWN, Key.FADING)),
    ],
)
def test_a_device_class_serves_where_no_plugin_does(
    capacity: int | None, allocatable: int | None, expected: tuple[Backing, Key]
) -> None:
    assert judged(node(capacity, allocatable), GPU_CLASS) == expected


@pytest.mark.parametrize("setter", [KUBELET, HAND])
def test_what_the_node_offers_itself_goes_before_a_device_class(setter: Setter) -> None:
    evidence = row(node(4, 4, setter), NAME, (), GPU_CLASS).verdict.evidence
    assert evidence.endswith("; for pods here that goes before DeviceClass gpu.example.com")


@pytest.mark.parametrize(
    ("of", "world", "expected"),
    [
        (node(10, 10), local(NAME, listening=1), (Backing.PLUGIN, Key.SERVED)),
        (node(10, 10), local("c/d", listening=1), (Backing.STALE, Key.FREE)),  # the checkpoint was lost
        (node(10, 0), local(NAME, listening=1), (Backing.UNKNOWN, Key.FADING)),
        (node(10, 0), local(NAME), (Backing.STALE, Key.FADING)),
        (node(10, 0), local(NAME, listening=1, announced=NAME), (Backing.PLUGIN, Key.SERVED)),
        (node(0, 0), local(NAME, listening=1), (Backing.UNKNOWN, Key.FREE)),
        (node(0, 0), local(NAME), (Backing.STALE, Key.FREE)),
        (node(0, 0), local(), (Backing.STALE, Key.FREE)),
        (node(0, 0), local(NAME, listening=1, announced=NAME), (Backing.PLUGIN, Key.SERVED)),
        (node(4, 4, HAND), local(), (Backing.MANUAL, Key.FREE)),
        (node(4, 0, HAND), local(), (Backing.MANUAL, Key.FREE)),
        (node(4, 4, HAND), local(NAME, listening=1), (Backing.PLUGIN, Key.SERVED)),
        (node(4, 4, None), local(), (Backing.UNKNOWN, Key.UNCLEAR)),
    ],
)
def test_the_kubelets_directory_tells_more(of: Node, world: World, expected: tuple[Backing, Key]) -> None:
    assert judged(of, world) == expected


def test_the_directory_of_one_machine_says_nothing_of_another() -> None:
    elsewhere = Node("n2", "1", {NAME: 10}, {NAME: 10}, {NAME: KUBELET}, boot_id="there")
    assert judged(elsewhere, local()) == (Backing.PLUGIN, Key.SERVED)


numbers = st.none() | st.integers(0, 3)
worlds = st.sampled_from([World(), GPU_CLASS, local(), local(NAME), local(NAME, listening=1), local(announced=NAME)])


@given(numbers, numbers, st.sampled_from([None, KUBELET, HAND, FRESH]), st.sampled_from(["", "silent"]), worlds)
def test_there_is_always_a_verdict_and_devices_that_the_kubelet_counts_are_never_free(
    capacity: int | None, allocatable: int | None, setter: Setter | None, silence: str, world: World
) -> None:
    backing, key = judged(node(capacity, allocatable, setter, silence), world)
    if capacity and allocatable and setter == KUBELET and not world.local:
        assert key in (Key.SERVED, Key.UNCLEAR)
    assert (key is Key.ABSENT) == (capacity is None and allocatable is None)
    assert backing is not Backing.STALE or capacity is not None


def found(of: Node, *pods: Pod, world: World | None = None) -> list[Row]:
    return rows(of, pods, world or World())


def test_every_resource_that_is_listed_or_asked_for_has_a_row() -> None:
    of = Node("n1", "1", {"a/b10": 1, "a/b2": 1}, {"c/d": 1})
    asking = Pod("default", "p", "n1", {"e/f": 1, "cpu": 2, "g/h": 0})
    assert [each.resource for each in found(of, asking)] == ["a/b2", "a/b10", "c/d", "e/f"]


def test_pods_hold_what_they_ask_for() -> None:
    pods = [Pod("x", "p2", "n1", {NAME: 1}), Pod("default", "p1", "n1", {NAME: 2})]
    (only,) = found(node(10, 10), *pods)
    assert (only.requested, only.held_by) == (3, "default/p1:2, x/p2:1")


def test_devices_from_a_claim_are_shown_but_not_counted() -> None:
    claiming = Pod("default", "p1", "n1", {NAME: 2}, claimed=frozenset({NAME}))
    (only,) = found(node(0, 0), claiming, world=GPU_CLASS)
    assert (only.requested, only.holders) == (0, (Holder("default", "p1", 2, claim=True),))


def test_what_the_kubelet_has_handed_out_is_held_though_the_api_does_not_know_the_pod() -> None:
    (only,) = found(node(10, 10), world=local(NAME, listening=1, held=3))
    assert only.held_by == "default/p:3"
