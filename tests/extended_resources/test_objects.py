"""API objects become values; what they lack is as good as empty."""

import msgspec
import pytest
from tests.extended_resources.imitation import pod

from plugwright.extended_resources.client import DeviceClassObject, NodeObject, PodObject, class_names, to_node, to_pod
from plugwright.extended_resources.resources import Node, Pod


def node(**status: object) -> Node:
    return to_node(msgspec.convert({"metadata": {"name": "n1"}, "status": status}, NodeObject))


def test_a_node_that_says_nothing_of_itself() -> None:
    nothing = to_node(msgspec.convert({"metadata": {"name": "n1", "managedFields": None}}, NodeObject))
    assert nothing == Node("n1", "", {}, {}, {}, silence="no kubelet has ever reported", bare=True)
    assert node(capacity=None, allocatable=None, conditions=None, nodeInfo=None) == nothing


def test_only_extended_resources_count() -> None:
    found = node(capacity={"cpu": "2", "a/b": "3k", "hugepages-2Mi": "0"}, allocatable={"a/b": 4})
    assert (found.capacity, found.allocatable, found.bare) == ({"a/b": 3000}, {"a/b": 4}, False)


@pytest.mark.parametrize(("ready", "silent"), [("True", False), ("False", False), ("Unknown", True)])
def test_a_kubelet_is_silent_when_its_node_is_unknown(ready: str, silent: bool) -> None:
    assert bool(node(conditions=[{"type": "DiskPressure"}, {"type": "Ready", "status": ready}]).silence) == silent


def test_only_records_of_the_status_are_taken() -> None:
    fields: dict[str, object] = {"f:status": {"f:capacity": {"f:a/b": {}}}}
    managed = [{"manager": "curl", "fieldsV1": fields}, {"manager": "x", "subresource": "status", "fieldsV1": fields}]
    found = to_node(msgspec.convert({"metadata": {"name": "n1", "managedFields": managed}}, NodeObject))
    assert found.setters["a/b"].manager == "x"


def test_a_pod_with_init_containers_sidecars_and_a_claim() -> None:
    init = [
        {"name": "once", "resources": {"requests": {"a/b": "5"}}},
        {"name": "sidecar", "restartPolicy": "Always", "resources": {"requests": {"a/b": "1"}}},
        {"name": "idle", "resources": None},
    ]
    mappings = {"extendedResourceClaimStatus": {"requestMappings": [{"resourceName": "c/d"}]}}
    stored = pod("p", "n1", {"a/b": 2, "cpu": 1}, {"c/d": 1}, spec={"initContainers": init}, status=mappings)
    assert to_pod(msgspec.convert(stored, PodObject)) == Pod(
        "default", "p", "n1", {"a/b": 5, "c/d": 1}, frozenset({"c/d"})
    )


def test_classes_by_the_resource_that_they_serve() -> None:
    stored = [
        {"metadata": {"name": "small"}, "spec": {"extendedResourceName": "a/b"}},
        {"metadata": {"name": "large"}, "spec": {"extendedResourceName": "a/b"}},
        {"metadata": {"name": "plain"}, "spec": {}},
    ]
    assert class_names(msgspec.convert(stored, list[DeviceClassObject])) == {
        "a/b": ("small", "large"),
        "deviceclass.resource.kubernetes.io/small": ("small",),
        "deviceclass.resource.kubernetes.io/large": ("large",),
        "deviceclass.resource.kubernetes.io/plain": ("plain",),
    }
