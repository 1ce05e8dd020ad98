"""The client of an API server: requests, lists and watches of plain JSON documents.

Each request runs in a thread with a time limit: if a server does not answer, its callers get `PeerGone`, and neither
the event loop nor a thread is blocked beyond the limit. Connections are kept open for some seconds. A watch has its own
connection and, while it waits, its own thread.
"""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from plugwright.errors import CallUnfinished, MalformedMessage, MessageTooLarge, PeerGone, PeerRefused
from plugwright.kube.access import SERVICE_ACCOUNT, ClusterAccess
from plugwright.kube.answers import LARGE, AnswerLimits, Document, ListPages, checked_object, object_name, refusal
from plugwright.kube.connection import WATCH_LIMIT, ThreadedConnection
from plugwright.system.blocking import BlockingCalls

__all__ = ["ApiClient", "BlockingClient", "Document", "segment"]

_PATH = re.compile(r"/[!-~]*")
_AT_ONCE = 4  # requests, and so threads
_LIMIT, _BLOCKING_LIMIT = 10.0, 30.0  # seconds for a request
_LOGIN_LIMIT = 310.0  # a credential plugin has a lower limit itself
_MOST_WATCHES = 64  # that are ending
_KEPT = 15.0  # seconds that a connection waits for the next request
_CHUNK = 500


def segment(name: str) -> str:
    """An untrusted name, quoted as one part of a path, so it cannot lead to another object."""
    if name in ("", ".", ".."):
        raise PeerRefused("BadRequest", f"the name of an object must not be {name!r}")
    return quote(name, safe="")


