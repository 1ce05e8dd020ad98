"""The API server of `plugwright verify --dra`: that of `driver_api`, with a record of what was asked of it."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from plugwright.apiserver.kinds import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from plugwright.apiserver.registry import DeleteOptions, ResourcePath
from plugwright.apiserver.store import Object
from plugwright.cli.kubelet.driver_api import DriverApi
from plugwright.cli.up.server import Application
from plugwright.conformance.dra.session_api import ApiRequest
from plugwright.errors import ClusterError

__all__ = ["ObservedApi"]

_MANAGER = "plugwright-verify"
_Message = dict[str, Any]


class ObservedApi(DriverApi):
    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.requests: list[ApiRequest] = []
        self.node_uid: str = self.store.require(ResourcePath(NODES, "", node).key)["metadata"]["uid"]

    def slices(self) -> list[Object]:
        found = self.store.objects(RESOURCE_SLICES.qualified)
        return sorted(found, key=lambda document: str(document["metadata"]["name"]))

    def change_slice(self, name: str, spec: Mapping[str, object] | None) -> None:
        path = ResourcePath(RESOURCE_SLICES, "", name)
        if self.store.get(path.key) is None:
            return
        try:
            if spec is None:
                self.writer.delete(path, DeleteOptions())
            else:
                self.writer.change(path, lambda stored: {**stored, "spec": dict(spec)}, _MANAGER)
        except ClusterError:
            return  # the driver was faster

    def claim_uid(self, namespace: str, name: str) -> str:
        return str(self.store.require(ResourcePath(RESOURCE_CLAIMS, namespace, name).key)["metadata"]["uid"])

    async def until(self, condition: Callable[[], bool], timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                while not condition():
                    await self.store.changes(self.store.revision)
        except TimeoutError:
            return condition()
        return True

    def _observed(self, application: Application) -> Application:
        async def observed(scope: _Message, receive: object, send: Callable[[_Message], Awaitable[None]]) -> None:
            if scope["type"] != "http":
                await application(scope, receive, send)
                return
            code = 0

            async def seen(message: _Message) -> None:
                nonlocal code
                if message["type"] == "http.response.start":
                    code = message["status"]
                    if code < 400:
                        self.requests.append(_request(scope, code))
                elif code >= 400:
                    self.requests.append(_request(scope, code, message.get("body") or b""))
                await send(message)

            await application(scope, receive, seen)

        return observed


def _request(scope: _Message, code: int, body: bytes = b"") -> ApiRequest:
    return ApiRequest(scope["method"], scope["path"], scope["query_string"].decode(), code, _reason(body))


def _reason(body: bytes) -> str:
    if not body:
        return ""
    try:
        return str(json.loads(body).get("message") or "")
    except (ValueError, AttributeError):
        # A Status in protobuf: its text is in it, between bytes that are none.
        return "".join(character for character in body.decode(errors="ignore") if character.isprintable())
