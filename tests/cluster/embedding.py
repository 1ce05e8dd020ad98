"""An embedded cluster with short times, and what tests read and wait for in it."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp
from tests.cluster.pods_and_nodes import pod_object

from plugwright.apiserver import tls
from plugwright.apiserver.kinds import EVENTS, NODES, PODS
from plugwright.apiserver.log_options import LogOptions
from plugwright.apiserver.registry import DeleteOptions, ResourcePath
from plugwright.apiserver.store import Object, ObjectKey
from plugwright.cluster.embedded import ClusterOptions, EmbeddedCluster

__all__ = ["Lab", "embedded", "served"]

QUICK = ClusterOptions(heartbeat=0.05, silence=0.5, retry=0.05, back_off=0.1)


class Lab:
    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster
        self.store = cluster.store
        self.writer = cluster.writer

    def create(self, name: str, limits: Mapping[str, str] | None = None, **spec: object) -> Object:
        return self.writer.create(ResourcePath(PODS, "default", name), pod_object(name, limits, **spec), "test")

    def delete(self, name: str, grace: int | None = None) -> None:
        self.writer.delete(ResourcePath(PODS, "default", name), DeleteOptions(grace))

    def pod(self, name: str) -> Object | None:
        return self.store.get(ObjectKey(PODS.qualified, "default", name))

    def node(self, name: str = "node-1") -> Object:
        return self.store.require(ObjectKey(NODES.qualified, "", name))

    def status(self, name: str) -> Object:
        return dict((self.pod(name) or {}).get("status") or {})

    def counts(self, resource: str, node: str = "node-1") -> tuple[str | None, str | None]:
        status = self.node(node)["status"]
        return status["capacity"].get(resource), status["allocatable"].get(resource)

    def condition(self, kind: str, node: str = "node-1") -> Object:
        return next(
            dict(condition) for condition in self.node(node)["status"]["conditions"] if condition["type"] == kind
        )

    def events(self, name: str) -> list[tuple[str, str]]:
        events = [event for event in self.store.objects(EVENTS.qualified) if event["involvedObject"]["name"] == name]
        return [
            (event["reason"], event["message"]) for event in sorted(events, key=lambda event: event["metadata"]["name"])
        ]

    async def offered(self, resource: str = "mock/gpu", count: str = "10", node: str = "node-1") -> None:
        await self.cluster.until(lambda: self.counts(resource, node) == (count, count))

    async def phase(self, name: str, phase: str = "Running") -> Object:
        await self.cluster.until(lambda: self.status(name).get("phase") == phase)
        return self.status(name)

    async def container(self, name: str, fact: Callable[[Object], bool], container: str = "main") -> Object:
        """The status of a container, once that is so."""

        def shown() -> Object:
            status = self.status(name)
            statuses = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
            return next((entry for entry in statuses if entry["name"] == container), {})

        await self.cluster.until(lambda: bool(shown()) and fact(shown()))
        return shown()

    def read_log(self, name: str, container: str = "main", **options: object) -> AsyncIterator[bytes]:
        return self.cluster.read_log("default", name, container, LogOptions(**options))  # type: ignore[arg-type]

    async def gone(self, name: str) -> None:
        await self.cluster.until(lambda: self.pod(name) is None)

    async def is_ready(self, status: str, node: str = "node-1") -> None:
        await self.cluster.until(lambda: self.condition("Ready", node)["status"] == status)

    async def command(self, name: str, device: str) -> None:
        await self.cluster.daemon("node-1").resources["mock/gpu"].command(name, {"id": device})


@asynccontextmanager
async def embedded(limit: float = 60, **options: object) -> AsyncIterator[Lab]:
    """`limit` is in seconds, for all that happens inside."""
    async with asyncio.timeout(limit), EmbeddedCluster(replace(QUICK, **options)) as cluster:  # type: ignore[arg-type]
        yield Lab(cluster)


@asynccontextmanager
async def served(lab: Lab, directory: Path, application: ASGIApp | None = None) -> AsyncIterator[Path]:
    """Serves the cluster over HTTPS while inside, or another application; yields the path of a kubeconfig."""
    certificates = tls.make(directory)
    config = uvicorn.Config(application or lab.cluster.application, port=0, log_level="error", lifespan="off")
    config.ssl_certfile, config.ssl_keyfile = str(certificates.certificate), str(certificates.key)
    server = _Server(config)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve())
        await server.ready.wait()
        port = server.servers[0].sockets[0].getsockname()[1]
        cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(certificates.authority)}
        document = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "one", "user": "me"}}],
            "clusters": [{"name": "one", "cluster": cluster}],
            "users": [{"name": "me", "user": {"token": lab.cluster.token}}],
        }
        path = directory / "kubeconfig"
        path.write_text(json.dumps(document))
        yield path
        server.should_exit = True


class _Server(uvicorn.Server):
    """Has an event for when it listens, and handles no signals."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
