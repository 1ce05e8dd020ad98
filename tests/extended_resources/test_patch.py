"""JSON pointers, and patches of a node's status."""

from hypothesis import given
from hypothesis import strategies as st

from plugwright.extended_resources.changes import addition_patch, describe_patch, json_pointer, removal_patch
from plugwright.extended_resources.resources import NodeSnapshot

VERSION = {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"}


def test_pointer_slashes_and_tildes_are_escaped() -> None:
    assert json_pointer("status", "capacity", "example.com/a~b") == "/status/capacity/example.com~1a~0b"


@given(st.lists(st.text()))
def test_pointer_can_be_split_into_its_steps(steps: list[str]) -> None:
    taken = [part.replace("~1", "/").replace("~0", "~") for part in json_pointer(*steps).split("/")[1:]]
    assert taken == steps


def test_addition_patch_sets_capacity_alone_and_names_the_version() -> None:
    node = NodeSnapshot("n1", "7", {"a/b": 1}, {"a/b": 1})
    added = {"op": "add", "path": "/status/capacity/a~1b", "value": "4"}
    assert addition_patch(node, {"a/b": 4}) == [VERSION, added]


def test_addition_patch_creates_a_missing_capacity() -> None:
    made = {"op": "add", "path": "/status/capacity", "value": {}}
    assert addition_patch(NodeSnapshot("n1", "7", {}, {}, without_capacity=True), {"a/b": 4})[1] == made


def test_removal_patch_names_the_existing_keys() -> None:
    capacity, allocatable = ({"op": "remove", "path": f"/status/{part}/a~1b"} for part in ("capacity", "allocatable"))
    assert removal_patch(NodeSnapshot("n1", "7", {"a/b": 0}, {"a/b": 0}), "a/b") == [VERSION, capacity, allocatable]
    assert removal_patch(NodeSnapshot("n1", "7", {"a/b": 0}, {}), "a/b") == [VERSION, capacity]
    assert removal_patch(NodeSnapshot("n1", "7", {}, {"a/b": 0}), "a/b") == [VERSION, allocatable]


def test_patch_is_described_without_its_version() -> None:
    node = NodeSnapshot("n1", "7", {"a/b": 0}, {})
    assert describe_patch(removal_patch(node, "a/b")) == "remove /status/capacity/a~1b"
    assert describe_patch(addition_patch(node, {"a/b": 2})) == "add /status/capacity/a~1b 2"
