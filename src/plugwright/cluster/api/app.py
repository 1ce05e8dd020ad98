"""The ASGI application: every request is authenticated, led to who answers it, and answered.

What a path means is `requests`'; reading is `reading`'s, writing `changing`'s.
"""

import hmac
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from plugwright.cluster import KUBERNETES_VERSION, clock
from plugwright.cluster.api import discovery, requests, responses, schema
from plugwright.cluster.api.errors import Refused, from_store, not_found
from plugwright.cluster.api.handlers import Changer, Logs, Reader
from plugwright.cluster.api.kinds import KINDS
from plugwright.cluster.api.requests import Target
from plugwright.cluster.clock import Clock
from plugwright.cluster.store import Store
from plugwright.errors import ClusterError

__all__ = ["Logs", "Server", "application"]

logger = logging.getLogger(__name__)
_HEALTH = ("/healthz", "/livez", "/readyz")


@dataclass(frozen=True)
class Server:
    """What the application serves, and for whom."""

    store: Store
    logs: Logs
    token: str = field(repr=False)
    release: str = KUBERNETES_VERSION
    now: Clock = clock.now


def application(server: Server) -> Starlette:
    app = Starlette(exception_handlers={Exception: _internal})
    app.router.default = _Handler(server)  # not a route: some paths match none, and nobody would ask for the token
    return app


async def _internal(request: Request, error: Exception) -> Response:
    """What nobody expected; Starlette raises it again, so that the log has all of it."""
    logger.error("request failed", extra={"method": request.method, "path": request.url.path, "error": repr(error)})
    return responses.refusal(Refused(500, "InternalError", f"Internal error occurred: {type(error).__name__}"))


class _Handler:
    """One endpoint for all paths: which object is meant is known only after looking at the kinds."""

    def __init__(self, server: Server) -> None:
        self._token = server.token.encode()
        self._documents = discovery.documents(server.release)
        self._reader = Reader(server.store, server.logs, server.now)
        changer = Changer(server.store, server.now)
        self._verbs: dict[str, Callable[[Request, Target], Awaitable[Response]]] = {
            "POST": changer.post,
            "PUT": changer.put,
            "PATCH": changer.patch,
            "DELETE": changer.delete,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # `kubectl exec` tries a WebSocket first, and then asks as everyone does
            await send({"type": "websocket.close", "code": 1008, "reason": "no WebSockets here"})
            return
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except Refused as refused:
            response = responses.refusal(refused)
        except ClusterError as error:
            response = responses.refusal(from_store(error))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        self._authenticate(request)
        path = request.scope["path"].rstrip("/") or "/"
        if path in _HEALTH or path.startswith(tuple(f"{each}/" for each in _HEALTH)):
            return PlainTextResponse("ok")
        if path in self._documents or path.startswith("/openapi/"):
            return self._document(request, path)
        if path in discovery.PATHS:
            return await discovery.review(request, path)
        target = requests.resolve(path)
        if request.method in ("GET", "HEAD"):
            return self._reader.get(request, target)
        if request.method not in self._verbs:
            raise requests.not_allowed()
        return await self._verbs[request.method](request, target)

    def _authenticate(self, request: Request) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = token.strip().encode("utf-8", "replace")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given, self._token):
            raise Refused(401, "Unauthorized", "Unauthorized")

    def _document(self, request: Request, path: str) -> Response:
        if request.method not in ("GET", "HEAD"):
            raise requests.not_allowed()
        if path in self._documents:
            return responses.json(self._documents[path])
        return _openapi_2(request) if path == "/openapi/v2" else _openapi_3(path)


def _openapi_2(request: Request) -> Response:
    """Empty, as no bytes are in protobuf: kubectl looks here for kinds that version 3 does not have."""
    if "protobuf" in request.headers.get("accept", ""):
        return Response(media_type="application/octet-stream")
    return responses.json({"swagger": "2.0", "info": {"title": "plugwright", "version": "1"}, "paths": {}})


def _openapi_3(path: str) -> Response:
    if not path.startswith("/openapi/v3"):
        raise not_found()
    groups = {kind.root.removeprefix("/"): kind for kind in KINDS}
    name = path.removeprefix("/openapi/v3").strip("/")
    if not name:
        paths = {each: {"serverRelativeURL": f"/openapi/v3/{each}"} for each in sorted(groups)}
        return responses.json({"paths": paths})
    if name not in groups:
        raise not_found()
    return responses.json(schema.document(groups[name].group, groups[name].version))
