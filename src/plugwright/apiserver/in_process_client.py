"""A client of the API server in the same process: requests pass through everything except the network."""

import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, cast
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from plugwright.apiserver.app import RequestRouter, Server
from plugwright.apiserver.one_node import OneNode
from plugwright.apiserver.store import Object
from plugwright.errors import PeerGone
from plugwright.kube.answers import checked_change, refusal

__all__ = ["InProcessClient"]

_NAME, _AGENT = "the API server", "plugwright"


class InProcessClient:
    """Has the methods of `kube.api_client.ApiClient` that a driver needs, and raises the same errors."""

    def __init__(self, node: OneNode) -> None:
        self._token = secrets.token_urlsafe(32)
        self._router = RequestRouter(Server(node.store, node, self._token))

    async def get(self, path: str) -> Object:
        return await self._request("GET", path)

    async def list(self, path: str, **query: str) -> tuple[list[Object], str]:
        found = await self._request("GET", path, query=query)
        return found["items"], str(found["metadata"]["resourceVersion"])

    async def create(self, path: str, body: Object, **query: str) -> Object:
        return await self._request("POST", path, body, query=query)

    async def update(self, path: str, body: Object) -> Object:
        return await self._request("PUT", path, body)

    async def patch(self, path: str, body: object, kind: str, **query: str) -> Object:
        media = "application/apply-patch+yaml" if kind == "apply-patch" else f"application/{kind}+json"
        return await self._request("PATCH", path, body, media, query)

    async def delete(self, path: str, uid: str = "", resource_version: str = "") -> Object:
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options = {"preconditions": {name: value for name, value in preconditions.items() if value}}
        return await self._request("DELETE", path, options)

    async def watch(self, path: str, resource_version: str, **query: str) -> AsyncGenerator[tuple[str, Object], None]:
        query = {**query, "watch": "true", "resourceVersion": resource_version}
        response = _checked(await self._router.respond(self._received("GET", path, query=query)))
        assert isinstance(response, StreamingResponse)
        async with aclosing(cast("AsyncGenerator[bytes, None]", response.body_iterator)) as lines:
            async for line in lines:
                yield checked_change(line, _NAME)
        raise PeerGone(f"{_NAME} has ended the watch")

    def close(self) -> None:
        """Does nothing: there is no connection."""

    async def _request(
        self, method: str, path: str, body: object = None, media: str = "", query: Mapping[str, str] | None = None
    ) -> Object:
        response = await self._router.respond(self._received(method, path, body, media, query or {}))
        return cast("Object", msgspec.json.decode(_checked(response).body))

    def _received(
        self,
        method: str,
        path: str,
        body: object = None,
        media: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Request:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"" if body is None else msgspec.json.encode(body)}

        path, _, rest = path.partition("?")
        headers = {"authorization": f"Bearer {self._token}", "content-type": media, "user-agent": _AGENT}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": (urlencode(query) if query else rest).encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        return Request(scope, receive)


def _checked(response: Response) -> Response:
    if response.status_code >= 300:
        raise refusal(response.status_code, bytes(response.body).decode())
    return response
