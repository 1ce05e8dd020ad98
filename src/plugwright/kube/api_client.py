"""The API server for the event loop: requests, lists and watches of plain JSON documents.

Each request is made in a thread by `api_server`, within a limit: a server that is away costs its callers a `PeerGone`,
and neither the event loop nor a thread for longer than the limit. Connections are kept for the next request for some
seconds. A watch has a connection and, while it waits, a thread of its own.
"""

import asyncio
import http.client
import json
import os
import re
import select
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from plugwright.errors import ConfigError, PeerGone, PeerRefused, PeerSilent
from plugwright.kube.api_server import SERVICE_ACCOUNT, ApiServer, next_page, refusal
from plugwright.system import concurrency

__all__ = ["ApiClient", "Document", "segment"]

Document = dict[str, Any]

T = TypeVar("T")
_PATH = re.compile(r"/[!-~]*")
_RETRIED = ("GET", "PUT", "PATCH", "DELETE")  # where the same request twice does no harm
_AT_ONCE = 4  # requests, and so threads
_LIMIT = 10.0  # seconds for a request
_KEPT = 15.0  # seconds that a connection waits for the next request
_CHUNK = 500
_WATCH = 600  # seconds after which a server ends a watch at the latest
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


def segment(name: str) -> str:
    """A name from elsewhere as one part of a path: whatever it is, it leads to no other object."""
    if name in ("", ".", ".."):
        raise PeerRefused("BadRequest", f"the name of an object must not be {name!r}")
    return quote(name, safe="")


