"""Strategic merge patches as kubectl sends them, and random ones."""

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.cluster.api.kinds import NODES, PODS
from plugwright.cluster.api.patch import PatchFailed, strategic_merge_patch

MERGE_KEYS = {**PODS.merge_keys, **NODES.merge_keys}
A = {"name": "a", "image": "one"}
B = {"name": "b", "image": "two"}


@pytest.mark.parametrize(
    ("document", "patch", "result"),
    [
        (
            {"containers": [A, B]},
            {"containers": [{"name": "b", "image": "new"}]},
            {"containers": [A, {**B, "image": "new"}]},
        ),
        ({"containers": [A]}, {"containers": [B]}, {"containers": [A, B]}),
        ({"containers": [A, B]}, {"containers": [{"name": "a", "$patch": "delete"}]}, {"containers": [B]}),
        ({"containers": [A, B]}, {"containers": [B, {"$patch": "replace"}]}, {"containers": [B]}),
        (
            {"containers": [A, B]},
            {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]},
            {"containers": [B, A]},
        ),
        ({"containers": [A, B]}, {"$setElementOrder/containers": [{"name": "b"}]}, {"containers": [A, B]}),
        ({"command": ["a"]}, {"command": ["b"]}, {"command": ["b"]}),
        ({"taints": [{"key": "k", "effect": "NoSchedule"}]}, {"taints": None}, {}),
        ({"labels": {"a": "b"}}, {"labels": {"a": None, "c": "d"}}, {"labels": {"c": "d"}}),
        ({"labels": {"a": "b"}}, {"labels": {"$patch": "replace", "c": "d"}}, {"labels": {"c": "d"}}),
        ({"labels": {"a": "b"}}, {"labels": {"$patch": "delete"}}, {}),
        ({"finalizers": ["a"]}, {"finalizers": ["b", "a"]}, {"finalizers": ["a", "b"]}),
        ({"finalizers": ["a", "b"]}, {"$deleteFromPrimitiveList/finalizers": ["a"]}, {"finalizers": ["b"]}),
        ({"a": 1, "b": 2}, {"$retainKeys": ["b"], "b": 3}, {"b": 3}),
        (
            {"ports": [{"containerPort": 1, "protocol": "UDP"}]},
            {"ports": [{"containerPort": 1}]},
            {"ports": [{"containerPort": 1, "protocol": "UDP"}, {"containerPort": 1}]},
        ),
    ],
)
def test_a_strategic_merge_patch_gives_its_result(document: Any, patch: Any, result: Any) -> None:
    kept = copy.deepcopy(document)
    assert strategic_merge_patch(document, patch, MERGE_KEYS) == result
    assert document == kept


@pytest.mark.parametrize(
    "patch",
    [[], "x", {"containers": [{"image": "one"}]}, {"$patch": "explode"}, {"$retainKeys": 1}, {"a": {"$patch": []}}],
)
def test_an_invalid_strategic_merge_patch_is_refused(patch: Any) -> None:
    with pytest.raises(PatchFailed):
        strategic_merge_patch({"containers": [A]}, patch, MERGE_KEYS)


words = st.sampled_from(
    [
        "containers",
        "name",
        "finalizers",
        "$patch",
        "replace",
        "delete",
        "$setElementOrder/containers",
        "$retainKeys",
        "ports",
        "$deleteFromPrimitiveList/finalizers",
        "containerPort",
        "x",
    ]
)
values = st.recursive(
    st.none() | st.integers(0, 2) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
)


@given(values, values)
def test_a_random_patch_leaves_its_arguments_unchanged(document: Any, patch: Any) -> None:
    kept, kept_patch = copy.deepcopy(document), copy.deepcopy(patch)
    with contextlib.suppress(PatchFailed):
        strategic_merge_patch(document, patch, MERGE_KEYS)
    assert (document, patch) == (kept, kept_patch)
