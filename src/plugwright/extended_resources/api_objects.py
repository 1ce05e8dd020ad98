"""Objects of the Kubernetes API, as values of `resources` for `plugwright node`.

Absent and null members count as empty, and unknown members are ignored, so any version of the API server works.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from plugwright import quantity
from plugwright.extended_resources.resources import (
    BoundPod,
    ContainerRequests,
    ManagedFieldsEntry,
    NodeSnapshot,
    capacity_owners,
    is_extended,
    pod_requests,
)

__all__ = ["DeviceClassObject", "NodeObject", "PodObject", "classes_by_resource", "to_node", "to_pod"]


class _ManagedFields(msgspec.Struct):
    manager: str = ""
    time: datetime | None = None
    subresource: str = ""
    fields: dict[str, object] | None = msgspec.field(name="fieldsV1", default=None)


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    managed_fields: list[_ManagedFields] | None = msgspec.field(name="managedFields", default=None)


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""
    last_heartbeat: datetime | None = msgspec.field(name="lastHeartbeatTime", default=None)


class _NodeInfo(msgspec.Struct):
    boot_id: str = msgspec.field(name="bootID", default="")


class _NodeStatusObject(msgspec.Struct):
    capacity: dict[str, str | int] | None = None
    allocatable: dict[str, str | int] | None = None
    conditions: list[_Condition] | None = None
    info: _NodeInfo | None = msgspec.field(name="nodeInfo", default=None)


class NodeObject(msgspec.Struct):
    metadata: _Metadata
    status: _NodeStatusObject = msgspec.field(default_factory=_NodeStatusObject)


class _Resources(msgspec.Struct):
    requests: dict[str, str | int] | None = None


class _ContainerObject(msgspec.Struct):
    resources: _Resources | None = None
    restart_policy: str | None = msgspec.field(name="restartPolicy", default=None)


class _PodSpec(msgspec.Struct):
    node: str = msgspec.field(name="nodeName", default="")
    containers: list[_ContainerObject] | None = None
    init: list[_ContainerObject] | None = msgspec.field(name="initContainers", default=None)


class _RequestMapping(msgspec.Struct):
    resource: str = msgspec.field(name="resourceName", default="")


class _Claim(msgspec.Struct):
    mappings: list[_RequestMapping] | None = msgspec.field(name="requestMappings", default=None)


class _PodStatus(msgspec.Struct):
    claim: _Claim | None = msgspec.field(name="extendedResourceClaimStatus", default=None)


class PodObject(msgspec.Struct):
    metadata: _Metadata
    spec: _PodSpec
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


class _ClassSpec(msgspec.Struct):
    resource: str | None = msgspec.field(name="extendedResourceName", default=None)


class DeviceClassObject(msgspec.Struct):
    metadata: _Metadata
    spec: _ClassSpec


def to_node(node: NodeObject) -> NodeSnapshot:
    status = node.status
    entries = [
        ManagedFieldsEntry(entry.manager, entry.time, entry.fields or {})
        for entry in node.metadata.managed_fields or ()
        if entry.subresource == "status"
    ]
    return NodeSnapshot(
        name=node.metadata.name,
        resource_version=node.metadata.resource_version,
        capacity=_counts(status.capacity),
        allocatable=_counts(status.allocatable),
        owners=capacity_owners(entries),
        silence=_silence(status.conditions or ()),
        boot_id=status.info.boot_id if status.info else "",
        without_capacity=status.capacity is None,
    )


def to_pod(pod: PodObject) -> BoundPod:
    claim = pod.status.claim
    return BoundPod(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        node=pod.spec.node,
        requests=pod_requests(_requests(pod.spec.init or ()), _requests(pod.spec.containers or ())),
        claimed=frozenset(mapping.resource for mapping in claim.mappings or ()) if claim else frozenset(),
    )


def classes_by_resource(classes: Iterable[DeviceClassObject]) -> dict[str, tuple[str, ...]]:
    """DeviceClass names by resource: a class serves its extendedResourceName and its implicit resource."""
    names: dict[str, tuple[str, ...]] = {}
    for device_class in classes:
        name = device_class.metadata.name
        for resource in (device_class.spec.resource, f"deviceclass.resource.kubernetes.io/{name}"):
            if resource:
                names[resource] = (*names.get(resource, ()), name)
    return names


def _counts(quantities: Mapping[str, str | int] | None) -> dict[str, int]:
    return {
        name: quantity.whole(quantity.parse(str(number)))
        for name, number in (quantities or {}).items()
        if is_extended(name)
    }


def _requests(containers: Iterable[_ContainerObject]) -> list[ContainerRequests]:
    return [
        ContainerRequests(
            _counts(container.resources.requests if container.resources else None),
            sidecar=container.restart_policy == "Always",
        )
        for container in containers
    ]


def _silence(conditions: Iterable[_Condition]) -> str:
    """The node controller sets Ready to Unknown when a kubelet has not reported for some 40 s."""
    for condition in conditions:
        if condition.type == "Ready":
            since = f" since {condition.last_heartbeat:%Y-%m-%dT%H:%M:%SZ}" if condition.last_heartbeat else ""
            return f"its kubelet has not reported{since}" if condition.status == "Unknown" else ""
    return "no kubelet has ever reported"
