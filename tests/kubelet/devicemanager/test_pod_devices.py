"""Who holds what; the numbers are those of the facts."""

from hypothesis import given
from hypothesis import strategies as st
from tests.kubelet.actors import OTHER, TAPE

from plugwright.kubelet.devicemanager.pod_devices import Ledger, Place, by_node

FIRST, SECOND = Place("one", "main", TAPE), Place("two", "main", TAPE)
PLACES = st.builds(Place, st.sampled_from("123"), st.sampled_from(["init", "main"]), st.sampled_from([TAPE, OTHER]))
HELD = st.dictionaries(st.sampled_from([-1, 0, 1]), st.lists(st.sampled_from("abcd"), min_size=1).map(tuple))


def test_what_is_marked_is_in_use_before_the_plugin_has_answered() -> None:  # 3.27
    book = Ledger()
    book.mark(TAPE, {"a"})
    assert set(book.in_use(TAPE)) == {"a"}
    assert book.entries == ()


def test_a_mark_without_a_record_is_gone_when_the_table_is_rebuilt() -> None:  # 3.39, 3.43
    book = Ledger()
    book.record(FIRST, {0: ("a",)}, b"")
    book.mark(TAPE, {"b"})
    book.rebuild()
    assert set(book.in_use(TAPE)) == {"a"}


def test_a_resource_is_known_while_somebody_holds_or_asks_for_it() -> None:  # 3.10
    book = Ledger()
    assert not book.knows(TAPE)
    book.mark(TAPE, ())
    assert book.knows(TAPE)
    book.rebuild()
    assert not book.knows(TAPE)


def test_a_device_is_recorded_under_every_node_it_has_or_under_minus_one() -> None:  # 3.44
    nodes = {"near": (0,), "both": (0, 1), "empty": ()}
    assert by_node(["near", "both", "empty", "unknown"], nodes) == {
        -1: ("empty", "unknown"),
        0: ("both", "near"),
        1: ("both",),
    }


def test_pods_that_are_not_active_lose_what_they_held() -> None:  # 3.57
    book = Ledger()
    book.record(FIRST, {0: ("a",)}, b"")
    book.record(SECOND, {0: ("b",)}, b"")
    assert book.forget({"two"}) == ["one"]
    assert set(book.in_use(TAPE)) == {"b"}
    assert book.held(FIRST) == ()
    assert book.held(SECOND) == ("b",)


def test_marks_stay_when_there_is_nobody_to_forget() -> None:  # 3.43, 3.57
    book = Ledger()
    book.mark(TAPE, {"leaked"})
    assert book.forget(set()) == []
    assert set(book.in_use(TAPE)) == {"leaked"}


def test_a_device_on_two_nodes_is_held_once() -> None:
    book = Ledger()
    book.record(FIRST, {0: ("a",), 1: ("a", "b")}, b"")
    assert book.held(FIRST) == ("a", "b")


def test_a_holder_is_found_by_the_id_alone() -> None:  # 7.8
    book = Ledger()
    book.record(FIRST, {0: ("same",)}, b"")
    book.record(Place("two", "main", OTHER), {0: ("same",)}, b"")
    assert list(book.holders()) == ["same"]  # one pod of the two, whatever the resource


@given(st.dictionaries(PLACES, HELD), st.sets(st.sampled_from("123")))
def test_what_is_in_use_is_what_is_recorded(
    recorded: dict[Place, dict[int, tuple[str, ...]]], active: set[str]
) -> None:  # 1.22, 3.57
    book = Ledger()
    wanted: dict[str, set[str]] = {TAPE: set(), OTHER: set()}
    for place, devices in recorded.items():
        book.record(place, devices, b"")
        if place.pod_uid in active:
            wanted[place.resource].update(each for ids in devices.values() for each in ids)
    book.forget(active)
    assert {entry.pod_uid for entry in book.entries} <= active
    for same in (book, Ledger(book.entries)):  # as it is, and as after a restart
        assert {resource: set(same.in_use(resource)) for resource in (TAPE, OTHER)} == wanted
