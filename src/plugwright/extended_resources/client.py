"""The API server as `plugwright node` sees it: the cluster of a kubeconfig, or that of the pod it runs in.

A kubeconfig needs `lightkube_client`, with its library; a pod's own service account needs nothing, so that the daemon's
image will do. Failures become our errors: `PeerRefused` with the API's reason as code, `PeerGone` for a server that
cannot be reached or cannot answer now.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from plugwright.errors import ConfigError, MalformedMessage, PeerRefused
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
from plugwright.extended_resources.survey import ClusterApi
from plugwright.kube import kubeconfig
from plugwright.kube.api_server import SERVICE_ACCOUNT
from plugwright.kube.in_cluster import InClusterClient

__all__ = ["ClusterAccess", "InClusterApi", "connect"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """The cluster to connect to: a context of a kubeconfig, or in a pod its service account."""

    kubeconfig: Path | None = None
    context: str | None = None
    service_account: Path = SERVICE_ACCOUNT


@contextmanager
def connect(access: ClusterAccess) -> Iterator[ClusterApi]:
    files = kubeconfig.find_files(access.kubeconfig, os.environ, Path.home())
    if files:
        document = kubeconfig.select_context(kubeconfig.load(files), access.context)
        client = import_module("plugwright.extended_resources.lightkube_client")  # an extra, and a third of a second
        with client.connect(document) as api:
            yield api
        return
    pod = InClusterClient.find(os.environ, access.service_account)
    if pod is None:
        raise ConfigError(
            "no cluster: no --kubeconfig, no KUBECONFIG, no ~/.kube/config, and no service account of a pod"
        )
    yield InClusterApi(pod)


class InClusterApi:
    """Nodes, pods and device classes of the cluster that this pod is in."""

    def __init__(self, client: InClusterClient) -> None:
        self._client = client

    def nodes(self) -> list[NodeSnapshot]:
        objects = self._client.list("list nodes", "/api/v1/nodes")
        return [to_node(_converted(content, NodeObject)) for content in objects]

    def find_node(self, name: str) -> NodeSnapshot | None:
        content = _none_if_not_found(lambda: self._client.get("get nodes", f"/api/v1/nodes/{name}"))
        return to_node(_converted(content, NodeObject)) if content is not None else None

    def pods(self, node: str | None = None) -> list[BoundPod]:
        """The pods bound to `node`, or to any node, that have not ended."""
        bound = f"spec.nodeName={node}" if node else "spec.nodeName!="
        fields = f"{bound},status.phase!=Succeeded,status.phase!=Failed"
        objects = self._client.list("list pods", "/api/v1/pods", fieldSelector=fields)
        return [to_pod(_converted(content, PodObject)) for content in objects]

    def device_classes(self) -> dict[str, tuple[str, ...]]:
        """DeviceClass names by the resource that they serve; empty on clusters without DRA."""
        path = "/apis/resource.k8s.io/v1/deviceclasses"
        objects = _none_if_not_found(lambda: list(self._client.list("list deviceclasses", path)))
        return classes_by_resource(_converted(content, DeviceClassObject) for content in objects or ())

    def patch_status(self, node: str, operations: Sequence[PatchOperation]) -> None:
        path = f"/api/v1/nodes/{node}/status?fieldManager=plugwright"
        self._client.patch("patch nodes/status", path, list(operations), "json-patch")


def _converted(content: Any, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise MalformedMessage(f"unreadable answer of the API server: {error!r}") from error


def _none_if_not_found(read: Callable[[], _T]) -> _T | None:
    try:
        return read()
    except PeerRefused as error:
        if error.code == "NotFound":
            return None
        raise
