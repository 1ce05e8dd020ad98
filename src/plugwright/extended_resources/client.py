"""The cluster as `plugwright node` sees it: nodes, pods and device classes as values of `resources`."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from plugwright.errors import MalformedMessage, PeerRefused
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
from plugwright.kube.access import ClusterAccess
from plugwright.kube.api_client import BlockingClient, segment

__all__ = ["ClusterNodes", "connect"]

_T = TypeVar("_T")


@contextmanager
def connect(
    kubeconfig: Path | None = None, context: str | None = None, environment: Mapping[str, str] = os.environ
) -> Iterator["ClusterNodes"]:
    """The cluster of a kubeconfig, or in a pod that of its service account."""
    with BlockingClient(ClusterAccess.choose(kubeconfig, context, environment)) as client:
        yield ClusterNodes(client)


class ClusterNodes:
    """Implements `changes.NodesClient`."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client

    def nodes(self) -> list[NodeSnapshot]:
        with _permission("list nodes"):
            objects = self._client.list("/api/v1/nodes")
        return [to_node(_converted(content, NodeObject)) for content in objects]

    def find_node(self, name: str) -> NodeSnapshot | None:
        with _permission("get nodes"):
            content = _none_if_not_found(lambda: self._client.get(f"/api/v1/nodes/{segment(name)}"))
        return to_node(_converted(content, NodeObject)) if content is not None else None

    def pods(self, node: str | None = None) -> list[BoundPod]:
        """The pods bound to `node`, or to any node, that have not ended."""
        bound = f"spec.nodeName={node}" if node else "spec.nodeName!="
        fields = f"{bound},status.phase!=Succeeded,status.phase!=Failed"
        with _permission("list pods"):
            objects = self._client.list("/api/v1/pods", fieldSelector=fields)
        return [to_pod(_converted(content, PodObject)) for content in objects]

    def device_classes(self) -> dict[str, tuple[str, ...]]:
        """DeviceClass names by the resource that they serve; empty on clusters without DRA."""
        path = "/apis/resource.k8s.io/v1/deviceclasses"
        with _permission("list deviceclasses"):
            objects = _none_if_not_found(lambda: self._client.list(path))
        return classes_by_resource(_converted(content, DeviceClassObject) for content in objects or ())

    def patch_status(self, node: str, operations: Sequence[PatchOperation]) -> None:
        path = f"/api/v1/nodes/{segment(node)}/status"
        with _permission("patch nodes/status"):
            self._client.patch(path, list(operations), "json-patch", fieldManager="plugwright")


@contextmanager
def _permission(permission: str) -> Iterator[None]:
    """Names the permission that a refused request needs."""
    try:
        yield
    except PeerRefused as error:
        if error.code != "Forbidden":
            raise
        message = f"not allowed to {permission}: {error.message}; --rbac prints the ClusterRole needed"
        raise PeerRefused(error.code, message) from error


def _converted(content: object, kind: type[_T]) -> _T:
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
