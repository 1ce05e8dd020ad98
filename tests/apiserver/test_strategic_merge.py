"""Strategic merge patches as kubectl sends them, and random ones."""

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.apiserver.kinds import NODES, PODS
from plugwright.apiserver.patch import strategic_merge_patch
from plugwright.errors import PatchFailed

POD, NODE = PODS.object_type, NODES.object_type
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
        (
            {"containers": [{**A, "command": ["a"]}]},
            {"containers": [{"name": "a", "command": ["b"]}]},
            {"containers": [{**A, "command": ["b"]}]},
        ),
        ({"nodeSelector": {"a": "b"}}, {"nodeSelector": {"a": None, "c": "d"}}, {"nodeSelector": {"c": "d"}}),
        ({"nodeSelector": {"a": "b"}}, {"nodeSelector": {"$patch": "replace", "c": "d"}}, {"nodeSelector": {"c": "d"}}),
        ({"nodeSelector": {"a": "b"}}, {"nodeSelector": {"$patch": "delete"}}, {}),
        ({"hostPID": True, "hostIPC": True}, {"$retainKeys": ["hostIPC"], "hostIPC": False}, {"hostIPC": False}),
        (
            {"containers": [{**A, "ports": [{"containerPort": 1, "protocol": "UDP"}]}]},
            {"containers": [{"name": "a", "ports": [{"containerPort": 1}]}]},
            {"containers": [{**A, "ports": [{"containerPort": 1, "protocol": "UDP"}, {"containerPort": 1}]}]},
        ),
        (
            {"schedulingGates": [{"name": "a"}, {"name": "b"}]},
            {"schedulingGates": [{"name": "a", "$patch": "delete"}]},
            {"schedulingGates": [{"name": "b"}]},
        ),
        (
            {"resourceClaims": [{"name": "a", "resourceClaimName": "one"}]},
            {"resourceClaims": [{"name": "b"}]},
            {"resourceClaims": [{"name": "a", "resourceClaimName": "one"}, {"name": "b"}]},
        ),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}, {"tolerations": [{"key": "b"}]}),
    ],
)
def test_a_strategic_merge_patch_of_a_pods_spec_gives_its_result(document: Any, patch: Any, result: Any) -> None:
    kept = copy.deepcopy(document)
    assert strategic_merge_patch({"spec": document}, {"spec": patch}, POD) == {"spec": result}
    assert document == kept


@pytest.mark.parametrize(
    ("document", "patch", "result"),
    [
        ({"finalizers": ["a"]}, {"finalizers": ["b", "a"]}, {"finalizers": ["a", "b"]}),
        ({"finalizers": ["a", "b"]}, {"$deleteFromPrimitiveList/finalizers": ["a"]}, {"finalizers": ["b"]}),
        (
            {"ownerReferences": [{"uid": "1"}]},
            {"ownerReferences": [{"uid": "2"}]},
            {"ownerReferences": [{"uid": "1"}, {"uid": "2"}]},
        ),
        # Labels that have the names of fields are texts all the same.
        ({"labels": {"finalizers": "a"}}, {"labels": {"finalizers": "b"}}, {"labels": {"finalizers": "b"}}),
    ],
)
def test_a_strategic_merge_patch_of_metadata_gives_its_result(document: Any, patch: Any, result: Any) -> None:
    assert strategic_merge_patch({"metadata": document}, {"metadata": patch}, POD) == {"metadata": result}


def test_taints_are_replaced_as_a_whole() -> None:
    one, two = {"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoExecute"}
    patched = strategic_merge_patch({"spec": {"taints": [one]}}, {"spec": {"taints": [two]}}, NODE)
    assert patched == {"spec": {"taints": [two]}}
    assert strategic_merge_patch(patched, {"spec": {"taints": None}}, NODE) == {"spec": {}}


def test_a_nodes_conditions_are_merged_by_type() -> None:
    ready, pressure = {"type": "Ready", "status": "True"}, {"type": "MemoryPressure", "status": "False"}
    document, patch = {"status": {"conditions": [ready]}}, {"status": {"conditions": [pressure]}}
    assert strategic_merge_patch(document, patch, NODE) == {"status": {"conditions": [ready, pressure]}}


@pytest.mark.parametrize(
    "patch",
    [
        [],
        "x",
        {"spec": {"containers": [{"image": "one"}]}},
        {"$patch": "explode"},
        {"$retainKeys": 1},
        {"a": {"$patch": []}},
    ],
)
def test_an_invalid_strategic_merge_patch_is_refused(patch: Any) -> None:
    with pytest.raises(PatchFailed):
        strategic_merge_patch({"spec": {"containers": [A]}}, patch, POD)


words = st.sampled_from(
    [
        "spec",
        "containers",
        "name",
        "metadata",
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
        strategic_merge_patch(document, patch, POD)
    assert (document, patch) == (kept, kept_patch)
