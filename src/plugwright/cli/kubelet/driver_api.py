"""The API server beside `plugwright kubelet`: where a DRA driver publishes slices and reads its claims.

The claims are those of the pod files, allocated there to named devices; nothing here allocates. It is the embedded
cluster's API with one node, behind TLS on loopback, and has its kubeconfig in the kubelet's directory.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from plugwright.apiserver import KUBERNETES_VERSION, app, requests, tls
from plugwright.apiserver.clock import now
from plugwright.apiserver.kinds import NAMESPACES, NODES, RESOURCE_CLAIMS
from plugwright.apiserver.kubeconfig_file import Kubeconfig
from plugwright.apiserver.log_options import LogOptions
from plugwright.apiserver.registry import DeleteOptions, ResourcePath, Writer
from plugwright.apiserver.store import Object, Store
from plugwright.cli.up.server import Application, listen, serving
from plugwright.cluster.events import ClusterClient
from plugwright.cluster.scheduling.resource_claims import StoreResourceApi
from plugwright.errors import ClusterError, ConfigError
from plugwright.kubelet import PodSpec

__all__ = ["DriverApi"]

_MANAGER = "plugwright-kubelet"
_Document = Mapping[str, Any]


class DriverApi:
    """The objects: a node, the namespaces of the pods, and their claims; drivers add their slices."""

    def __init__(self, node: str) -> None:
        self.store = Store()
        self.writer = Writer(self.store, now)
        self.resource_api = StoreResourceApi(ClusterClient(self.store, self.writer), node)
        self.writer.create(ResourcePath(NODES, "", node), {"metadata": {"name": node}}, _MANAGER)
        self._ensure_namespace("default")

    @asynccontextmanager
    async def served(self, directory: Path) -> AsyncIterator[Path]:
        """Over TLS on loopback, with a token of its own."""
        credentials = directory / "api"
        credentials.mkdir(mode=0o700, exist_ok=True)
        certificates, token = tls.obtain(credentials), secrets.token_urlsafe(32)
        kubeconfig = directory / "kubeconfig"
        with listen(0) as listening:
            listening.listen()  # a driver that reads the kubeconfig at once waits in line, and is not refused
            application = app.application(app.Server(self.store, self, token, KUBERNETES_VERSION, now))
            server = f"https://127.0.0.1:{listening.getsockname()[1]}"
            async with serving(self._observed(application), [listening], certificates):
                with Kubeconfig(server, certificates.authority, token).written(kubeconfig, kept=False):
                    yield kubeconfig

    def _observed(self, application: Application) -> Application:
        """For those who want to see the requests."""
        return application

    async def read_log(self, namespace: str, pod: str, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        yield b""  # there are no pods in this API

    def put(self, claim: _Document) -> None:
        """Stores the claim with its allocation; one of the same spec stays the same object. Raises `ConfigError`."""
        metadata = claim.get("metadata") or {}
        namespace, name = str(metadata.get("namespace") or "default"), str(metadata.get("name") or "")
        path = ResourcePath(RESOURCE_CLAIMS, namespace, name)
        try:
            self._ensure_namespace(namespace)
            stored = self.store.get(path.key)
            if stored is not None and stored.get("spec") != claim.get("spec"):
                self.writer.delete(path, DeleteOptions())
                stored = None
            if stored is None:
                checked, _ = requests.checked_object(RESOURCE_CLAIMS, dict(claim), "Strict")
                self.writer.create(
                    path, {key: checked[key] for key in ("metadata", "spec") if key in checked}, _MANAGER
                )
            self._change_status(path, dict(claim.get("status") or {}))
        except ClusterError as error:
            raise ConfigError(f"ResourceClaim {namespace}/{name}: {error}") from error

    def _change_status(self, path: ResourcePath, status: dict[str, Any]) -> None:
        def changed(stored: Object) -> Object:
            consumers = (stored.get("status") or {}).get("reservedFor")
            kept = {"reservedFor": consumers} if consumers and status.get("allocation") else {}
            return {**stored, "status": {**status, **kept}}

        self.writer.change(ResourcePath(path.kind, path.namespace, path.name, "status"), changed, _MANAGER)

    def remove(self, key: str) -> None:
        namespace, _, name = key.partition("/")
        path = ResourcePath(RESOURCE_CLAIMS, namespace, name)
        if self.store.get(path.key) is not None:
            self.writer.delete(path, DeleteOptions())

    def unallocated(self, pod: PodSpec) -> str:
        """Why the pod has to wait for its claims, as a scheduler says it; empty if it has them all."""
        for claim in pod.claims:
            if not claim.claim_name:
                return f"claim {claim.name} comes from a template, which needs a cluster (`plugwright up`)"
            stored = self.store.get(ResourcePath(RESOURCE_CLAIMS, pod.namespace, claim.claim_name).key)
            if stored is None:
                return f"there is no ResourceClaim {pod.namespace}/{claim.claim_name}"
            if not (stored.get("status") or {}).get("allocation"):
                return f"ResourceClaim {pod.namespace}/{claim.claim_name} is not allocated"
        return ""

    async def until_allocated(self, pod: PodSpec, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                while self.unallocated(pod):
                    await self.store.changes(self.store.revision)
        except TimeoutError:
            return False
        return True

    def reserve(self, pod: PodSpec) -> None:
        """As the scheduler does for a pod that it binds."""
        consumer = {"resource": "pods", "name": pod.name, "uid": pod.uid}
        self._change_consumers(pod, lambda consumers: [*consumers, consumer])

    def release(self, pod: PodSpec) -> None:
        """After the pod; an allocation stays, since the file says it."""
        self._change_consumers(pod, lambda consumers: [one for one in consumers if one["uid"] != pod.uid])

    def _change_consumers(self, pod: PodSpec, change: Callable[[list[Object]], list[Object]]) -> None:
        def changed(stored: Object) -> Object:
            status = dict(stored.get("status") or {})
            consumers = change(status.pop("reservedFor", None) or [])
            return {**stored, "status": status | ({"reservedFor": consumers} if consumers else {})}

        for claim in pod.claims:
            path = ResourcePath(RESOURCE_CLAIMS, pod.namespace, claim.claim_name, "status")
            stored = self.store.get(path.key)
            if stored is not None and (stored.get("status") or {}).get("allocation"):
                self.writer.change(path, changed, _MANAGER)

    def _ensure_namespace(self, name: str) -> None:
        path = ResourcePath(NAMESPACES, "", name)
        if self.store.get(path.key) is None:
            self.writer.create(path, {"metadata": {"name": name}}, _MANAGER)
