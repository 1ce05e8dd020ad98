"""A driver's interface to the API server: objects as plain documents, identified by their paths.

`kube.api_client.ApiClient` implements it over the network; the test harness has a server in memory.
"""

from collections.abc import AsyncGenerator
from typing import Protocol

from plugwright.kube.answers import Document

__all__ = ["ResourceClient"]


class ResourceClient(Protocol):
    """Raises `PeerGone` if there is no response, and `PeerRefused` with the reason of the refusal as its code."""

    async def get(self, path: str) -> Document: ...

    async def list(self, path: str, **query: str) -> tuple[list[Document], str]: ...

    async def create(self, path: str, body: Document, **query: str) -> Document: ...

    async def update(self, path: str, body: Document) -> Document: ...

    async def patch(self, path: str, body: object, kind: str, **query: str) -> Document: ...

    async def delete(self, path: str, uid: str = "", resource_version: str = "") -> Document: ...

    def watch(self, path: str, resource_version: str, **query: str) -> AsyncGenerator[tuple[str, Document], None]: ...

    def close(self) -> None: ...
