"""The API server, seen from a node: the only home of its client.

Objects become values here, and whatever goes wrong becomes one of our errors: forbidden, conflict and the like
`PeerRefused` with the API's word as code, a server that cannot be reached or cannot answer now `PeerGone`.

API objects, as far as extended resources go, and the values that are made of them.

Members that are absent or null are as good as empty: what has no say here must not stop us.
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
from plugwright.extended_resources.changes import Operation
from plugwright.extended_resources.resources import (
    Container,
    Entry,
    Node,
    Pod,
    is_extended,
    pod_requests,
    setters,
)
from plugwright.kube import kubeconfig

__all__ = [
    "Account",
    "Api",
    "DeviceClassObject",
    "NodeObject",
    "PodObject",
    "class_names",
    "connect",
    "to_node",
    "to_pod",
]


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


class _PlainNodeStatus(msgspec.Struct):
    capacity: dict[str, str | int] | None = None
    allocatable: dict[str, str | int] | None = None
    conditions: list[_Condition] | None = None
    info: _NodeInfo | None = msgspec.field(name="nodeInfo", default=None)


class NodeObject(msgspec.Struct):
    metadata: _Metadata
    status: _PlainNodeStatus = msgspec.field(default_factory=_PlainNodeStatus)


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
    return {
        name: quantity.whole(quantity.parse(str(number)))
        for name, number in (quantities or {}).items()
        if is_extended(name)
    }


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


_NODE = ResourceDef("", "v1", "Node")
_MANAGER = "plugwright"
_CHUNK = 500
_NOT_FOUND = "NotFound"
_UNUSABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, httpx2.InvalidURL, lightkube.ConfigError)
_T = TypeVar("_T")


# Generic ones are read as plain JSON: lightkube's own models refuse an object for any member that they miss.
class _Nodes(GenericGlobalResource):
    _api_info = ApiInfo(_NODE, "nodes", ["get", "list"])


class _NodeStatus(GenericGlobalStatus):
    _api_info = ApiInfo(_NODE, "nodes", ["patch"], parent=_NODE, action="status")


class _Pods(GenericNamespacedResource):
    _api_info = ApiInfo(ResourceDef("", "v1", "Pod"), "pods", ["global_list"])


class _Classes(GenericGlobalResource):
    _api_info = ApiInfo(ResourceDef("resource.k8s.io", "v1", "DeviceClass"), "deviceclasses", ["list"])


@dataclass(frozen=True, slots=True)
class Account:
    """Where to find out which cluster, and as whom."""

    kubeconfig: Path | None = None
    context: str | None = None
    service_account: Path = Path(SERVICE_ACCOUNT)


@contextmanager
def connect(account: Account) -> Iterator["Api"]:
    try:
        config, proxy = _configuration(account)
        client = lightkube.Client(config, field_manager=_MANAGER, proxy=proxy)
    except _UNUSABLE as error:
        raise ConfigError(f"the kubeconfig cannot be used: {error!s:.300}") from error
    with client:
        yield Api(client)


def _configuration(account: Account) -> tuple[lightkube.KubeConfig, str | None]:
    """And the proxy to take, which lightkube does not read."""
    files = kubeconfig.files(account.kubeconfig, os.environ, Path.home())
    if files:
        document = kubeconfig.chosen(kubeconfig.load(files), account.context)
        return lightkube.KubeConfig.from_dict(document), kubeconfig.proxy(document)
    if "KUBERNETES_SERVICE_HOST" in os.environ and account.service_account.is_dir():
        return lightkube.KubeConfig.from_service_account(account.service_account), None
    raise ConfigError("no cluster: no --kubeconfig, no KUBECONFIG, no ~/.kube/config, and no service account of a pod")


class Api:
    """Nodes, pods and device classes of one cluster, as far as extended resources go."""

    def __init__(self, client: lightkube.Client) -> None:
        self._client = client

    def nodes(self) -> list[Node]:
        listed = self._ask("list nodes", lambda: self._listed(_Nodes, NodeObject))
        return [to_node(each) for each in listed]

    def find_node(self, name: str) -> Node | None:
        read = partial(self._ask, "get nodes", lambda: msgspec.convert(self._client.get(_Nodes, name), NodeObject))
        found = _unless_absent(read)
        return to_node(found) if found else None

    def pods(self, node: str | None = None) -> list[Pod]:
        """Those bound to `node`, or to any, that have not ended."""
        place = node or not_equal("")
        fields = {"spec.nodeName": place, "status.phase": not_in(["Succeeded", "Failed"])}
        listed = self._ask("list pods", lambda: self._listed(_Pods, PodObject, namespace="*", fields=fields))
        return [to_pod(each) for each in listed]

    def device_classes(self) -> dict[str, tuple[str, ...]]:
        """The names of the classes by the resource that they serve; none on clusters without DRA."""
        read = partial(self._ask, "list deviceclasses", lambda: self._listed(_Classes, DeviceClassObject))
        return class_names(_unless_absent(read) or ())

    def patch_status(self, node: str, operations: Sequence[Operation]) -> None:
        kind, body = PatchType.JSON, list(operations)
        self._ask("patch nodes/status", lambda: self._client.patch(_NodeStatus, node, body, patch_type=kind))

    def _listed(self, resource: type[Any], kind: type[_T], **selection: Any) -> list[_T]:
        found = self._client.list(resource, chunk_size=_CHUNK, **selection)
        return [msgspec.convert(each, kind) for each in found]

    def _ask(self, what: str, call: Callable[[], _T]) -> _T:
        server = self._client.config.cluster.server
        try:
            return call()
        except httpx2.HTTPStatusError as error:
            raise _refusal(what, error) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise PeerGone(f"cannot reach {server}: {str(error) or type(error).__name__}") from error
        except lightkube.ConfigError as error:
            raise ConfigError(str(error)) from error
        except OSError as error:
            raise ConfigError(f"cannot get credentials for {server}: {error}") from error
        except (KeyError, ValueError) as error:
            raise MalformedMessage(f"{server} or the credential command answered nonsense: {error!r}") from error


def _unless_absent(read: Callable[[], _T]) -> _T | None:
    try:
        return read()
    except PeerRefused as error:
        if error.code == _NOT_FOUND:
            return None
        raise


def _refusal(what: str, error: httpx2.HTTPStatusError) -> PeerRefused | PeerGone:
    """Most refusals are a Status with a reason; what proxies and a server in trouble say is plain text."""
    code, status = error.response.status_code, error.status if isinstance(error, lightkube.ApiError) else None
    message = (status and status.message) or error.response.text.strip()[:200] or str(error)
    if code == 429 or code >= 500:
        return PeerGone(f"the API server cannot answer now: {message}")
    if code == 403:
        return PeerRefused("Forbidden", f"not allowed to {what}: {message}; --rbac prints the role it takes")
    if code == 401:
        return PeerRefused("Unauthorized", "the API server does not know this account; has its token run out?")
    if code == 404:
        return PeerRefused(_NOT_FOUND, message)
    return PeerRefused((status and status.reason) or str(code), message)
