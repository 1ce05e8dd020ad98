"""API objects, as far as extended resources go, and the values that are made of them.

Members that are absent or null are as good as empty: what has no say here must not stop us.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from plugwright.cluster.ownership import Entry, setters
from plugwright.cluster.resources import Container, Node, Pod, count, is_extended, pod_requests

__all__ = ["DeviceClassObject", "NodeObject", "PodObject", "class_names", "to_node", "to_pod"]


class _Managed(msgspec.Struct):
    manager: str = ""
    time: datetime | None = None
    subresource: str = ""
    fields: dict[str, object] | None = msgspec.field(name="fieldsV1", default=None)


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    version: str = msgspec.field(name="resourceVersion", default="")
    managed: list[_Managed] | None = msgspec.field(name="managedFields", default=None)


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""
    heard: datetime | None = msgspec.field(name="lastHeartbeatTime", default=None)


class _NodeInfo(msgspec.Struct):
    boot_id: str = msgspec.field(name="bootID", default="")


class _NodeStatus(msgspec.Struct):
    capacity: dict[str, str | int] | None = None
    allocatable: dict[str, str | int] | None = None
    conditions: list[_Condition] | None = None
    info: _NodeInfo | None = msgspec.field(name="nodeInfo", default=None)


class NodeObject(msgspec.Struct):
    metadata: _Metadata
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


class _Resources(msgspec.Struct):
    requests: dict[str, str | int] | None = None


class _ContainerObject(msgspec.Struct):
    resources: _Resources | None = None
    restart_policy: str | None = msgspec.field(name="restartPolicy", default=None)


class _PodSpec(msgspec.Struct):
    node: str = msgspec.field(name="nodeName", default="")
    containers: list[_ContainerObject] | None = None
    init: list[_ContainerObject] | None = msgspec.field(name="initContainers", default=None)


class _Mapping(msgspec.Struct):
    resource: str = msgspec.field(name="resourceName", default="")


class _Claim(msgspec.Struct):
    mappings: list[_Mapping] | None = msgspec.field(name="requestMappings", default=None)


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


def to_node(node: NodeObject) -> Node:
    status = node.status
    return Node(
        name=node.metadata.name,
        version=node.metadata.version,
        capacity=_counts(status.capacity),
        allocatable=_counts(status.allocatable),
        setters=setters(_entries(node.metadata.managed or ())),
        silence=_silence(status.conditions or ()),
        boot_id=status.info.boot_id if status.info else "",
        bare=status.capacity is None,
    )


def to_pod(pod: PodObject) -> Pod:
    claim = pod.status.claim
    return Pod(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        node=pod.spec.node,
        requests=pod_requests(_containers(pod.spec.init or ()), _containers(pod.spec.containers or ())),
        claimed=frozenset(each.resource for each in claim.mappings or ()) if claim else frozenset(),
    )


def class_names(classes: Iterable[DeviceClassObject]) -> dict[str, tuple[str, ...]]:
    """The classes by the resource that they serve; besides the one that it names, each has one of its own name."""
    names: dict[str, tuple[str, ...]] = {}
    for each in classes:
        for resource in (each.spec.resource, f"deviceclass.resource.kubernetes.io/{each.metadata.name}"):
            if resource:
                names[resource] = (*names.get(resource, ()), each.metadata.name)
    return names


def _entries(managed: Iterable[_Managed]) -> list[Entry]:
    return [Entry(each.manager, each.time, each.fields or {}) for each in managed if each.subresource == "status"]


def _counts(quantities: Mapping[str, str | int] | None) -> dict[str, int]:
    return {name: count(str(number)) for name, number in (quantities or {}).items() if is_extended(name)}


def _silence(conditions: Iterable[_Condition]) -> str:
    """The node controller sets Ready to Unknown when a kubelet has not been heard of for some 40 s."""
    for condition in conditions:
        if condition.type == "Ready":
            since = f" since {condition.heard:%Y-%m-%dT%H:%M:%SZ}" if condition.heard else ""
            return f"its kubelet has not reported{since}" if condition.status == "Unknown" else ""
    return "no kubelet has ever reported"


def _containers(containers: Iterable[_ContainerObject]) -> list[Container]:
    return [
        Container(_counts(each.resources.requests if each.resources else None), each.restart_policy == "Always")
        for each in containers
    ]
