"""The backing of a resource, from the facts about it."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.extended_resources.backing import assess, node_resources
from plugwright.extended_resources.resources import (
    Backing,
    BoundPod,
    CapacityOwner,
    ClusterContext,
    Holder,
    KeyState,
    KubeletDirectory,
    NodeResource,
    NodeSnapshot,
)

NAME = "a/b"
KUBELET = CapacityOwner("kubelet", None, kubelet=True)
MANUAL = CapacityOwner("curl", datetime(2026, 11, 15, 10, tzinfo=UTC), kubelet=False)
FRESH = CapacityOwner("curl", None, kubelet=False, settled=False)
GPU_CLASS = ClusterContext({NAME: ("gpu.example.com",)})


def node(
    capacity: int | None, allocatable: int | None, owner: CapacityOwner | None = KUBELET, silence: str = ""
) -> NodeSnapshot:
    counts = [{} if number is None else {NAME: number} for number in (capacity, allocatable)]
    return NodeSnapshot("n1", "1", counts[0], counts[1], {NAME: owner} if owner else {}, silence, boot_id="here")


def with_kubelet_dir(*registered: str, listening: int = 0, announced: str = "") -> ClusterContext:
    return ClusterContext({}, KubeletDirectory("here", frozenset(registered), listening, frozenset({announced} - {""})))


def judgement(snapshot: NodeSnapshot, context: ClusterContext | None = None) -> tuple[Backing, KeyState]:
    backing, key, evidence = assess(snapshot, NAME, (), context or ClusterContext()).assessment
    assert evidence
    return backing, key


@pytest.mark.parametrize(
    ("capacity", "allocatable", "owner", "expected"),
    [
        (10, 10, KUBELET, (Backing.PLUGIN, KeyState.SERVED)),
        (10, 1, KUBELET, (Backing.PLUGIN, KeyState.SERVED)),
        (10, 0, KUBELET, (Backing.UNKNOWN, KeyState.GRACE_PERIOD)),
        (10, None, KUBELET, (Backing.UNKNOWN, KeyState.GRACE_PERIOD)),
        (0, 0, KUBELET, (Backing.UNKNOWN, KeyState.FREE)),
        (4, 4, MANUAL, (Backing.MANUAL, KeyState.FREE)),
        (4, None, FRESH, (Backing.MANUAL, KeyState.FREE)),
        (6, 4, FRESH, (Backing.MANUAL, KeyState.FREE)),
        (4, 3, MANUAL, (Backing.PLUGIN, KeyState.SERVED)),
        (4, 0, MANUAL, (Backing.UNKNOWN, KeyState.GRACE_PERIOD)),
        (0, 0, MANUAL, (Backing.MANUAL, KeyState.FREE)),
        (4, 4, None, (Backing.UNKNOWN, KeyState.UNCLEAR)),
        (4, 3, None, (Backing.PLUGIN, KeyState.SERVED)),
        (0, 0, None, (Backing.UNKNOWN, KeyState.FREE)),
        (None, 4, None, (Backing.UNKNOWN, KeyState.FREE)),
        (None, None, None, (Backing.UNKNOWN, KeyState.ABSENT)),
    ],
)
def test_backing_from_the_api_alone(
    capacity: int | None, allocatable: int | None, owner: CapacityOwner | None, expected: tuple[Backing, KeyState]
) -> None:
    assert judgement(node(capacity, allocatable, owner)) == expected


@pytest.mark.parametrize(("capacity", "allocatable"), [(10, 10), (10, 0), (0, 0)])
def test_backing_behind_a_silent_kubelet_is_unknown(capacity: int, allocatable: int) -> None:
    silent = node(capacity, allocatable, silence="its kubelet has not reported")
    assert judgement(silent) == (Backing.UNKNOWN, KeyState.UNCLEAR)


def test_manual_backing_is_known_behind_a_silent_kubelet() -> None:
    assert judgement(node(4, None, FRESH, silence="no kubelet has ever reported")) == (Backing.MANUAL, KeyState.FREE)


@pytest.mark.parametrize(
    ("capacity", "allocatable", "expected"),
    [
        (None, None, (Backing.DRA, KeyState.ABSENT)),
        (0, 0, (Backing.DRA, KeyState.FREE)),
        (4, 4, (Backing.PLUGIN, KeyState.SERVED)),
        (4, 0, (Backing.UNKNOWN, KeyState.GRACE_PERIOD)),
    ],
)
def test_a_device_class_serves_where_no_plugin_does(
    capacity: int | None, allocatable: int | None, expected: tuple[Backing, KeyState]
) -> None:
    assert judgement(node(capacity, allocatable), GPU_CLASS) == expected


@pytest.mark.parametrize("owner", [KUBELET, MANUAL])
def test_resource_of_the_node_takes_precedence_over_a_device_class(owner: CapacityOwner) -> None:
    evidence = assess(node(4, 4, owner), NAME, (), GPU_CLASS).assessment.evidence
    assert evidence.endswith("; for pods on this node that takes precedence over DeviceClass gpu.example.com")


@pytest.mark.parametrize(
    ("snapshot", "context", "expected"),
    [
        (node(10, 10), with_kubelet_dir(NAME, listening=1), (Backing.PLUGIN, KeyState.SERVED)),
        (node(10, 10), with_kubelet_dir("c/d", listening=1), (Backing.STALE, KeyState.FREE)),  # the checkpoint was lost
        (node(10, 0), with_kubelet_dir(NAME, listening=1), (Backing.UNKNOWN, KeyState.GRACE_PERIOD)),
        (node(10, 0), with_kubelet_dir(NAME), (Backing.STALE, KeyState.GRACE_PERIOD)),
        (node(10, 0), with_kubelet_dir(NAME, listening=1, announced=NAME), (Backing.PLUGIN, KeyState.SERVED)),
        (node(0, 0), with_kubelet_dir(NAME, listening=1), (Backing.UNKNOWN, KeyState.FREE)),
        (node(0, 0), with_kubelet_dir(NAME), (Backing.STALE, KeyState.FREE)),
        (node(0, 0), with_kubelet_dir(), (Backing.STALE, KeyState.FREE)),
        (node(0, 0), with_kubelet_dir(NAME, listening=1, announced=NAME), (Backing.PLUGIN, KeyState.SERVED)),
        (node(4, 4, MANUAL), with_kubelet_dir(), (Backing.MANUAL, KeyState.FREE)),
        (node(4, 0, MANUAL), with_kubelet_dir(), (Backing.MANUAL, KeyState.FREE)),
        (node(4, 4, MANUAL), with_kubelet_dir(NAME, listening=1), (Backing.PLUGIN, KeyState.SERVED)),
        (node(4, 4, None), with_kubelet_dir(), (Backing.UNKNOWN, KeyState.UNCLEAR)),
    ],
)
def test_backing_with_the_kubelets_directory(
    snapshot: NodeSnapshot, context: ClusterContext, expected: tuple[Backing, KeyState]
) -> None:
    assert judgement(snapshot, context) == expected


def test_kubelets_directory_is_ignored_for_other_machines() -> None:
    elsewhere = NodeSnapshot("n2", "1", {NAME: 10}, {NAME: 10}, {NAME: KUBELET}, boot_id="there")
    assert judgement(elsewhere, with_kubelet_dir()) == (Backing.PLUGIN, KeyState.SERVED)


numbers = st.none() | st.integers(0, 3)
contexts = st.sampled_from(
    [
        ClusterContext(),
        GPU_CLASS,
        with_kubelet_dir(),
        with_kubelet_dir(NAME),
        with_kubelet_dir(NAME, listening=1),
        with_kubelet_dir(announced=NAME),
    ]
)


@given(numbers, numbers, st.sampled_from([None, KUBELET, MANUAL, FRESH]), st.sampled_from(["", "silent"]), contexts)
def test_every_key_is_assessed_and_counted_devices_are_never_free(
    capacity: int | None, allocatable: int | None, owner: CapacityOwner | None, silence: str, context: ClusterContext
) -> None:
    backing, key = judgement(node(capacity, allocatable, owner, silence), context)
    if capacity and allocatable and owner == KUBELET and not context.kubelet_dir:
        assert key in (KeyState.SERVED, KeyState.UNCLEAR)
    assert (key is KeyState.ABSENT) == (capacity is None and allocatable is None)
    assert backing is not Backing.STALE or capacity is not None


def listed(snapshot: NodeSnapshot, *pods: BoundPod, context: ClusterContext | None = None) -> list[NodeResource]:
    return node_resources(snapshot, pods, context or ClusterContext())


def test_every_listed_or_requested_resource_is_returned() -> None:
    snapshot = NodeSnapshot("n1", "1", {"a/b10": 1, "a/b2": 1}, {"c/d": 1})
    asking = BoundPod("default", "p", "n1", {"e/f": 1, "cpu": 2, "g/h": 0})
    assert [resource.resource for resource in listed(snapshot, asking)] == ["a/b2", "a/b10", "c/d", "e/f"]


def test_pods_hold_what_they_request() -> None:
    pods = [BoundPod("x", "p2", "n1", {NAME: 1}), BoundPod("default", "p1", "n1", {NAME: 2})]
    (only,) = listed(node(10, 10), *pods)
    assert (only.requested, only.held_by) == (3, "default/p1:2, x/p2:1")


def test_devices_from_a_claim_are_shown_but_not_counted() -> None:
    claiming = BoundPod("default", "p1", "n1", {NAME: 2}, claimed=frozenset({NAME}))
    (only,) = listed(node(0, 0), claiming, context=GPU_CLASS)
    assert (only.requested, only.holders) == (0, (Holder("default", "p1", 2, claim=True),))
