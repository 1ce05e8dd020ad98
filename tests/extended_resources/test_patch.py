"""Pointers and patches of a node's status."""

from hypothesis import given
from hypothesis import strategies as st

from plugwright.extended_resources.changes import adding, as_text, pointer, removing
from plugwright.extended_resources.resources import Node

VERSION = {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"}


def test_slashes_and_tildes_are_escaped() -> None:
    assert pointer("status", "capacity", "example.com/a~b") == "/status/capacity/example.com~1a~0b"


@given(st.lists(st.text()))
def test_a_pointer_can_be_taken_apart_again(steps: list[str]) -> None:
    taken = [part.replace("~1", "/").replace("~0", "~") for part in pointer(*steps).split("/")[1:]]
    assert taken == steps


def test_adding_sets_capacity_alone_and_names_the_version() -> None:
    node = Node("n1", "7", {"a/b": 1}, {"a/b": 1})
    added = {"op": "add", "path": "/status/capacity/a~1b", "value": "4"}
    assert adding(node, {"a/b": 4}) == [VERSION, added]


def test_a_node_that_has_no_capacity_gets_it_first() -> None:
    made = {"op": "add", "path": "/status/capacity", "value": {}}
    assert adding(Node("n1", "7", {}, {}, bare=True), {"a/b": 4})[1] == made


def test_removing_takes_the_keys_that_are_there() -> None:
    capacity, allocatable = ({"op": "remove", "path": f"/status/{part}/a~1b"} for part in ("capacity", "allocatable"))
    assert removing(Node("n1", "7", {"a/b": 0}, {"a/b": 0}), "a/b") == [VERSION, capacity, allocatable]
    assert removing(Node("n1", "7", {"a/b": 0}, {}), "a/b") == [VERSION, capacity]
    assert removing(Node("n1", "7", {}, {"a/b": 0}), "a/b") == [VERSION, allocatable]


def test_people_read_what_would_be_sent() -> None:
    node = Node("n1", "7", {"a/b": 0}, {})
    assert as_text(removing(node, "a/b")) == "remove /status/capacity/a~1b"
    assert as_text(adding(node, {"a/b": 2})) == "add /status/capacity/a~1b 2"