class ApiClient:
    """Requests raise `PeerGone` (away, overloaded, in trouble) or `PeerRefused`, whose code is the Status's reason."""

    def __init__(self, server: ApiServer, limit: float = _LIMIT, at_once: int = _AT_ONCE) -> None:
        """`at_once` is how many requests, and so threads, there are at most beside the watches."""
        self._server, self._limit = server, limit
        self._slots = asyncio.Semaphore(at_once)
        self._idle: list[_Connection] = []
        self._closing: asyncio.TimerHandle | None = None

    @classmethod
    def find(cls, environment: Mapping[str, str] = os.environ, service_account: Path = SERVICE_ACCOUNT) -> "ApiClient":
        """For the cluster of the pod that this runs in, else for that of the kubeconfig that kubectl would take."""
        server = ApiServer.in_cluster(environment, service_account)
        if server is not None:
            return cls(server)
        return cls.of_kubeconfig(None, environment=environment)

    @classmethod
    def of_kubeconfig(
        cls, path: Path | None, context: str | None = None, environment: Mapping[str, str] = os.environ
    ) -> "ApiClient":
        """`path` None is where kubectl looks."""
        from plugwright.kube import kubeconfig  # yaml, which a pod does not need

        files = kubeconfig.find_files(path, environment, Path(environment.get("HOME") or "/"))
        if not files:
            raise ConfigError("no API server: no service account of a pod, no KUBECONFIG and no ~/.kube/config")
        return cls(ApiServer.of_kubeconfig(kubeconfig.select_context(kubeconfig.load(files), context)))

    @property
    def url(self) -> str:
        return self._server.url

    async def get(self, path: str) -> Document:
        return await self._request("GET", path)

    async def list(self, path: str, **query: str) -> tuple[list[Document], str]:
        """Every object, in as many requests as it takes, and the resource version to watch from."""
        items: list[Document] = []
        more: dict[str, str] = {}
        while True:
            page = await self._request("GET", path, query={**query, "limit": str(_CHUNK), **more})
            items += page.get("items") or ()
            if not (more := next_page(page)):
                return items, str((page.get("metadata") or {}).get("resourceVersion") or "")

    async def create(self, path: str, body: Document, **query: str) -> Document:
        return await self._request("POST", path, body, query=query)

    async def update(self, path: str, body: Document) -> Document:
        """The whole object; with a resourceVersion in it, only if it has not changed since."""
        return await self._request("PUT", path, body)

    async def patch(self, path: str, body: object, kind: str, **query: str) -> Document:
        """`kind` is `merge-patch`, `json-patch`, or `apply-patch` with a `fieldManager` in the query."""
        return await self._request("PATCH", path, body, kind, query)

    async def delete(self, path: str, uid: str = "", resource_version: str = "", grace: int | None = None) -> Document:
        """With `uid` or `resource_version`, only that object and only as it was then; `grace` is in seconds."""
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {name: value for name, value in preconditions.items() if value}
        body: Document = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions or None}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        return await self._request("DELETE", path, body)

    async def watch(self, path: str, resource_version: str, **query: str) -> AsyncGenerator[tuple[str, Document], None]:
        """Each change as its type (`ADDED`, `MODIFIED`, `DELETED`) and the object; it ends by an error.

        `PeerRefused` with the code `Expired`: list again. `PeerGone`: the connection is lost, or the watch's time is
        over. To be closed by `contextlib.aclosing`.
        """
        # Some earlier than others: nodes that began together would all list again together.
        options = {"watch": "true", "timeoutSeconds": str(_WATCH - os.urandom(1)[0] // 2)}
        target = _target(path, {**query, **options, "resourceVersion": resource_version})
        connection = _Connection(self._server, self._limit)
        try:
            await _in_thread(connection, lambda: connection.begin_watch(target), self._limit)
            while True:
                yield await _in_thread(connection, connection.next_change, None)
        finally:
            connection.close()

    def close(self) -> None:
        """Closes the connections that wait for a request."""
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
    ) -> Document:
        target = _target(path, query or {})
        await self._slots.acquire()
        connection = self._take_connection()
        request = (method, target, body, kind)
        code, answer = await _in_thread(
            connection, lambda: connection.exchange(*request), self._limit, ended=self._slots.release
        )
        self._keep(connection)
        if code >= 300:
            raise refusal(code, answer)
        return answer if isinstance(answer, dict) else {}

    def _take_connection(self) -> "_Connection":
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable():
                return connection
            connection.close()
        return _Connection(self._server, self._limit)

    def _keep(self, connection: "_Connection") -> None:
        self._idle.append(connection)
        if self._closing is not None:
            self._closing.cancel()
        self._closing = asyncio.get_running_loop().call_later(_KEPT, self._close_idle)


class _Connection:
    """A connection that a thread waits on, and that the event loop can cut meanwhile."""

    def __init__(self, server: ApiServer, limit: float) -> None:
        self._server, self._limit = server, limit
        self._http: http.client.HTTPConnection | None = None
        self._watch: http.client.HTTPResponse | None = None
        self._is_abandoned = False
        self.call: asyncio.Future[Any] | None = None  # of the thread that uses it, or did

    def using(self, function: Callable[[], T]) -> T:
        """In the thread, which closes a connection that was abandoned meanwhile: the event loop may have ended."""
        try:
            return function()
        finally:
            if self._is_abandoned:
                self._close()

    def exchange(self, method: str, target: str, body: object, kind: str) -> tuple[int, Any]:
        """The code of the answer, and its document or, for a refusal, its text."""
        is_used = self._http is not None
        try:
            code, text = self._server.request(self._opened(), method, target, body, kind)
        except PeerGone:
            self._close()
            if not is_used or self._is_abandoned or method not in _RETRIED:
                raise
            # The server may have closed a connection that was idle.
            code, text = self._server.request(self._opened(), method, target, body, kind)
        return code, text.decode(errors="replace") if code >= 300 else self._server.decoded(text)

    def begin_watch(self, target: str) -> None:
        connection = self._opened()
        answer = self._server.send(connection, "GET", target)
        if answer.status >= 300:
            raise refusal(answer.status, answer.read().decode(errors="replace"))
        found = connection.sock
        if found is not None:
            # A silent watch is no sign of a server that has gone: the kernel asks.
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, seconds in _KEEPALIVE:
                found.setsockopt(socket.IPPROTO_TCP, option, seconds)
            found.settimeout(_WATCH + self._limit)
        self._watch = answer

    def next_change(self) -> tuple[str, Document]:
        assert self._watch is not None
        try:
            line = self._watch.readline()
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._server.gone(error) from error
        if not line.endswith(b"\n"):
            raise PeerGone(f"{self._server.url} has ended the watch")
        change = self._server.decoded(line)
        if change["type"] == "ERROR":
            raise refusal(int(change["object"].get("code") or 500), json.dumps(change["object"]))
        return str(change["type"]), change["object"]

    def is_usable(self) -> bool:
        """Not where the server has closed it, or sent what was not asked for."""
        found = self._http.sock if self._http is not None else None
        if found is None:
            return False
        poll = select.poll()
        poll.register(found, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """On the event loop; where a thread still waits, its wait ends, and then the connection is closed."""
        if self.call is None or self.call.done():
            self._close()
            return
        self._is_abandoned = True
        self.call.add_done_callback(self._close_after)
        found = self._http.sock if self._http is not None else None
        if found is not None:
            with suppress(OSError):
                # Of the plain socket: that of TLS would take its state away from the thread that uses it.
                socket.socket.shutdown(found, socket.SHUT_RDWR)

    def __del__(self) -> None:
        self._close()  # the loop may have ended before the thread

    def _close_after(self, call: "asyncio.Future[Any]") -> None:
        call.exception()  # retrieved: asyncio logs one that is not
        self._close()

    def _close(self) -> None:
        if self._http is not None:
            self._http.close()
        if self._watch is not None:
            self._watch.close()
        self._http = self._watch = None

    def _opened(self) -> http.client.HTTPConnection:
        if self._http is None:
            self._http = self._server.connection(self._limit)
        if self._is_abandoned:  # before its thread had begun: nothing is sent
            raise PeerGone(f"the request to {self._server.url} was abandoned")
        return self._http


async def _in_thread(
    connection: _Connection,
    function: Callable[[], T],
    limit: float | None,
    ended: Callable[[], None] = lambda: None,
) -> T:
    """The function's result; `ended` is called when its thread is free again, which may be later."""
    try:
        call = concurrency.begin_in_thread("request to the API server", lambda: connection.using(function))
    except RuntimeError as error:  # no thread can be started
        ended()
        raise PeerGone(f"no thread for a request to the API server: {error}") from error
    connection.call = call
    call.add_done_callback(lambda _: ended())
    try:
        # Not asyncio.timeout: the thread must not be forgotten with its future.
        done, _ = await asyncio.wait((call,), timeout=limit)
        if not done:
            raise PeerSilent(f"the API server did not answer within {limit:g} s")
        return call.result()
    except BaseException:
        connection.close()
        raise


def _target(path: str, query: Mapping[str, str]) -> str:
    if not _PATH.fullmatch(path) or ".." in path.split("/"):
        raise PeerRefused("BadRequest", f"the path of an object must not be {path!r}")
    return f"{path}?{urlencode(query)}" if query else path
