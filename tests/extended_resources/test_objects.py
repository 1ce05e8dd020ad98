"""API objects become values; absent members are as good as empty."""

import msgspec
import pytest
from tests.extended_resources.imitation import pod

from plugwright.extended_resources.api_objects import (
    DeviceClassObject,
    NodeObject,
    PodObject,
    classes_by_resource,
    to_node,
    to_pod,
)
from plugwright.extended_resources.resources import BoundPod, NodeSnapshot


def node(**status: object) -> NodeSnapshot:
    return to_node(msgspec.convert({"metadata": {"name": "n1"}, "status": status}, NodeObject))


def test_node_without_a_status_is_empty() -> None:
    nothing = to_node(msgspec.convert({"metadata": {"name": "n1", "managedFields": None}}, NodeObject))
    assert nothing == NodeSnapshot("n1", "", {}, {}, {}, silence="no kubelet has ever reported", without_capacity=True)
    assert node(capacity=None, allocatable=None, conditions=None, nodeInfo=None) == nothing


def test_only_extended_resources_are_counted() -> None:
    snapshot = node(capacity={"cpu": "2", "a/b": "3k", "hugepages-2Mi": "0"}, allocatable={"a/b": 4})
    assert (snapshot.capacity, snapshot.allocatable, snapshot.without_capacity) == ({"a/b": 3000}, {"a/b": 4}, False)


@pytest.mark.parametrize(("ready", "silent"), [("True", False), ("False", False), ("Unknown", True)])
def test_a_kubelet_is_silent_when_its_node_is_unknown(ready: str, silent: bool) -> None:
    assert bool(node(conditions=[{"type": "DiskPressure"}, {"type": "Ready", "status": ready}]).silence) == silent


def test_managed_fields_of_other_subresources_are_ignored() -> None:
    fields: dict[str, object] = {"f:status": {"f:capacity": {"f:a/b": {}}}}
    managed = [{"manager": "curl", "fieldsV1": fields}, {"manager": "x", "subresource": "status", "fieldsV1": fields}]
    snapshot = to_node(msgspec.convert({"metadata": {"name": "n1", "managedFields": managed}}, NodeObject))
    assert snapshot.owners["a/b"].manager == "x"


def test_a_pod_with_init_containers_sidecars_and_a_claim() -> None:
    init = [
        {"name": "once", "resources": {"requests": {"a/b": "5"}}},
        {"name": "sidecar", "restartPolicy": "Always", "resources": {"requests": {"a/b": "1"}}},
        {"name": "idle", "resources": None},
    ]
    mappings = {"extendedResourceClaimStatus": {"requestMappings": [{"resourceName": "c/d"}]}}
    stored = pod("p", "n1", {"a/b": 2, "cpu": 1}, {"c/d": 1}, spec={"initContainers": init}, status=mappings)
    assert to_pod(msgspec.convert(stored, PodObject)) == BoundPod(
        "default", "p", "n1", {"a/b": 5, "c/d": 1}, frozenset({"c/d"})
    )


def test_classes_by_the_resource_that_they_serve() -> None:
    stored = [
        {"metadata": {"name": "small"}, "spec": {"extendedResourceName": "a/b"}},
        {"metadata": {"name": "large"}, "spec": {"extendedResourceName": "a/b"}},
        {"metadata": {"name": "plain"}, "spec": {}},
    ]
    assert classes_by_resource(msgspec.convert(stored, list[DeviceClassObject])) == {
        "a/b": ("small", "large"),
        "deviceclass.resource.kubernetes.io/small": ("small",),
        "deviceclass.resource.kubernetes.io/large": ("large",),
        "deviceclass.resource.kubernetes.io/plain": ("plain",),
    }
