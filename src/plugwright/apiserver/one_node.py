"""An API server with one node, for its drivers: in tests, for `verify --dra` and beside `plugwright kubelet`.

It allocates no claims: their owner stores them with an allocation. Drivers reach the server over TLS on loopback with a
kubeconfig, or through a client in the same process.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from plugwright.apiserver import schema
from plugwright.apiserver.clock import now
from plugwright.apiserver.kinds import NAMESPACES, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from plugwright.apiserver.kinds.dynamic_resources import ADMIN_ACCESS_LABEL
from plugwright.apiserver.log_options import LogOptions
from plugwright.apiserver.registry import DeleteOptions, ObjectWriter, ResourcePath, Writer
from plugwright.apiserver.store import Object, ObjectReader, Store
from plugwright.errors import ClusterError, ConfigError, KubeletError, NotFound

__all__ = ["NodeResources", "OneNode"]

_MANAGER = "plugwright"


class NodeResources:
    """The claims and slices of a node, as its emulated kubelet reads and deletes them without HTTP."""

    def __init__(self, store: ObjectReader, writer: ObjectWriter, node: str) -> None:
        self._reader, self._deleter, self.node = store, writer, node

    async def claim(self, namespace: str, name: str) -> Object:
        """The claim; raises `KubeletError` if it does not exist."""
        try:
            return self._reader.require(ResourcePath(RESOURCE_CLAIMS, namespace, name).key)
        except NotFound as error:
            raise KubeletError(f"fetch ResourceClaim {name}: {error}") from error

    async def delete_slices(self, driver: str = "") -> None:
        for found in self._reader.objects(RESOURCE_SLICES.qualified):
            spec = found["spec"]
            if spec.get("nodeName") == self.node and driver in ("", spec["driver"]):
                path = ResourcePath(RESOURCE_SLICES, "", found["metadata"]["name"])
                try:
                    self._deleter.delete(path, DeleteOptions())
                except ClusterError as error:
                    raise KubeletError(str(error)) from error


class OneNode(NodeResources):
    """The objects: the node, the stored claims with their namespaces, and the slices of drivers."""

    def __init__(self, node: str) -> None:
        self.store = Store()
        self.writer = Writer(self.store, now)
        super().__init__(self.store, self.writer, node)
        created = self.writer.create(ResourcePath(NODES, "", node), {"metadata": {"name": node}}, _MANAGER)
        self.node_uid = str(created["metadata"]["uid"])
        self.stop_serving: Callable[[], Awaitable[None]] = _not_served  # acts as an unreachable API server
        self.start_serving: Callable[[], Awaitable[None]] = _not_served
        self._ensure_namespace("default")

    @property
    def slices(self) -> list[Object]:
        """The ResourceSlices, by name."""
        return list(self.store.objects(RESOURCE_SLICES.qualified))

    async def until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Whether the condition holds within `timeout` seconds, checked after every change of an object."""
        try:
            async with asyncio.timeout(timeout):
                while not condition():
                    await self.store.changes(self.store.revision)
        except TimeoutError:
            return condition()
        return True

    def stored_claim(self, namespace: str, name: str) -> Object | None:
        return self.store.get(ResourcePath(RESOURCE_CLAIMS, namespace, name).key)

    def put(self, claim: Mapping[str, Any]) -> None:
        """Stores the claim with its allocation; a claim with an equal spec keeps its identity. Raises `ConfigError`."""
        metadata = claim.get("metadata") or {}
        namespace, name = str(metadata.get("namespace") or "default"), str(metadata.get("name") or "")
        path = ResourcePath(RESOURCE_CLAIMS, namespace, name)
        try:
            self._ensure_namespace(namespace)
            checked, _ = schema.checked_object(RESOURCE_CLAIMS, dict(claim), "Strict")
            content: Object = {key: checked[key] for key in ("metadata", "spec") if key in checked}
            stored = self.store.get(path.key)
            if stored is not None and stored.get("spec") != _with_defaults(content).get("spec"):
                self.writer.delete(path, DeleteOptions())
                stored = None
            if stored is None:
                self.writer.create(path, content, _MANAGER)
            self._change_status(path, dict(claim.get("status") or {}))
        except ClusterError as error:
            raise ConfigError(f"ResourceClaim {namespace}/{name}: {error}") from error

    def remove(self, namespace: str, name: str) -> None:
        path = ResourcePath(RESOURCE_CLAIMS, namespace, name)
        if self.store.get(path.key) is not None:
            self.writer.delete(path, DeleteOptions())

    def reserve(self, namespace: str, name: str, pod: tuple[str, str]) -> None:
        """Reserves an allocated claim for a pod, by its name and uid, as the scheduler does when it binds a pod."""
        consumer = {"resource": "pods", "name": pod[0], "uid": pod[1]}
        self._change_consumers(namespace, name, lambda consumers: [*consumers, consumer])

    def release(self, namespace: str, name: str, pod_uid: str) -> None:
        """Releases a claim after the pod has ended; the allocation stays."""
        self._change_consumers(
            namespace, name, lambda consumers: [consumer for consumer in consumers if consumer["uid"] != pod_uid]
        )

    @asynccontextmanager
    async def served(self, directory: Path) -> AsyncIterator[Path]:
        """Serves over TLS on loopback while inside; yields the kubeconfig, in the directory.

        Needs the extra `cluster`, see `extra.check_installed`.
        """
        from plugwright.apiserver import tls
        from plugwright.apiserver.app import Server, application
        from plugwright.apiserver.kubeconfig_file import Kubeconfig
        from plugwright.apiserver.server import RestartableServer

        credentials = directory / "api"
        credentials.mkdir(mode=0o700, exist_ok=True)
        certificates, token = tls.obtain(credentials), secrets.token_urlsafe(32)
        server = RestartableServer(self._observed(application(Server(self.store, self, token))), certificates)
        await server.start()
        self.stop_serving, self.start_serving = server.stop, server.start
        try:
            kubeconfig = Kubeconfig(f"https://127.0.0.1:{server.port}", certificates.authority, token)
            with kubeconfig.written(directory / "kubeconfig", kept=False):
                yield directory / "kubeconfig"
        finally:
            await server.stop()

    def _observed(self, application: Any) -> Any:
        """The ASGI application; a subclass can wrap it to see the requests."""
        return application

    async def read_log(self, namespace: str, pod: str, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        """Implements `handlers.Logs`: there are no pods here, so there are no logs."""
        yield b""

    def _change_status(self, path: ResourcePath, status: dict[str, Any]) -> None:
        def changed(stored: Object) -> Object:
            consumers = (stored.get("status") or {}).get("reservedFor")
            kept = {"reservedFor": consumers} if consumers and status.get("allocation") else {}
            return {**stored, "status": {**status, **kept}}

        self.writer.change(ResourcePath(path.kind, path.namespace, path.name, "status"), changed, _MANAGER)

    def _change_consumers(self, namespace: str, name: str, change: Callable[[list[Object]], list[Object]]) -> None:
        def changed(stored: Object) -> Object:
            status = dict(stored.get("status") or {})
            consumers = change(status.pop("reservedFor", None) or [])
            return {**stored, "status": status | ({"reservedFor": consumers} if consumers else {})}

        stored = self.stored_claim(namespace, name)
        if stored is not None and (stored.get("status") or {}).get("allocation"):
            self.writer.change(ResourcePath(RESOURCE_CLAIMS, namespace, name, "status"), changed, _MANAGER)

    def _ensure_namespace(self, name: str) -> None:
        path = ResourcePath(NAMESPACES, "", name)
        if self.store.get(path.key) is None:
            self.writer.create(path, {"metadata": {"name": name, "labels": {ADMIN_ACCESS_LABEL: "true"}}}, _MANAGER)


async def _not_served() -> None:
    """Does nothing: before `served`, there is no server to stop or start."""


def _with_defaults(claim: Object) -> Object:
    return RESOURCE_CLAIMS.prepare_for_create({**claim, "metadata": dict(claim.get("metadata") or {})})
