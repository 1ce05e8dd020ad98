"""The kubelet API of joined nodes: who may read, and what is read."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.cluster.embedding import embedded
from tests.cluster.joined.test_joined_nodes import GPUS, joined

from plugwright.apiserver.server import listen
from plugwright.cluster.joined.kubelet_access import KubeletAccess
from plugwright.cluster.joined.kubelet_server import KubeletServer
from plugwright.kube.access import ClusterAccess
from plugwright.kube.api_client import ApiClient
from plugwright.kube.credentials import Credentials

PORT = 4711
READER = {"authorization": "Bearer reader"}
CERTIFICATE = {"subject": ((("commonName", "apiserver"),), (("organizationName", "admins"),))}


class Reviews:
    """An API server that only reviews: `reader` and the group `admins` may read, `stranger` is known and may not."""

    def __init__(self) -> None:
        self.specs: list[dict[str, Any]] = []
        self.application = Starlette(
            routes=[
                Route("/apis/authentication.k8s.io/v1/tokenreviews", self._token, methods=["POST"]),
                Route("/apis/authorization.k8s.io/v1/subjectaccessreviews", self._access, methods=["POST"]),
            ]
        )

    async def _token(self, request: Request) -> Response:
        token = (await request.json())["spec"]["token"]
        user = {"username": token, "groups": ["tests"]}
        return JSONResponse({"status": {"authenticated": token in ("reader", "stranger"), "user": user}})

    async def _access(self, request: Request) -> Response:
        spec = (await request.json())["spec"]
        self.specs.append(spec)
        return JSONResponse({"status": {"allowed": spec["user"] == "reader" or "admins" in spec["groups"]}})


class QuietServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def reviewing() -> AsyncIterator[tuple[Reviews, ApiClient]]:
    reviews = Reviews()
    config = uvicorn.Config(reviews.application, log_level="critical", lifespan="off", access_log=False)
    with listen(0) as listening:
        listening.listen()
        server = QuietServer(config)
        task = asyncio.create_task(server.serve([listening]))
        client = ApiClient(ClusterAccess(f"http://127.0.0.1:{listening.getsockname()[1]}", Credentials()))
        try:
            yield reviews, client
        finally:
            client.close()
            server.should_exit = True
            await task


def with_certificate(application: ASGIApp, certificate: object) -> ASGIApp:
    """As the server of `plugwright join` has it."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        await application({**scope, "state": {"peercert": certificate}}, receive, send)

    return call


def client_of(api: KubeletServer, certificate: object = None) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(with_certificate(api.application, certificate))
    return httpx2.AsyncClient(transport=transport, base_url=f"https://127.0.0.1:{PORT}")


async def test_only_who_may_read_the_node_reads_it(tmp_path: Path) -> None:
    async with embedded(silence=5.0) as lab, joined(lab, tmp_path, GPUS) as nodes, reviewing() as (reviews, client):
        api = KubeletServer(KubeletAccess(client), nodes.mirror, {PORT: nodes.nodes["gpu-1"]})
        async with client_of(api) as http, client_of(api, CERTIFICATE) as certified:
            assert (await http.get("/pods")).status_code == 401
            assert (await http.get("/pods", headers={"authorization": "Bearer nobody"})).status_code == 401
            assert (await http.get("/pods", headers={"authorization": "Bearer stranger"})).status_code == 403
            assert (await http.get("/healthz", headers=READER)).text == "ok"
            assert (await certified.get("/healthz")).text == "ok"
            before = len(reviews.specs)
            assert (await http.get("/healthz", headers=READER)).text == "ok"
            assert len(reviews.specs) == before
            wanted = {"verb": "get", "version": "v1", "resource": "nodes", "subresource": "healthz", "name": "gpu-1"}
            assert reviews.specs[-1]["resourceAttributes"] == wanted
            assert reviews.specs[-1]["groups"] == ["admins", "system:authenticated"]


async def test_a_server_that_does_not_answer_lets_nobody_read(tmp_path: Path) -> None:
    async with embedded(silence=5.0) as lab, joined(lab, tmp_path, GPUS) as nodes:
        with listen(0) as closed:  # nobody accepts
            port = closed.getsockname()[1]
        away = ApiClient(ClusterAccess(f"http://127.0.0.1:{port}", Credentials()))
        api = KubeletServer(KubeletAccess(away), nodes.mirror, {PORT: nodes.nodes["gpu-1"]})
        async with client_of(api, CERTIFICATE) as http:
            assert (await http.get("/pods")).status_code == 503


async def test_logs_pods_metrics_and_statistics_are_read(tmp_path: Path) -> None:
    async with embedded(silence=5.0) as lab, joined(lab, tmp_path, GPUS) as nodes, reviewing() as (_, client):
        await lab.offered(node="gpu-1")
        lab.create("one", {"mock/gpu": "2", "memory": "1Gi"}, nodeSelector={"pool": "gpu"})
        await lab.phase("one")
        await nodes.outbox.until_sent()
        api = KubeletServer(KubeletAccess(client), nodes.mirror, {PORT: nodes.nodes["gpu-1"]})
        async with client_of(api, CERTIFICATE) as http:
            log = await http.get("/containerLogs/default/one/main", params={"tailLines": "1"})
            assert log.text.startswith("env MOCK_VISIBLE_DEVICES=")
            assert (await http.get("/containerLogs/default/one/other")).status_code == 404
            assert (await http.get("/containerLogs/default/two/main")).status_code == 404
            assert [pod["metadata"]["name"] for pod in (await http.get("/pods")).json()["items"]] == ["one"]
            metrics = (await http.get("/metrics")).text
            assert 'kubelet_device_plugin_registration_total{resource_name="mock/gpu"} 1\n' in metrics
            used = (await http.get("/metrics/resource")).text
            line = 'container_memory_working_set_bytes{container="main",namespace="default",pod="one"} 1073741824 '
            assert line in used
            [pod] = (await http.get("/stats/summary")).json()["pods"]
            assert pod["containers"][0]["memory"]["workingSetBytes"] == 2**30
            assert (await http.post("/run/default/one/main")).status_code == 404
