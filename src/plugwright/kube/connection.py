"""A connection to an API server, used by a waiting thread, which the event loop can cut meanwhile."""

import asyncio
import http.client
import select
import socket
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from plugwright.errors import CallNotStarted, CallTimedOut, PeerGone, PeerSilent
from plugwright.kube.access import ClusterAccess, HttpConnection
from plugwright.kube.answers import (
    AnswerLimits,
    Document,
    check_encoding,
    checked_change,
    decoded,
    read_answer,
    refusal,
)
from plugwright.system.blocking import BlockingCalls

__all__ = ["WATCH_LIMIT", "ThreadedConnection"]

T = TypeVar("T")
WATCH_LIMIT = 600  # seconds after which a server ends a watch at the latest
_RETRIED = ("GET", "PUT", "PATCH", "DELETE")  # the same request twice does no harm
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class ThreadedConnection:
    """`run` and `close` belong to the event loop; the blocking methods are for `run` alone."""

    def __init__(self, access: ClusterAccess, limit: float, sizes: AnswerLimits) -> None:
        self._access, self._limit, self._sizes = access, limit, sizes
        self._http: HttpConnection | None = None
        self._watch: http.client.HTTPResponse | None = None
        self._is_used = self._is_abandoned = False
        self._changing = threading.Lock()

    async def run(self, calls: BlockingCalls, block: Callable[[], T]) -> T:
        """The result of `block` in a thread; the connection is closed if there is none."""
        try:
            if calls.refusal:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._limit):  # threads whose connection was cut end soon
                        await calls.hung.until(lambda _: not calls.refusal)
            return await calls.run(lambda: self._using(block))
        except CallTimedOut as error:
            self.close()
            raise PeerSilent(f"the API server did not answer within {error.limit:g} s") from error
        except CallNotStarted as error:
            raise PeerGone(f"no thread for a request to the API server: {error.reason}") from error
        except BaseException:
            self.close()
            raise

    def exchange(self, method: str, target: str, body: object, kind: str) -> tuple[int, Any]:
        """Blocks for the response to a request: its code, and its document or the text of the error."""
        is_used = self._http is not None
        try:
            return self._answer(method, target, body, kind)
        except PeerGone:
            if not is_used or self._is_abandoned or method not in _RETRIED:
                raise
            # The server can have closed an idle connection.
            return self._answer(method, target, body, kind)

    def _answer(self, method: str, target: str, body: object, kind: str) -> tuple[int, Any]:
        try:
            with self._access.send(self._opened(), method, target, body, kind) as answer:
                text = read_answer(answer, self._sizes)
                is_read = answer.isclosed()
        except (OSError, http.client.HTTPException) as error:
            self._close()
            raise self._access.gone(error) from error
        except BaseException:
            self._close()
            raise
        if not is_read:  # the rest of a refusal would be taken for the next answer
            self._close()
        if answer.status == 401:
            self._access.rejected()
        return answer.status, text.decode(errors="replace") if answer.status >= 300 else decoded(text, self._sizes)

    def begin_watch(self, target: str) -> None:
        try:
            connection = self._opened()
        except OSError as error:
            raise self._access.gone(error) from error
        answer = self._watch = self._access.send(connection, "GET", target)
        if answer.status == 401:
            self._access.rejected()
        if answer.status >= 300:
            raise refusal(answer.status, read_answer(answer).decode(errors="replace"))
        check_encoding(answer)
        if (found := connection.transport) is not None:
            # A silent watch is no proof of a lost server: the kernel asks.
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, seconds in _KEEPALIVE:
                found.setsockopt(socket.IPPROTO_TCP, option, seconds)
            found.settimeout(WATCH_LIMIT + self._limit)

    def next_change(self) -> tuple[str, Document]:
        """Blocks for the next change of the watch."""
        assert self._watch is not None
        try:
            line = self._watch.readline(self._sizes.change + 1)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._access.gone(error) from error
        return checked_change(line, self._access.url, self._sizes)

    def is_usable(self) -> bool:
        """Whether the server has neither closed the connection nor sent unrequested data."""
        if self._http is None or self._http.sock is None or self._http.transport is None:
            return False
        poll = select.poll()
        poll.register(self._http.transport, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Closes the connection; if a thread uses it, ends the wait of the thread, which then closes it."""
        with self._changing:
            self._is_abandoned = True
            if not self._is_used:
                self._close()
            elif self._http is not None and self._http.transport is not None:
                with suppress(OSError):
                    # Of the plain socket: the method of TLS would take its state away from the using thread.
                    socket.socket.shutdown(self._http.transport, socket.SHUT_RDWR)

    def __del__(self) -> None:
        self._close()  # the loop can have ended before the thread

    def _using(self, block: Callable[[], T]) -> T:
        with self._changing:
            self._is_used = True
        try:
            return block()
        except Exception as error:
            if error.__traceback__ is not None:  # would keep the answer until garbage is collected, perhaps much later
                traceback.clear_frames(error.__traceback__.tb_next)
            raise
        finally:
            with self._changing:
                self._is_used = False
                if self._is_abandoned:
                    self._close()

    def _close(self) -> None:
        if self._http is not None:
            self._http.close()
        if self._watch is not None:
            self._watch.close()
        self._http = self._watch = None

    def _opened(self) -> HttpConnection:
        if self._http is not None and self._http.context is not self._access.tls_context():
            self._close()  # a certificate was replaced
        if self._http is None:
            self._http = HttpConnection(self._access, self._limit)
            if not self._is_abandoned:
                self._http.connect()
        if self._is_abandoned:  # before the thread had connected: nothing is sent
            raise PeerGone(f"the request to {self._access.url} was abandoned")
        return self._http
