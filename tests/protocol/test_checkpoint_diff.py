"""The meaning of checkpoints, whatever the order of their entries, and explanations of wrong checksums."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from plugwright.protocol import checkpoint
from plugwright.protocol.checkpoint import Checkpoint, CheckpointReading, PodDevicesEntry
from plugwright.protocol.checkpoint_diff import EntryKey, decoded_entries, differences, explain

names = st.sampled_from(["", "a", "b", "c"])
lists = st.lists(st.sampled_from(["g0", "g1", "g2"]), unique=True, max_size=3).map(tuple)
entries = st.builds(
    PodDevicesEntry,
    pod_uid=names,
    container=names,
    resource=names,
    devices=st.none() | st.dictionaries(st.integers(-1, 2), st.none() | lists, max_size=2),
    answer=st.sampled_from([None, b"", b"\xff", b"\n\x06\n\x01A\x12\x01B"]),
)
checkpoints = st.builds(
    Checkpoint,
    entries=st.lists(entries, max_size=4, unique_by=lambda entry: (entry.pod_uid, entry.container, entry.resource)).map(
        tuple
    ),
    registered=st.none() | st.dictionaries(names, st.none() | lists, max_size=3),
)


def entry(
    pod: str, devices: dict[int, tuple[str, ...] | None] | None = None, answer: bytes | None = b""
) -> PodDevicesEntry:
    return PodDevicesEntry(pod, "main", "example.com/gpu", devices, answer)


def reading(content: Checkpoint, stored: int) -> CheckpointReading:
    return CheckpointReading(content, stored, checkpoint.checksum(content), plain_lists=False)


def reordered(content: Checkpoint, order: list[PodDevicesEntry]) -> Checkpoint:
    """The same content in another order."""
    backwards = [
        replace(
            entry,
            devices=entry.devices and {node: ids and ids[::-1] for node, ids in reversed(list(entry.devices.items()))},
        )
        for entry in order
    ]
    lists = content.registered and {name: ids and ids[::-1] for name, ids in reversed(list(content.registered.items()))}
    return Checkpoint(tuple(backwards), lists)


@given(checkpoints, st.data())
def test_order_has_no_meaning(content: Checkpoint, data: st.DataObject) -> None:
    order = data.draw(st.permutations(content.entries or ()))
    assert differences(content, reordered(content, order)) == []


@given(checkpoints, checkpoints)
def test_difference_is_reversed_with_the_sides(old: Checkpoint, new: Checkpoint) -> None:
    there, back = differences(old, new), differences(new, old)
    assert [(difference.key, difference.added, difference.removed) for difference in there] == [
        (difference.key, difference.removed, difference.added) for difference in back
    ]
    words = {"added": "removed", "removed": "added", "changed": "changed"}
    assert [words[difference.change] for difference in there] == [difference.change for difference in back]


def test_last_of_two_entries_for_one_container_counts() -> None:
    first, last = entry("p", {0: ("g0",)}), entry("p", {0: ("g1",)})
    assert differences(Checkpoint((first, last), {}), Checkpoint((last,), {})) == []
    assert differences(Checkpoint((last, first), {}), Checkpoint((last,), {})) != []


def test_a_pod_without_a_name_is_not_a_list_of_devices() -> None:
    nameless = PodDevicesEntry("", "", "r", {}, b"")
    [first, second] = differences(Checkpoint((nameless,), {}), Checkpoint((), {"r": ()}))
    assert {first.key, second.key} == {EntryKey("", "", "r"), EntryKey("", "", "r", registered=True)}


def test_responses_that_do_not_decode_are_distinguished() -> None:
    left, right = (Checkpoint((entry("p", answer=answer),), {}) for answer in (b"\xff", b"\xff\xff"))
    [difference] = differences(left, right)
    assert difference.change == "changed"


def test_decoded_entries_are_sorted_and_numbered() -> None:
    decoded = decoded_entries(Checkpoint((entry("b"), entry("a"), entry("c", answer=b"\xff")), {}))
    assert [(entry.key.pod_uid, entry.number, bool(entry.problem)) for entry in decoded] == [
        ("a", 2, False), ("b", 1, False), ("c", 3, True),
    ]  # fmt: skip


SPOILED = {
    "[] for PodDeviceEntries": (Checkpoint((), {}), Checkpoint(None, {})),
    "null for PodDeviceEntries": (Checkpoint(None, {}), Checkpoint((), {})),
    "{} for RegisteredDevices": (Checkpoint(None, {}), Checkpoint(None, None)),
    "null for RegisteredDevices": (Checkpoint(None, None), Checkpoint(None, {})),
    '"" for AllocResp in entry 2 of PodDeviceEntries': (
        Checkpoint((entry("a"), entry("b")), {}),
        Checkpoint((entry("a"), entry("b", answer=None)), {}),
    ),
    "null for DeviceIDs in entry 1 of PodDeviceEntries": (
        Checkpoint((entry("a", None),), {}),
        Checkpoint((entry("a", {}),), {}),
    ),
    "PodDeviceEntries in the order 2, 3, 1": (
        Checkpoint((entry("a"), entry("b"), entry("c")), {}),
        Checkpoint((entry("c"), entry("a"), entry("b")), {}),
    ),
    "PodDeviceEntries in reverse order": (
        Checkpoint(tuple(map(entry, "abcdefg")), {}),
        Checkpoint(tuple(map(entry, "gfedcba")), {}),
    ),
    "entries 2 and 6 of PodDeviceEntries swapped": (
        Checkpoint(tuple(map(entry, "abcdefg")), {}),
        Checkpoint(tuple(map(entry, "afcdebg")), {}),
    ),
}


@pytest.mark.parametrize(("text", "files"), SPOILED.items(), ids=SPOILED)
def test_usual_accident_is_explained(text: str, files: tuple[Checkpoint, Checkpoint]) -> None:
    good, spoiled = files
    assert explain(reading(spoiled, checkpoint.checksum(good))) == f"with {text}"


def test_other_damage_is_not_explained() -> None:
    assert explain(reading(Checkpoint((entry("a"), entry("b")), {}), stored=1)) == ""


def test_a_large_file_is_not_tried_for_ever() -> None:
    large = Checkpoint(tuple(entry(str(number)) for number in range(2000)), {"r": ("x" * 1_000_000,)})
    assert explain(reading(large, stored=1)) == ""
