"""The API server as `plugwright node` sees it: the only home of lightkube in this package.

API objects become values of `resources` here; absent and null members are as good as empty. Failures become our errors:
`PeerRefused` with the API's reason as code, `PeerGone` for a server that cannot be reached or cannot answer now.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from plugwright import quantity
from plugwright.errors import ConfigError, MalformedMessage, PeerGone, PeerRefused
from plugwright.extended_resources.changes import PatchOperation
from plugwright.extended_resources.resources import (
    BoundPod,
    ContainerRequests,
    ManagedFieldsEntry,
    NodeSnapshot,
    capacity_owners,
    is_extended,
    pod_requests,
)
from plugwright.kube import kubeconfig

try:
    import httpx2
    import lightkube
    from lightkube.config.kubeconfig import SERVICE_ACCOUNT
    from lightkube.core.resource import ApiInfo, ResourceDef
    from lightkube.generic_resource import GenericGlobalResource, GenericGlobalStatus, GenericNamespacedResource
    from lightkube.operators import not_equal, not_in
    from lightkube.types import PatchType
except ModuleNotFoundError as missing:
    raise ConfigError("plugwright node needs the extra: pip install 'plugwright[cluster]'") from missing

__all__ = [
    "ApiClient",
    "ClusterAccess",
    "DeviceClassObject",
    "NodeObject",
    "PodObject",
    "classes_by_resource",
    "connect",
    "to_node",
    "to_pod",
]

_NODE = ResourceDef("", "v1", "Node")
_MANAGER = "plugwright"
_CHUNK = 500
_NOT_FOUND = "NotFound"
_UNUSABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, httpx2.InvalidURL, lightkube.ConfigError)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """The cluster to connect to: a context of a kubeconfig, or in a pod its service account."""

    kubeconfig: Path | None = None
    context: str | None = None
    service_account: Path = Path(SERVICE_ACCOUNT)


@contextmanager
def connect(access: ClusterAccess) -> Iterator["ApiClient"]:
    try:
        config, proxy = _configuration(access)
        client = lightkube.Client(config, field_manager=_MANAGER, proxy=proxy)
    except _UNUSABLE as error:
        raise ConfigError(f"the kubeconfig cannot be used: {error!s:.300}") from error
    with client:
        yield ApiClient(client)


def _configuration(access: ClusterAccess) -> tuple[lightkube.KubeConfig, str | None]:
    """The configuration, and the proxy's URL, which lightkube does not read."""
    files = kubeconfig.find_files(access.kubeconfig, os.environ, Path.home())
    if files:
        document = kubeconfig.select_context(kubeconfig.load(files), access.context)
        return lightkube.KubeConfig.from_dict(document), kubeconfig.proxy_url(document)
    if "KUBERNETES_SERVICE_HOST" in os.environ and access.service_account.is_dir():
        return lightkube.KubeConfig.from_service_account(access.service_account), None
    raise ConfigError("no cluster: no --kubeconfig, no KUBECONFIG, no ~/.kube/config, and no service account of a pod")


# Generic resources are read as plain JSON: lightkube's own models refuse an object for any member that they miss.
class _Nodes(GenericGlobalResource):
    _api_info = ApiInfo(_NODE, "nodes", ["get", "list"])


class _NodeStatus(GenericGlobalStatus):
    _api_info = ApiInfo(_NODE, "nodes", ["patch"], parent=_NODE, action="status")


class _Pods(GenericNamespacedResource):
    _api_info = ApiInfo(ResourceDef("", "v1", "Pod"), "pods", ["global_list"])


class _DeviceClasses(GenericGlobalResource):
    _api_info = ApiInfo(ResourceDef("resource.k8s.io", "v1", "DeviceClass"), "deviceclasses", ["list"])


class ApiClient:
    """Nodes, pods and device classes of one cluster, as values of `resources`."""

    def __init__(self, client: lightkube.Client) -> None:
        self._client = client

    def nodes(self) -> list[NodeSnapshot]:
        nodes = self._request("list nodes", lambda: self._list(_Nodes, NodeObject))
        return [to_node(node) for node in nodes]

    def find_node(self, name: str) -> NodeSnapshot | None:
        read = partial(self._request, "get nodes", lambda: msgspec.convert(self._client.get(_Nodes, name), NodeObject))
        node = _none_if_not_found(read)
        return to_node(node) if node else None

    def pods(self, node: str | None = None) -> list[BoundPod]:
        """The pods bound to `node`, or to any node, that have not ended."""
        fields = {"spec.nodeName": node or not_equal(""), "status.phase": not_in(["Succeeded", "Failed"])}
        pods = self._request("list pods", lambda: self._list(_Pods, PodObject, namespace="*", fields=fields))
        return [to_pod(pod) for pod in pods]

    def device_classes(self) -> dict[str, tuple[str, ...]]:
        """DeviceClass names by the resource that they serve; empty on clusters without DRA."""
        read = partial(self._request, "list deviceclasses", lambda: self._list(_DeviceClasses, DeviceClassObject))
        return classes_by_resource(_none_if_not_found(read) or ())

    def patch_status(self, node: str, operations: Sequence[PatchOperation]) -> None:
        kind, body = PatchType.JSON, list(operations)
        self._request("patch nodes/status", lambda: self._client.patch(_NodeStatus, node, body, patch_type=kind))

    def _list(self, resource: type[Any], kind: type[_T], **selection: Any) -> list[_T]:
        objects = self._client.list(resource, chunk_size=_CHUNK, **selection)
        return [msgspec.convert(content, kind) for content in objects]

    def _request(self, permission: str, call: Callable[[], _T]) -> _T:
        server = self._client.config.cluster.server
        try:
            return call()
        except httpx2.HTTPStatusError as error:
            raise _refusal(permission, error) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise PeerGone(f"cannot reach {server}: {str(error) or type(error).__name__}") from error
        except lightkube.ConfigError as error:
            raise ConfigError(str(error)) from error
        except OSError as error:
            raise ConfigError(f"cannot get credentials for {server}: {error}") from error
        except (KeyError, ValueError) as error:
            raise MalformedMessage(f"unreadable answer of {server} or of the credential command: {error!r}") from error


def _none_if_not_found(read: Callable[[], _T]) -> _T | None:
    try:
        return read()
    except PeerRefused as error:
        if error.code == _NOT_FOUND:
            return None
        raise


def _refusal(permission: str, error: httpx2.HTTPStatusError) -> PeerRefused | PeerGone:
    """Most refusals are a Status with a reason; proxies and a server in trouble answer with plain text."""
    code, status = error.response.status_code, error.status if isinstance(error, lightkube.ApiError) else None
    message = (status and status.message) or error.response.text.strip()[:200] or str(error)
    if code == 429 or code >= 500:
        return PeerGone(f"the API server cannot answer now: {message}")
    if code == 403:
        return PeerRefused("Forbidden", f"not allowed to {permission}: {message}; --rbac prints the ClusterRole needed")
    if code == 401:
        return PeerRefused("Unauthorized", "the API server rejects these credentials; the token may have expired")
    if code == 404:
        return PeerRefused(_NOT_FOUND, message)
    return PeerRefused((status and status.reason) or str(code), message)


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
    """DeviceClass names by resource: a class serves its extendedResourceName, and a resource of its own name."""
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
