"""The read API of joined nodes' kubelets, for the API server and for metrics-server: logs, pods, metrics, statistics.

One application serves all nodes, distinguished by their ports. `kubelet_access` authenticates and authorizes every
request before anything else. The API is read-only: no exec, attach or port-forward.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from plugwright.apiserver import clock, log_options
from plugwright.apiserver.kinds import PODS
from plugwright.apiserver.store import Object, ObjectKey
from plugwright.cluster.joined import usage
from plugwright.cluster.joined.kubelet_access import KubeletAccess
from plugwright.cluster.joined.mirror import Mirror
from plugwright.cluster.joined.usage import NodeSeconds
from plugwright.cluster.nodes.node import EmulatedNode
from plugwright.errors import KubeletError, StatusError
from plugwright.kubelet.metrics import MetricSample

__all__ = ["KubeletServer"]

_METRICS_TEXT = "text/plain; version=0.0.4; charset=utf-8"

NodeHandler = Callable[[Request, EmulatedNode], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class KubeletServer:
    """`nodes` are by port; for a port without a running node it responds as a starting kubelet."""

    access: KubeletAccess
    mirror: Mirror
    nodes: Mapping[int, EmulatedNode]
    seconds: defaultdict[str, NodeSeconds] = field(default_factory=lambda: defaultdict(NodeSeconds))

    @property
    def application(self) -> Starlette:
        """An ASGI application; the server puts the client's certificate into the state of a request as `peercert`."""
        return Starlette(
            routes=[
                Route("/healthz", self._handler("healthz", self._healthz)),
                Route("/pods", self._handler("pods", self._pods)),
                Route("/runningpods/", self._handler("pods", self._pods)),
                Route("/metrics", self._handler("metrics", self._metrics)),
                Route("/metrics/resource", self._handler("metrics", self._resource_metrics)),
                Route("/stats/summary", self._handler("stats", self._summary)),
                Route("/containerLogs/{namespace}/{pod}/{container}", self._handler("proxy", self._log)),
            ]
        )

    def _handler(self, subresource: str, handler: NodeHandler) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            node = self.nodes.get((request.scope.get("server") or ("", 0))[1])
            if node is None:
                return PlainTextResponse("no node has this port\n", 404)
            try:
                await self.access.check(request, node.name, subresource)
            except StatusError as error:
                return PlainTextResponse(f"{error}\n", error.code)
            if not node.is_running:
                return PlainTextResponse("the kubelet of this node is stopped\n", 503)
            return await handler(request, node)

        return handle

    async def _healthz(self, request: Request, node: EmulatedNode) -> Response:
        return PlainTextResponse("ok")

    async def _pods(self, request: Request, node: EmulatedNode) -> Response:
        return JSONResponse({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self._bound(node)})

    async def _metrics(self, request: Request, node: EmulatedNode) -> Response:
        try:
            samples = node.kubelet.metrics.snapshot()
        except KubeletError:
            samples = ()
        return PlainTextResponse("".join(_exposition(samples)), media_type=_METRICS_TEXT)

    async def _resource_metrics(self, request: Request, node: EmulatedNode) -> Response:
        seconds = self.seconds[node.name]
        text = "".join(usage.resource_metrics(node.identity, self._bound(node), seconds, usage.now()))
        return PlainTextResponse(text, media_type=_METRICS_TEXT)

    async def _summary(self, request: Request, node: EmulatedNode) -> Response:
        return JSONResponse(usage.summary(node.identity, self._bound(node), self.seconds[node.name], usage.now()))

    async def _log(self, request: Request, node: EmulatedNode) -> Response:
        key = ObjectKey(PODS.qualified, request.path_params["namespace"], request.path_params["pod"])
        pod, container = self.mirror.get(key), request.path_params["container"]
        if pod is None or pod["spec"].get("nodeName") != node.name:
            return PlainTextResponse(f'pod "{key.name}" not found\n', 404)
        if container not in _containers(pod):
            return PlainTextResponse(f'container "{container}" not found in pod "{key.name}"\n', 404)
        try:
            text = node.read_log(pod, container, log_options.read(request.query_params, clock.now()))
        except StatusError as error:
            return PlainTextResponse(f"{error.message}\n", error.code)
        return StreamingResponse(text, media_type="text/plain")

    def _bound(self, node: EmulatedNode) -> list[Object]:
        return self.mirror.bound_pods(node.name)


def _containers(pod: Object) -> list[str]:
    spec = pod["spec"]
    return [container["name"] for container in [*(spec.get("initContainers") or ()), *spec["containers"]]]


def _exposition(samples: tuple[MetricSample, ...]) -> Iterator[str]:
    for sample in samples:
        labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels)
        yield f"{sample.name}{f'{{{labels}}}' if labels else ''} {sample.value:g}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
