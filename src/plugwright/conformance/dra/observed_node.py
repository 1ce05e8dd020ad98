"""The API server of a session with a DRA driver, which records the answered requests."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from plugwright.apiserver.kinds import RESOURCE_SLICES
from plugwright.apiserver.one_node import OneNode
from plugwright.apiserver.registry import DeleteOptions, ResourcePath
from plugwright.conformance.dra.api_faults import ApiFaults
from plugwright.errors import ClusterError
from plugwright.kube.answers import Document

__all__ = ["SLICES", "Document", "ObservedNode", "ObservedRequest"]

SLICES = f"{RESOURCE_SLICES.root}/{RESOURCE_SLICES.plural}"
_MANAGER = "plugwright-verify"


@dataclass(frozen=True, slots=True)
class ObservedRequest:
    """An answered request; `text` is the reason of a refusal."""

    method: str
    path: str
    query: str
    code: int
    text: str = ""

    @property
    def writes_slice(self) -> bool:
        return self.method in ("POST", "PUT", "PATCH") and "/resourceslices" in self.path

    def __str__(self) -> str:
        asked = f"{self.method} {self.path}{f'?{self.query}' if self.query else ''}"
        return f"{asked} was answered {self.code}{f': {self.text}' if self.text else ''}"


class ObservedNode(OneNode):
    """`requests` are those of drivers, in the order of their responses."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.requests: list[ObservedRequest] = []
        self.faults = ApiFaults()

    def change_slice(self, name: str, spec: Mapping[str, object] | None) -> None:
        """Gives the slice another spec, or deletes it, as another client would."""
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
        stored = self.stored_claim(namespace, name)
        assert stored is not None
        return str(stored["metadata"]["uid"])

    def _observed(self, application: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def observed(scope: Document, receive: object, send: Callable[[Document], Awaitable[None]]) -> None:
            if scope["type"] != "http":
                await application(scope, receive, send)
                return
            code = 0

            async def seen(message: Document) -> None:
                nonlocal code
                if message["type"] == "http.response.start":
                    code = message["status"]
                    if code < 400:
                        self.requests.append(_request(scope, code))
                elif code >= 400:
                    self.requests.append(_request(scope, code, message.get("body") or b""))
                await send(message)

            await self.faults.answer(application, scope, receive, seen)

        return observed


def _request(scope: Document, code: int, body: bytes = b"") -> ObservedRequest:
    return ObservedRequest(scope["method"], scope["path"], scope["query_string"].decode(), code, _reason(body))


def _reason(body: bytes) -> str:
    if not body:
        return ""
    try:
        return str(json.loads(body).get("message") or "")
    except (ValueError, AttributeError):
        # A Status in protobuf contains the text between binary data.
        return "".join(character for character in body.decode(errors="ignore") if character.isprintable())
