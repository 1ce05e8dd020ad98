"""The API server under test: in the process by ASGI or, where a socket matters, behind uvicorn on loopback."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx2
import uvicorn

from plugwright.apiserver import KUBERNETES_VERSION
from plugwright.apiserver.app import Server, application
from plugwright.apiserver.kinds import NAMESPACES, NODES, PRIORITY_CLASSES, SYSTEM_PRIORITY_CLASSES
from plugwright.apiserver.log_options import LogOptions
from plugwright.apiserver.registry import ResourcePath, Writer
from plugwright.apiserver.store import Store
from plugwright.cluster.container_logs import lines_of_text

__all__ = ["TOKEN", "Answer", "Api", "FakeLogs", "container", "pod", "populated", "served", "server"]

TOKEN = "good"
EPOCH = datetime(2026, 11, 15, 12, tzinfo=UTC)
Json = dict[str, Any]


class FakeLogs:
    """Three lines of output for every container."""

    def read_log(self, namespace: str, pod: str, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        text = "".join(f"{namespace}/{pod}/{container} {number}\n" for number in range(3))
        return lines_of_text(text, EPOCH, options, _never)


async def _never() -> None:
    await asyncio.Event().wait()


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    body: Any
    headers: Mapping[str, str]

    @property
    def reason(self) -> str:
        return str(self.body["reason"])

    @property
    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.body["items"]]


class Api:
    """A client that sends requests and reads their answers."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client

    async def __call__(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        sent = {
            "content-type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        response = await self.client.request(method, path, content=content, headers=sent)
        is_json = response.headers.get("content-type", "").startswith("application/json")
        return Answer(response.status_code, response.json() if is_json else response.text, response.headers)

    async def patch(self, path: str, body: object, kind: str = "merge-patch") -> Answer:
        return await self("PATCH", path, body, content_type=f"application/{kind}+json")


def populated(store: Store) -> Store:
    """The store with two namespaces, the priority classes of every cluster, and a node."""
    writer = Writer(store, lambda: EPOCH)
    for name in ("default", "kube-system"):
        writer.create(ResourcePath(NAMESPACES, "", name), {"metadata": {"name": name}}, "test")
    for content in SYSTEM_PRIORITY_CLASSES:
        writer.create(ResourcePath(PRIORITY_CLASSES, "", content["metadata"]["name"]), content, "test")
    node = {"metadata": {"name": "node"}, "status": {"capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"}}}
    writer.create(ResourcePath(NODES, "", "node"), node, "test")
    return store


def server(store: Store, release: str = KUBERNETES_VERSION) -> Server:
    return Server(store, FakeLogs(), TOKEN, release, now=lambda: EPOCH)


@asynccontextmanager
async def served(store: Store) -> AsyncIterator[str]:
    """The address at which the store is served over HTTP meanwhile."""
    config = uvicorn.Config(application(server(store)), port=0, log_level="critical", lifespan="off", access_log=False)
    uvicorn_server = uvicorn.Server(config)
    uvicorn_server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    config.load()
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # or Nagle delays by 40 ms
    listening.bind(("127.0.0.1", 0))
    task = asyncio.create_task(uvicorn_server.serve([listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        uvicorn_server.should_exit = uvicorn_server.force_exit = True
        await task
        listening.close()


def container(name: str = "main", **members: object) -> Json:
    return {"name": name, "image": "busybox", **members}


def pod(name: str, *containers: Json, labels: Mapping[str, str] | None = None, **spec: object) -> Json:
    metadata: Json = {"name": name, **({"labels": dict(labels)} if labels else {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": list(containers) or [container()], **spec},
    }
