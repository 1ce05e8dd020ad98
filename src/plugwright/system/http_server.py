"""A small HTTP server for a few pages: one thread, bounded memory, a deadline for every request.

A client can send anything, as slowly as it likes, over any number of connections. So a request has one deadline, a
limited head and small socket buffers. If there are too many connections, the oldest is closed instead of refusing the
newest. Connections from this node have reserved slots.

The thread sleeps while there is no connection. It does not use the event loop, so it answers while the loop is blocked.
"""

import errno
import logging
import re
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial

import msgspec

__all__ = ["HttpAnswer", "HttpLimits", "HttpRequest", "HttpServer"]

logger = logging.getLogger(__name__)

_BACKLOG = 1024
_BUFFER = 16 * 1024  # bytes; the kernel counts the buffers of a pod's sockets as the pod's memory
_COPIED = 64 * 1024  # bytes of a page that is sent in one piece with its head; clients share a larger one
_DRAINED = 64 * 1024  # bytes of a refused request that are read, so that the answer is not lost to a reset
_ACCEPTED = 64  # connections accepted in a row before open ones are served
_NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.[01]")
_AUTHORIZATION = re.compile(rb"^authorization:[ \t]*([ -~]*?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_HEAD_END = re.compile(rb"\r?\n\r?\n")


class HttpLimits(msgspec.Struct, frozen=True):
    request: float = 3.0  # seconds from the connection to the end of the answer
    head: int = 8 * 1024  # bytes
    connections: int = 64  # of others than this node
    own_connections: int = 32  # of this node
    pause: float = 1.0  # seconds until new connections are accepted again after descriptors ran out


class HttpRequest(msgspec.Struct, frozen=True):
    path: str
    authorization: str = ""


class HttpAnswer(msgspec.Struct, frozen=True):
    status: str  # "200 OK"
    body: bytes
    headers: tuple[str, ...] = ("Content-Type: text/plain; charset=utf-8",)


class HttpServer(msgspec.Struct, frozen=True, kw_only=True):
    """The served pages. A page in `slow` can block: one thread at a time computes it for all waiting clients."""

    page: Callable[[HttpRequest], HttpAnswer]
    slow: Mapping[str, Callable[[], HttpAnswer]] = {}
    is_own: Callable[[str], bool] = lambda _: False  # whether an address is this node's
    tls: Callable[[socket.socket], socket.socket] | None = None  # makes a TLS socket of an accepted one
    limits: HttpLimits = HttpLimits()

    @contextmanager
    def serving(self, host: str, port: int) -> Iterator[tuple[str, int]]:
        """Serves while inside; OSError if the address cannot be listened on."""
        with _listen(host, port) as listening:
            thread = _HttpThread(self, listening)
            try:
                thread.start()
                yield listening.getsockname()[:2]
            finally:
                thread.stop()


def _listen(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)  # accepted ones inherit it
        listening.bind((host, port))
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


class _Phase(Enum):
    READING = 0
    WAITING = 1  # for a slow page
    WRITING = 2
    DRAINING = 3  # answered; further input is discarded until the client disconnects
    CLOSED = 4


class _HttpConnection:
    __slots__ = ("body", "deadline", "drained", "head", "head_only", "output", "phase", "pool", "socket")

    def __init__(self, socket: socket.socket, deadline: float, pool: "dict[_HttpConnection, None]") -> None:
        self.socket, self.deadline = socket, deadline
        self.pool = pool  # in the order of their arrival
        self.phase = _Phase.READING
        self.head, self.output = bytearray(), memoryview(b"")
        self.body = b""  # what follows the output
        self.head_only = False
        self.drained = 0


class _HttpThread:
    def __init__(self, server: HttpServer, listening: socket.socket) -> None:
        self._server, self._limits, self._listening = server, server.limits, listening
        self._selector = selectors.DefaultSelector()
        self._others: dict[_HttpConnection, None] = {}
        self._own: dict[_HttpConnection, None] = {}
        self._buffer = memoryview(bytearray(_BUFFER))
        self._waiting: dict[str, list[_HttpConnection]] = {}  # by the path of the slow page
        self._ready: deque[tuple[str, HttpAnswer]] = deque()
        self._paused = 0.0  # until when no connection is accepted
        self._stopping = False
        self._awake, self._waker = socket.socketpair()
        self._wants = _wants(server.tls is not None)
        self._thread = threading.Thread(target=self._run, name="plugwright-probes", daemon=True)

    def start(self) -> None:
        self._awake.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._awake, selectors.EVENT_READ, self._woken)
        self._selector.register(self._listening, selectors.EVENT_READ, self._accept)
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._wake()
        if self._thread.ident is not None:
            self._thread.join()
        for connection in (*self._own, *self._others):
            connection.socket.close()
        self._selector.close()
        self._awake.close()
        self._waker.close()

    def _run(self) -> None:
        while not self._stopping:
            for key, _ in self._selector.select(self._timeout()):
                key.data()
            now = time.monotonic()
            for pool in (self._own, self._others):
                while pool and (oldest := next(iter(pool))).deadline <= now:
                    self._close(oldest)
            if self._paused and now >= self._paused:
                self._paused = 0.0
                self._selector.register(self._listening, selectors.EVENT_READ, self._accept)

    def _timeout(self) -> float | None:
        moments = [next(iter(pool)).deadline for pool in (self._own, self._others) if pool]
        if self._paused:
            moments.append(self._paused)
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _wake(self) -> None:
        with suppress(OSError):  # full: it is about to wake up
            self._waker.send(b"\0")

    def _woken(self) -> None:
        with suppress(BlockingIOError):
            while self._awake.recv_into(self._buffer):
                pass
        while self._ready:
            path, answer = self._ready.popleft()
            for connection in self._waiting.pop(path, ()):
                if connection.phase is _Phase.WAITING:  # its time is not over
                    self._attempt(connection, partial(self._answer, connection, answer))

    def _accept(self) -> None:
        for _ in range(_ACCEPTED):
            try:
                accepted, address = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    continue  # this one connection ended before it was accepted
                if not self._drop_oldest(self._others) and not self._drop_oldest(self._own):
                    self._paused = time.monotonic() + self._limits.pause
                    self._selector.unregister(self._listening)
                    return
                continue
            self._begin(accepted, str(address[0]))

    def _begin(self, accepted: socket.socket, address: str) -> None:
        own = self._server.is_own(address)
        pool, limit = (self._own, self._limits.own_connections) if own else (self._others, self._limits.connections)
        while len(pool) >= limit:
            self._drop_oldest(pool)
        connection = _HttpConnection(accepted, time.monotonic() + self._limits.request, pool)
        pool[connection] = None
        self._attempt(connection, partial(self._open, connection))

    def _open(self, connection: _HttpConnection) -> None:
        connection.socket.setblocking(False)
        if self._server.tls is not None:
            connection.socket = self._server.tls(connection.socket)
        self._selector.register(connection.socket, selectors.EVENT_READ, partial(self._progress, connection))
        self._read(connection)  # the request is often there already

    def _drop_oldest(self, pool: dict[_HttpConnection, None]) -> bool:
        """Whether there was a connection; connections waiting for their answer come last."""
        if not pool:
            return False
        self._close(min(pool, key=lambda connection: connection.phase in (_Phase.WAITING, _Phase.WRITING)))
        return True

    def _close(self, connection: _HttpConnection) -> None:
        connection.phase = _Phase.CLOSED
        connection.pool.pop(connection, None)
        with suppress(KeyError, ValueError):  # not registered
            self._selector.unregister(connection.socket)
        connection.socket.close()

    def _progress(self, connection: _HttpConnection) -> None:
        if connection.phase is not _Phase.CLOSED:  # by an earlier event of this turn
            step = self._write if connection.phase is _Phase.WRITING else self._read
            self._attempt(connection, partial(step, connection))

    def _attempt(self, connection: _HttpConnection, step: Callable[[], None]) -> None:
        """One step of one connection: an error ends this connection, and no other."""
        try:
            step()
        except OSError as error:
            events = self._wants.get(type(error), {}).get(connection.phase)
            if events is None:
                self._close(connection)
            else:
                self._selector.modify(connection.socket, events, partial(self._progress, connection))
        except Exception:
            logger.exception("probe not answered")
            self._close(connection)

    def _read(self, connection: _HttpConnection) -> None:
        while connection.phase in (_Phase.READING, _Phase.DRAINING):
            count = connection.socket.recv_into(self._buffer)
            if not count:
                self._close(connection)
                return
            if connection.phase is _Phase.READING:
                connection.head += self._buffer[:count]
                self._head_grew(connection, count)
                continue
            connection.drained += count
            if connection.drained > _DRAINED:
                self._close(connection)
                return

    def _head_grew(self, connection: _HttpConnection, count: int) -> None:
        head = connection.head
        end = _HEAD_END.search(head, max(0, len(head) - count - 3))
        if not b"A" <= head[:1] <= b"Z":
            self._answer(connection, HttpAnswer("400 Bad Request", b"not an HTTP request\n"))
        elif end is not None and end.start() <= self._limits.head:
            self._requested(connection, bytes(head[: end.start()]))
        elif len(head) > self._limits.head:
            text = f"a request's head must have at most {self._limits.head} bytes\n"
            self._answer(connection, HttpAnswer("431 Request Header Fields Too Large", text.encode()))

    def _requested(self, connection: _HttpConnection, head: bytes) -> None:
        line, _, fields = head.partition(b"\n")
        match = _REQUEST_LINE.fullmatch(line.rstrip(b"\r"))
        if match is None:
            self._answer(connection, HttpAnswer("400 Bad Request", b"not an HTTP request\n"))
            return
        connection.head_only = match[1] == b"HEAD"
        if match[1] not in (b"GET", b"HEAD"):
            answer = HttpAnswer("405 Method Not Allowed", b"only GET and HEAD\n", ("Allow: GET, HEAD",))
            self._answer(connection, answer)
            return
        path, authorization = match[2].partition(b"?")[0].decode(), _AUTHORIZATION.search(fields)
        if path in self._server.slow:
            self._ask_slow_page(connection, path)
            return
        request = HttpRequest(path, authorization[1].decode() if authorization else "")
        self._answer(connection, _made(partial(self._server.page, request)))

    def _ask_slow_page(self, connection: _HttpConnection, path: str) -> None:
        connection.phase = _Phase.WAITING
        self._selector.unregister(connection.socket)
        waiting = self._waiting.get(path)
        if waiting is not None:
            waiting[:] = [other for other in waiting if other.phase is _Phase.WAITING] + [connection]
            return
        self._waiting[path] = [connection]
        try:
            threading.Thread(target=self._make_slow_page, args=(path,), name="plugwright-probe", daemon=True).start()
        except RuntimeError:  # no thread left: others wait for this one meanwhile
            self._make_slow_page(path)

    def _make_slow_page(self, path: str) -> None:
        self._ready.append((path, _made(self._server.slow[path])))
        self._wake()

    def _answer(self, connection: _HttpConnection, answer: HttpAnswer) -> None:
        if connection.phase is _Phase.WAITING:
            self._selector.register(connection.socket, selectors.EVENT_WRITE, partial(self._progress, connection))
        fields = (f"Content-Length: {len(answer.body)}", "Connection: close", *answer.headers)
        head = "\r\n".join((f"HTTP/1.1 {answer.status}", *fields, "", "")).encode()
        connection.head = bytearray()
        body = b"" if connection.head_only else answer.body
        is_large = len(body) > _COPIED
        connection.output, connection.body = memoryview(head if is_large else head + body), body if is_large else b""
        connection.phase = _Phase.WRITING
        self._write(connection)

    def _write(self, connection: _HttpConnection) -> None:
        while connection.output:
            sent = connection.socket.send(connection.output)
            connection.output = connection.output[sent:]
            if not connection.output and connection.body:
                connection.output, connection.body = memoryview(connection.body), b""
        connection.socket.shutdown(socket.SHUT_WR)
        connection.phase = _Phase.DRAINING
        self._selector.modify(connection.socket, selectors.EVENT_READ, partial(self._progress, connection))
        self._read(connection)


def _made(page: Callable[[], HttpAnswer]) -> HttpAnswer:
    try:
        return page()
    except Exception:
        logger.exception("page not made")
        return HttpAnswer("500 Internal Server Error", b"the daemon's log has the error\n")


def _wants(tls: bool) -> "dict[type[OSError], dict[_Phase, int]]":
    """The event to wait for, by the exception and the attempted operation. TLS can need to read in order to write."""
    reading, writing = (_Phase.READING, _Phase.DRAINING), (_Phase.WRITING,)
    both = {**dict.fromkeys(reading, selectors.EVENT_READ), **dict.fromkeys(writing, selectors.EVENT_WRITE)}
    if not tls:
        return {BlockingIOError: both}
    import ssl  # 4 MiB

    return {
        BlockingIOError: both,
        ssl.SSLWantReadError: dict.fromkeys((*reading, *writing), selectors.EVENT_READ),
        ssl.SSLWantWriteError: dict.fromkeys((*reading, *writing), selectors.EVENT_WRITE),
    }
