"""JSON patch and merge patch: the examples of RFC 6902 and RFC 7396, further ones, and random documents."""

import contextlib
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.apiserver.patch import json_patch, merge_patch
from plugwright.errors import PatchFailed


def op(name: str, path: str, **members: object) -> dict[str, object]:
    return {"op": name, "path": path, **members}


# The sections of RFC 6902's appendix A, in its order.
PUBLISHED = [
    ("A.1 adding a member", {"foo": "bar"}, [op("add", "/baz", value="qux")], {"baz": "qux", "foo": "bar"}),
    (
        "A.2 adding an element",
        {"foo": ["bar", "baz"]},
        [op("add", "/foo/1", value="qux")],
        {"foo": ["bar", "qux", "baz"]},
    ),
    ("A.3 removing a member", {"baz": "qux", "foo": "bar"}, [op("remove", "/baz")], {"foo": "bar"}),
    ("A.4 removing an element", {"foo": ["bar", "qux", "baz"]}, [op("remove", "/foo/1")], {"foo": ["bar", "baz"]}),
    ("A.5 replacing", {"baz": "qux", "foo": "bar"}, [op("replace", "/baz", value="boo")], {"baz": "boo", "foo": "bar"}),
    (
        "A.6 moving a member",
        {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
        [op("move", "/qux/thud", **{"from": "/foo/waldo"})],
        {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
    ),
    (
        "A.7 moving an element",
        {"foo": ["all", "grass", "cows", "eat"]},
        [op("move", "/foo/3", **{"from": "/foo/1"})],
        {"foo": ["all", "cows", "eat", "grass"]},
    ),
    (
        "A.8 testing: success",
        {"baz": "qux", "foo": ["a", 2, "c"]},
        [op("test", "/baz", value="qux"), op("test", "/foo/1", value=2)],
        {"baz": "qux", "foo": ["a", 2, "c"]},
    ),
    (
        "A.10 adding a nested member",
        {"foo": "bar"},
        [op("add", "/child", value={"grandchild": {}})],
        {"foo": "bar", "child": {"grandchild": {}}},
    ),
    (
        "A.11 ignoring the unknown",
        {"foo": "bar"},
        [op("add", "/baz", value="qux", xyz=123)],
        {"foo": "bar", "baz": "qux"},
    ),
    ("A.14 escapes", {"/": 9, "~1": 10}, [op("test", "/~01", value=10)], {"/": 9, "~1": 10}),
    (
        "A.16 an array as element",
        {"foo": ["bar"]},
        [op("add", "/foo/-", value=["abc", "def"])],
        {"foo": ["bar", ["abc", "def"]]},
    ),
]
FURTHER = [
    ("the whole document is replaced", {"a": 1}, [op("replace", "", value=[1])], [1]),
    ("the whole document is added", {"a": 1}, [op("add", "", value={})], {}),
    ("an empty name is a name", {}, [op("add", "/", value=1)], {"": 1}),
    ("a member that is there is replaced by add", {"a": 1}, [op("add", "/a", value=2)], {"a": 2}),
    ("null is a value", {}, [op("add", "/a", value=None)], {"a": None}),
    ("a number of another shape is equal", {"a": 1}, [op("test", "/a", value=1.0)], {"a": 1}),
    (
        "the order of members does not matter",
        {"a": {"x": 1, "y": 2}},
        [op("test", "/a", value={"y": 2, "x": 1})],
        {"a": {"x": 1, "y": 2}},
    ),
    ("a value is moved to where it is", {"a": 1}, [op("move", "/a", **{"from": "/a"})], {"a": 1}),
    (
        "a copy is another value",
        {"a": {"b": 1}},
        [op("copy", "/c", **{"from": "/a"}), op("add", "/c/b", value=2)],
        {"a": {"b": 1}, "c": {"b": 2}},
    ),
    ("insertion at the end by its number", {"a": [1]}, [op("add", "/a/1", value=2)], {"a": [1, 2]}),
    ("a name with both escapes", {"a/b~c": 1}, [op("remove", "/a~1b~0c")], {}),
    ("a name that looks like a number", {"1": {"0": 1}}, [op("replace", "/1/0", value=2)], {"1": {"0": 2}}),
]
FAILING = [
    ("A.9 testing: failure", {"baz": "qux"}, [op("test", "/baz", value="bar")]),
    ("A.12 a target that is not there", {"foo": "bar"}, [op("add", "/baz/bat", value="qux")]),
    ("A.15 strings are no numbers", {"/": 9, "~1": 10}, [op("test", "/~01", value="10")]),
    ("true is not one", {"a": 1}, [op("test", "/a", value=True)]),
    ("an index beyond the end", {"a": [1]}, [op("add", "/a/2", value=1)]),
    ("an index with a zero before it", {"a": [1, 2]}, [op("remove", "/a/01")]),
    ("a negative index", {"a": [1]}, [op("remove", "/a/-1")]),
    ("an index in other digits", {"a": [1, 2]}, [op("remove", "/a/\uff11")]),
    ("nothing is removed from behind the end", {"a": [1]}, [op("remove", "/a/-")]),
    ("nothing is within a text", {"a": "b"}, [op("add", "/a/0", value=1)]),
    ("removal of what is not there", {}, [op("remove", "/a")]),
    ("replacement of what is not there", {}, [op("replace", "/a", value=1)]),
    ("the whole document is removed", {"a": 1}, [op("remove", "")]),
    ("a value is moved into itself", {"a": {}}, [op("move", "/a/b", **{"from": "/a"})]),
    ("an operation that is none", {}, [op("destroy", "/a")]),
    ("an operation without a name", {}, [{"path": "/a"}]),
    ("an operation without a value", {}, [op("add", "/a")]),
    ("an operation without a path", {}, [{"op": "remove"}]),
    ("a pointer that does not begin with a slash", {"a": 1}, [op("remove", "a")]),
    ("a patch that is an object", {}, {"op": "add"}),
    ("a patch of texts", {}, ["add"]),
]


@pytest.mark.parametrize(
    ("document", "patch", "result"), [pytest.param(*example[1:], id=example[0]) for example in PUBLISHED + FURTHER]
)
def test_a_json_patch_gives_its_result(document: object, patch: object, result: object) -> None:
    before = copy.deepcopy(document)
    assert json_patch(document, patch) == result
    assert document == before


@pytest.mark.parametrize(("document", "patch"), [pytest.param(*example[1:], id=example[0]) for example in FAILING])
def test_a_json_patch_that_does_not_fit_is_refused(document: object, patch: object) -> None:
    before = copy.deepcopy(document)
    with pytest.raises(PatchFailed):
        json_patch(document, patch)
    assert document == before


def test_a_json_patch_that_fails_late_changes_nothing() -> None:
    document = {"a": [1]}
    with pytest.raises(PatchFailed):
        json_patch(document, [op("add", "/a/-", value=2), op("test", "/a", value=[])])
    assert document == {"a": [1]}


def test_copies_of_copies_are_limited() -> None:
    doubling = [op("copy", f"/a/{number}", **{"from": "/a"}) for number in range(64)]
    with pytest.raises(PatchFailed, match="accumulated size"):
        json_patch({"a": {"text": "x" * 1000}}, doubling)


def test_too_many_operations_are_refused() -> None:
    with pytest.raises(PatchFailed, match="10000, got 10001"):
        json_patch({}, [op("add", "/a", value=1)] * 10_001)


# RFC 7396, appendix A
MERGED = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("document", "patch", "result"), MERGED)
def test_a_merge_patch_gives_its_result(document: object, patch: object, result: object) -> None:
    before = copy.deepcopy(document)
    assert merge_patch(document, patch) == result
    assert document == before


names = st.sampled_from(["a", "b", "a/b", "~", "", "0", "-"])
leaves = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["x", ""])
documents = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=10
)
pointers = st.lists(names, max_size=3).map(lambda steps: "".join("/" + _escaped(step) for step in steps))
operations = st.fixed_dictionaries(
    {"op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]), "path": pointers},
    optional={"value": documents, "from": pointers},
)


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")


def differences(before: Any, after: Any, at: str = "") -> list[dict[str, Any]]:
    """A patch from one document to the other."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return [] if json.dumps(before) == json.dumps(after) else [op("replace", at, value=after)]
    gone = [op("remove", f"{at}/{_escaped(key)}") for key in before.keys() - after.keys()]
    new = [op("add", f"{at}/{_escaped(key)}", value=after[key]) for key in after.keys() - before.keys()]
    inner = [
        operation
        for key in before.keys() & after.keys()
        for operation in differences(before[key], after[key], f"{at}/{_escaped(key)}")
    ]
    return [*gone, *new, *inner]


@given(documents, documents)
def test_the_patch_between_two_documents_leads_from_one_to_the_other(before: Any, after: Any) -> None:
    kept = copy.deepcopy(before)
    assert json_patch(before, differences(before, after)) == after
    assert before == kept


@given(documents, st.lists(operations, max_size=4) | documents)
def test_a_random_json_patch_leaves_its_arguments_unchanged(document: Any, patch: Any) -> None:
    kept, kept_patch = copy.deepcopy(document), copy.deepcopy(patch)
    with contextlib.suppress(PatchFailed):
        json_patch(document, patch)
    assert (document, patch) == (kept, kept_patch)


@given(documents, documents)
def test_a_merge_patch_is_idempotent(document: Any, patch: Any) -> None:
    kept = copy.deepcopy(document)
    once = merge_patch(document, patch)
    assert merge_patch(once, patch) == once
    assert document == kept
