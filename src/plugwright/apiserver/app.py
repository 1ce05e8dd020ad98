"""The ASGI application: authentication, routing, and the response to every error.

Starlette's router is not used, because every path first needs the token, even one that matches no route. `discovery`
serves the documents about kinds, `handlers` all resources.
"""

import hmac
import logging
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from plugwright.apiserver import (
    KUBERNETES_VERSION,
    clock,
    discovery,
    port_forward,
    remote_commands,
    requests,
    responses,
    schema,
)
from plugwright.apiserver.clock import Clock
from plugwright.apiserver.errors import from_cluster_error, method_not_allowed, not_found
from plugwright.apiserver.handlers import Logs, ResourceHandlers
from plugwright.apiserver.kinds import KINDS
from plugwright.apiserver.remote_commands import NO_COMMANDS, STREAMED_SUBRESOURCES, CommandRunner
from plugwright.apiserver.store import Store
from plugwright.errors import ClusterError, StatusError

__all__ = ["Logs", "RequestRouter", "Server", "application"]

logger = logging.getLogger(__name__)
_IMPERSONATION = "impersonate-"
_HEALTH = ("/healthz", "/livez", "/readyz")


@dataclass(frozen=True)
class Server:
    """The objects and logs that the application serves, and the token that it requires."""

    store: Store
    logs: Logs
    token: str = field(repr=False)
    release: str = KUBERNETES_VERSION
    now: Clock = clock.now
    commands: CommandRunner = NO_COMMANDS


def application(server: Server) -> Starlette:
    app = Starlette(exception_handlers={Exception: _internal_error})
    app.router.default = RequestRouter(server)
    return app


async def _internal_error(request: Request, error: Exception) -> Response:
    """Responds to an unexpected exception, which Starlette raises again so that its traceback is logged."""
    logger.error("request failed", extra={"method": request.method, "path": request.url.path, "error": repr(error)})
    return responses.failure(
        request, StatusError(500, "InternalError", f"Internal error occurred: {type(error).__name__}")
    )


class RequestRouter:
    """The ASGI endpoint of all paths."""

    def __init__(self, server: Server) -> None:
        self._token = server.token.encode()
        self._documents = discovery.documents(server.release)
        self._release = server.release
        self._commands = server.commands
        self._handlers = ResourceHandlers(server.store, server.logs, server.now, server.commands)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._serve_websocket(scope, receive, send)
            return
        response = await self.respond(Request(scope, receive))
        await response(scope, receive, send)

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves `kubectl exec`, `attach` and `port-forward`; errors are sent as without an upgrade."""
        request = Request({**scope, "type": "http", "method": "GET", "scheme": "https", "http_version": "1.1"}, receive)
        try:
            self._authenticate(request)
            _refuse_impersonation(request)
            path = requests.resource_path(scope["path"].rstrip("/"), self._release)
            if path.subresource not in STREAMED_SUBRESOURCES:
                raise method_not_allowed()
            served = port_forward if path.subresource == "portforward" else remote_commands
            await served.serve(scope, receive, send, path, self._commands)
        except ClusterError as error:
            response = responses.failure(request, from_cluster_error(error))
            headers = response.raw_headers
            await send({"type": "websocket.http.response.start", "status": response.status_code, "headers": headers})
            await send({"type": "websocket.http.response.body", "body": response.body})

    async def respond(self, request: Request) -> Response:
        """The response, including error responses."""
        try:
            return await self._respond(request)
        except ClusterError as error:
            return responses.failure(request, from_cluster_error(error))

    async def _respond(self, request: Request) -> Response:
        self._authenticate(request)
        _refuse_impersonation(request)
        path = request.scope["path"].rstrip("/") or "/"
        if path in _HEALTH or path.startswith(tuple(f"{prefix}/" for prefix in _HEALTH)):
            return PlainTextResponse("ok")
        if path in self._documents or path.startswith("/openapi/"):
            return self._document(request, path)
        if path in discovery.REVIEWS:
            return await discovery.review(request, path)
        return await self._handlers.handle(request, requests.resource_path(path, self._release))

    def _authenticate(self, request: Request) -> None:
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        token = credentials.strip().encode("utf-8", "replace")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token, self._token):
            raise StatusError(401, "Unauthorized", "Unauthorized")

    def _document(self, request: Request, path: str) -> Response:
        if request.method not in ("GET", "HEAD"):
            raise method_not_allowed()
        if path in self._documents:
            return responses.json(self._documents[path])
        return _openapi_2(request) if path == "/openapi/v2" else _openapi_3(path, self._release)


def _refuse_impersonation(request: Request) -> None:
    """Rejects impersonation, because the response would suggest rights that nothing checks."""
    names = [name for name in request.headers if name.startswith(_IMPERSONATION)]
    if names:
        user = str(request.headers.get("impersonate-user", ""))
        text = f'users "{user:.80}" is forbidden: plugwright does not emulate impersonation (header {min(names)})'
        raise StatusError(403, "Forbidden", f"{text}: there is one user, who may do everything", {"kind": "users"})


def _openapi_2(request: Request) -> Response:
    """An empty document, in protobuf an empty body: kubectl searches here for kinds missing in version 3."""
    if "protobuf" in request.headers.get("accept", ""):
        return Response(media_type="application/octet-stream")
    return responses.json({"swagger": "2.0", "info": {"title": "plugwright", "version": "1"}, "paths": {}})


def _openapi_3(path: str, release: str) -> Response:
    if not path.startswith("/openapi/v3"):
        raise not_found()
    groups = {kind.root.removeprefix("/"): (kind.group, kind.version) for kind in KINDS}
    name = path.removeprefix("/openapi/v3").strip("/")
    if not name:
        paths = {group: {"serverRelativeURL": f"/openapi/v3/{group}"} for group in sorted(groups)}
        return responses.json({"paths": paths})
    if name not in groups:
        raise not_found()
    return responses.json(schema.openapi(*groups[name], release))
