"""The checkpoint of Kubernetes 1.11 to 1.19, whose devices are a plain list: read only on request."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.errors import CheckpointCorrupt
from plugwright.protocol import checkpoint
from plugwright.protocol.checkpoint import Checkpoint, PodDevicesEntry

# The file that Kubernetes' own tests of this layout read, in pieces; its checksum was made by a kubelet of that time.
HISTORIC_CHECKSUM = 405612085
ANSWERS = [
    "CiIKHUVYQU1QTEVDT01ERVZJQ0VBX0RFVkEzX1RUWTEwEgEwGhwKCi9kZXYvdHR5MTASCi9kZXYvdHR5MTAaAnJ3",
    "CiIKHUVYQU1QTEVDT01ERVZJQ0VBX0RFVkE0X1RUWTExEgEwGhwKCi9kZXYvdHR5MTESCi9kZXYvdHR5MTEaAnJ3",
]
PODS = ["13ac2284-0d19-44b7-b94f-055b032dba9b", "86b9a017-c9ca-4069-815f-46ca3e53c1e4"]


def entry(pod: str, device_ids: object, answer: str | None = "") -> dict[str, object]:
    return {
        "PodUID": pod,
        "ContainerName": "centos",
        "ResourceName": "example.com/deviceA",
        "DeviceIDs": device_ids,
        "AllocResp": answer,
    }


def written(entries: list[dict[str, object]], checksum: int) -> bytes:
    registered = {"example.com/deviceA": ["DevA1", "DevA2", "DevA3", "DevA4"]}
    data = {"PodDeviceEntries": entries, "RegisteredDevices": registered}
    return json.dumps({"Data": data, "Checksum": checksum}).encode()


HISTORIC = written(
    [entry(PODS[0], ["DevA3"], ANSWERS[0]), entry(PODS[1], ["DevA4"], ANSWERS[1])],
    HISTORIC_CHECKSUM,
)


def fnv1a(text: str) -> int:
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 % 2**32
    return value


def hashed(*entries: str) -> int:
    """The checksum of what Go printed then (4.12)."""
    return fnv1a(
        "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)["
        + " ".join(entries)
        + "] RegisteredDevices:(map[string][]string)map[example.com/deviceA:[DevA1 DevA2 DevA3 DevA4]]}"
    )


def hashed_entry(pod: str, device_ids: str) -> str:
    names = f"{{PodUID:(string){pod} ContainerName:(string)centos ResourceName:(string)example.com/deviceA "
    return f"{names}DeviceIDs:([]string){device_ids} AllocResp:([]uint8)[]}}"


def test_4_12_the_historic_file_is_read_and_its_checksum_is_right() -> None:
    reading = checkpoint.read(HISTORIC, plain_lists=True)
    assert (reading.stored, reading.computed, reading.plain_lists) == (HISTORIC_CHECKSUM, HISTORIC_CHECKSUM, True)
    assert checkpoint.held_by_resource(reading.checkpoint)["example.com/deviceA"] == {"DevA3": (0,), "DevA4": (0,)}


def test_4_11_devices_of_the_old_layout_are_under_node_0() -> None:
    texts = [hashed_entry("a", "[x y]"), hashed_entry("b", "[]"), hashed_entry("c", "<nil>")]
    data = written([entry("a", ["x", "y"]), entry("b", []), entry("c", None)], hashed(*texts))
    entries = checkpoint.decode(data, plain_lists=True).entries
    assert entries is not None
    assert [entry.devices for entry in entries] == [{0: ("x", "y")}, {0: ()}, {0: None}]


def test_4_11_the_old_layout_is_refused_where_it_is_not_asked_for() -> None:
    with pytest.raises(CheckpointCorrupt, match="entry 1 of PodDeviceEntries: DeviceIDs must be an object, got a list"):
        checkpoint.decode(HISTORIC)


def test_the_old_layout_with_a_wrong_checksum_is_refused() -> None:
    data = HISTORIC.replace(b"405612085", b"405612086")
    with pytest.raises(CheckpointCorrupt, match="checksum: stored 405612086, computed 405612085"):
        checkpoint.decode(data, plain_lists=True)


@pytest.mark.parametrize("order", [1, -1])
def test_both_layouts_in_one_file_are_refused(order: int) -> None:
    entries = [entry("a", ["x"]), entry("b", {"0": ["y"]})][::order]
    with pytest.raises(
        CheckpointCorrupt, match=r"entry [12] of PodDeviceEntries: DeviceIDs must be a list, got an object"
    ):
        checkpoint.decode(written(entries, 1), plain_lists=True)


def test_an_entry_that_is_no_object_is_refused_in_either_layout() -> None:
    data = json.dumps({"Data": {"PodDeviceEntries": [7, entry("a", ["x"])]}}).encode()
    with pytest.raises(CheckpointCorrupt, match="entry 1 of PodDeviceEntries: it must be an object, got a number"):
        checkpoint.decode(data, plain_lists=True)


def test_4_10_the_file_of_1_10_has_no_checksum_and_is_refused() -> None:
    data = json.dumps({"PodDeviceEntries": [entry("a", ["x"])], "RegisteredDevices": {}}).encode()
    with pytest.raises(CheckpointCorrupt, match="checksum: stored 0, computed 2932075448"):
        checkpoint.decode(data, plain_lists=True)


texts = st.text(max_size=8)
lists = st.none() | st.lists(texts, max_size=3).map(tuple)
entries = st.builds(
    PodDevicesEntry,
    pod_uid=texts,
    container=texts,
    resource=texts,
    devices=st.dictionaries(st.integers(-1, 12), lists, max_size=3),
    answer=st.none() | st.binary(max_size=8),
)
checkpoints = st.builds(
    Checkpoint,
    entries=st.none() | st.lists(entries, max_size=3).map(tuple),
    registered=st.none() | st.dictionaries(texts, lists, max_size=3),
)


@given(checkpoints)
def test_accepting_the_old_layout_changes_nothing_for_the_new_one(value: Checkpoint) -> None:
    assert checkpoint.decode(checkpoint.encode(value), plain_lists=True) == value
