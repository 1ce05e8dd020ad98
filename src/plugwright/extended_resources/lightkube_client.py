"""The API server of a kubeconfig, for `plugwright node`: the only home of lightkube in this package."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec

from plugwright.errors import ConfigError, MalformedMessage, PeerGone, PeerRefused
from plugwright.extended_resources.api_objects import (
    DeviceClassObject,
    NodeObject,
    PodObject,
    classes_by_resource,
    to_node,
    to_pod,
)
from plugwright.extended_resources.changes import PatchOperation
from plugwright.extended_resources.resources import BoundPod, NodeSnapshot
from plugwright.kube import kubeconfig
from plugwright.kube.api_server import refusal

try:
    import httpx2
    import lightkube
    from lightkube.core.resource import ApiInfo, ResourceDef
    from lightkube.generic_resource import GenericGlobalResource, GenericGlobalStatus, GenericNamespacedResource
    from lightkube.operators import not_equal, not_in
    from lightkube.types import PatchType
except ModuleNotFoundError as missing:
    raise ConfigError("plugwright node needs the extra: pip install 'plugwright[cluster]'") from missing

__all__ = ["KubeconfigApi", "connect"]

_NODE = ResourceDef("", "v1", "Node")
_MANAGER = "plugwright"
_CHUNK = 500
_NOT_FOUND = "NotFound"
_UNUSABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, httpx2.InvalidURL, lightkube.ConfigError)
_T = TypeVar("_T")


@contextmanager
def connect(document: Mapping[str, object]) -> Iterator["KubeconfigApi"]:
    """`document` is a kubeconfig of one context."""
    try:
        # The proxy's URL is what lightkube does not read.
        config, proxy = lightkube.KubeConfig.from_dict(dict(document)), kubeconfig.proxy_url(document)
        client = lightkube.Client(config, field_manager=_MANAGER, proxy=proxy)
    except _UNUSABLE as error:
        raise ConfigError(f"the kubeconfig cannot be used: {error!s:.300}") from error
    with client:
        yield KubeconfigApi(client)


# Generic resources are read as plain JSON: lightkube's own models refuse an object for any member that they miss.
class _Nodes(GenericGlobalResource):
    _api_info = ApiInfo(_NODE, "nodes", ["get", "list"])


class _NodeStatus(GenericGlobalStatus):
    _api_info = ApiInfo(_NODE, "nodes", ["patch"], parent=_NODE, action="status")


class _Pods(GenericNamespacedResource):
    _api_info = ApiInfo(ResourceDef("", "v1", "Pod"), "pods", ["global_list"])


class _DeviceClasses(GenericGlobalResource):
    _api_info = ApiInfo(ResourceDef("resource.k8s.io", "v1", "DeviceClass"), "deviceclasses", ["list"])


class KubeconfigApi:
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
            raise refusal(error.response.status_code, error.response.text, permission) from error
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