class ApiClient:
    """Requests raise `PeerGone` if the server is unreachable or overloaded, `PeerRefused` with the Status's reason as
    its code, and `MalformedMessage` for an answer of the wrong shape or size.
    """

    def __init__(
        self, access: ClusterAccess, limit: float = _LIMIT, at_once: int = _AT_ONCE, sizes: AnswerLimits = LARGE
    ) -> None:
        """`at_once` is the most requests, and so threads, at a time beside the watches."""
        self._access, self._limit, self._sizes = access, limit, sizes
        self._requests = BlockingCalls("request to the API server", limit, most_hung=at_once, at_once=at_once)
        self._watches = BlockingCalls("watch of the API server", None, most_hung=_MOST_WATCHES)
        self._logins = BlockingCalls("login at the API server", _LOGIN_LIMIT)
        self._idle: list[ThreadedConnection] = []
        self._closing: asyncio.TimerHandle | None = None

    @classmethod
    def find(
        cls,
        environment: Mapping[str, str] = os.environ,
        service_account: Path = SERVICE_ACCOUNT,
        sizes: AnswerLimits = LARGE,
    ) -> "ApiClient":
        """For this pod's cluster, otherwise for that of kubectl's kubeconfig."""
        return cls(ClusterAccess.find(environment, service_account), sizes=sizes)

    @classmethod
    def of_kubeconfig(cls, path: Path, context: str | None = None, sizes: AnswerLimits = LARGE) -> "ApiClient":
        access = ClusterAccess.of_kubeconfig(path, context)
        assert access is not None  # the file was named
        return cls(access, sizes=sizes)

    @property
    def url(self) -> str:
        return self._access.url

    async def get(self, path: str) -> Document:
        return checked_object(await self._request("GET", path), object_name(path))

    async def list(self, path: str, **query: str) -> tuple[list[Document], str]:
        """Every object, in as many requests as it takes, and the resource version to watch from.

        An oversized page is requested again with fewer objects.
        """
        items: list[Document] = []
        pages = ListPages(path, _CHUNK)
        while True:
            try:
                page = await self._request("GET", path, query={**query, **pages.query})
            except MessageTooLarge:
                if pages.shrink():
                    continue
                raise
            found, version = pages.take(page)
            items += found
            if len(items) > self._sizes.objects:
                raise MalformedMessage(f"{path} must list at most {self._sizes.objects} objects, got {len(items)}")
            if not pages.more:
                return items, version

    async def create(self, path: str, body: Document, **query: str) -> Document:
        metadata = body.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else ""
        return checked_object(await self._request("POST", path, body, query=query), str(name or ""))

    async def update(self, path: str, body: Document) -> Document:
        """Writes the whole object; with a resourceVersion in it, only if it has not changed since."""
        return checked_object(await self._request("PUT", path, body), object_name(path))

    async def patch(self, path: str, body: object, kind: str, **query: str) -> Document:
        """`kind` is `merge-patch`, `strategic-merge-patch`, `json-patch`, or `apply-patch` with a `fieldManager`."""
        return checked_object(await self._request("PATCH", path, body, kind, query), object_name(path))

    async def delete(
        self, path: str, uid: str = "", resource_version: str = "", grace: int | None = None, propagation: str = ""
    ) -> Document:
        """With `uid` or `resource_version`, only this object and only as it was then; `grace` is in seconds."""
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {name: value for name, value in preconditions.items() if value}
        body: Document = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions or None}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        if propagation:
            body["propagationPolicy"] = propagation
        return checked_object(await self._request("DELETE", path, body))

    async def watch(self, path: str, resource_version: str, **query: str) -> AsyncGenerator[tuple[str, Document], None]:
        """Each change as its type (`ADDED`, `MODIFIED`, `DELETED`) and the object, until an error ends it.

        `PeerRefused` with the code `Expired`: list again. `PeerGone`: the connection is lost, or the watch's time is
        over. To be closed by `contextlib.aclosing`.
        """
        # Jitter, so nodes do not list again simultaneously.
        options = {"watch": "true", "timeoutSeconds": str(WATCH_LIMIT - os.urandom(1)[0] // 2)}
        target = _target(path, {**query, **options, "resourceVersion": resource_version})
        connection = ThreadedConnection(self._access, self._limit, self._sizes)
        try:
            await self._login()
            await connection.run(self._requests, lambda: connection.begin_watch(target))
            while True:
                kind, content = await connection.run(self._watches, connection.next_change)
                if kind != "BOOKMARK":  # not requested
                    yield kind, content
        finally:
            connection.close()

    def close(self) -> None:
        """Closes the idle connections."""
        if self._closing is not None:
            self._closing.cancel()
        self._close_idle()

    def __del__(self) -> None:
        self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def _request(
        self, method: str, path: str, body: object = None, kind: str = "", query: Mapping[str, str] | None = None
    ) -> Any:
        target = _target(path, query or {})
        await self._login()
        connection = self._take_connection()
        code, answer = await connection.run(self._requests, lambda: connection.exchange(method, target, body, kind))
        self._keep(connection)
        if code >= 300:
            raise refusal(code, answer)
        return answer

    async def _login(self) -> None:
        """One login for all waiting requests; it can take longer than a request if it prompts the user."""
        if self._access.needs_login:
            try:
                await self._logins.join(self._access.login)
            except CallUnfinished as error:
                raise PeerGone(str(error)) from error

    def _take_connection(self) -> ThreadedConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable():
                return connection
            connection.close()
        return ThreadedConnection(self._access, self._limit, self._sizes)

    def _keep(self, connection: ThreadedConnection) -> None:
        self._idle.append(connection)
        if self._closing is not None:
            self._closing.cancel()
        self._closing = asyncio.get_running_loop().call_later(_KEPT, self._close_idle)


class BlockingClient:
    """`ApiClient` for programs without an event loop; to be closed by `with`."""

    def __init__(self, access: ClusterAccess, limit: float = _BLOCKING_LIMIT) -> None:
        self._runner, self._client = asyncio.Runner(), ApiClient(access, limit)

    def __enter__(self) -> "BlockingClient":
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()
        self._runner.close()

    def get(self, path: str) -> Document:
        return self._runner.run(self._client.get(path))

    def list(self, path: str, **query: str) -> list[Document]:
        return self._runner.run(self._client.list(path, **query))[0]

    def patch(self, path: str, body: object, kind: str, **query: str) -> Document:
        return self._runner.run(self._client.patch(path, body, kind, **query))

    def delete(self, path: str, propagation: str) -> Document:
        return self._runner.run(self._client.delete(path, propagation=propagation))


def _target(path: str, query: Mapping[str, str]) -> str:
    if not _PATH.fullmatch(path) or ".." in path.split("/"):
        raise PeerRefused("BadRequest", f"the path of an object must not be {path!r}")
    return f"{path}?{urlencode(query)}" if query else path
