"""The serving side of gRPC on one connection: requests to calls, replies to frames.

A call whose handler does not suspend is answered in the turn of the event loop in which it arrived, in one write.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial

import msgspec

from plugwright.errors import PlugwrightError
from plugwright.protocol import frames, grpc, grpc_errors
from plugwright.protocol.frames import ErrorCode, StreamFault
from plugwright.protocol.grpc import GrpcError, MessageReader, Status
from plugwright.protocol.hpack import Field, encode
from plugwright.protocol.http2 import Http2Connection
from plugwright.protocol.http2_sending import Stream
from plugwright.system import concurrency

__all__ = ["REQUEST_LIMIT", "GrpcServerConnection", "Handler"]

logger = logging.getLogger(__name__)

# The ids of one request come from a list of at most 4 MiB, and each is named at most twice.
REQUEST_LIMIT = 16 << 20
_ROUTES_KEPT = 64
_HEADERS = encode([(b":status", b"200"), (b"content-type", b"application/grpc")])
_OK = encode([(b"grpc-status", b"0")])


class Handler(msgspec.Struct, frozen=True):
    """One method: takes the request's bytes, and gives the bytes of one reply or of several.

    `instant` gives the reply if it is at hand. None means that it has done nothing: `unary` is called then.
    """

    unary: Callable[[bytes], Awaitable[bytes]] | None = None
    streaming: Callable[[bytes], AsyncGenerator[bytes, None]] | None = None
    instant: Callable[[bytes], bytes | None] | None = None


class _Route(msgspec.Struct, frozen=True):
    """The handler for a request's headers, or the response refusing the request."""

    handler: Handler | None = None
    timeout: float | None = None
    length: int | None = None  # the content-length
    status: bytes = b"200"
    error: GrpcError | None = None


class _ServerCall(Stream):
    __slots__ = ("drained", "message", "reader", "received", "route", "sent_headers", "task", "timer")

    def __init__(self, stream_id: int, window: int, route: _Route) -> None:
        super().__init__(stream_id, window)
        self.route = route
        self.reader = MessageReader(REQUEST_LIMIT)
        self.message: bytes | None = None
        self.received = 0
        self.sent_headers = False
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.drained: asyncio.Future[None] | None = None


class GrpcServerConnection(Http2Connection):
    """Serves `handlers`, by their paths; `changed` is called when a call or the connection has ended."""

    def __init__(self, handlers: Mapping[str, Handler], changed: Callable[["GrpcServerConnection"], None]) -> None:
        super().__init__()
        self._handlers = handlers
        self._changed = changed
        self._routes: dict[tuple[Field, ...], _Route] = {}
        self._calls: set[_ServerCall] = set()  # with a task that has not ended
        self._stopping = ""

    @property
    def calls(self) -> int:
        return len(self._calls)

    def stop(self, reason: str, streaming_only: bool = False) -> None:
        """Ends calls with UNAVAILABLE and `reason`; with `streaming_only` other calls can still finish."""
        self._stopping = reason
        if not self.closing:
            self.go_away()
        for call in list(self._calls):
            is_streaming = call.route.handler is not None and call.route.handler.streaming is not None
            if call.task is not None and (is_streaming or not streaming_only):
                call.task.cancel()

    def on_request(self, stream_id: int, fields: tuple[Field, ...], ended: bool) -> None:
        route = self._routes.get(fields)
        if route is None:
            if problem := frames.check_request(fields):
                raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, problem)
            if len(self._routes) >= _ROUTES_KEPT:
                self._routes.clear()
            route = self._routes[fields] = _route(fields, self._handlers)
        call = _ServerCall(stream_id, self.initial_window, route)
        call.remote_ended = ended
        self.open_stream(call)
        if ended:
            self._request_ended(call)
        elif route.handler is None and route.status == b"200":  # a request that is not gRPC can break more rules first
            self._refuse(call)

    def on_headers(self, stream: Stream, fields: tuple[Field, ...], ended: bool) -> None:
        assert isinstance(stream, _ServerCall)
        self._request_ended(stream)

    def on_data(self, stream: Stream, data: bytes, ended: bool) -> None:
        assert isinstance(stream, _ServerCall)
        stream.received += len(data)
        self.grant(stream, len(data))
        if stream.route.handler is not None:
            try:
                self._collect(stream, stream.reader.feed(data))
            except GrpcError as error:
                self._fail(stream, error)
                return
        if ended:
            self._request_ended(stream)

    def on_reset(self, stream: Stream, code: int) -> None:
        assert isinstance(stream, _ServerCall)
        if stream.task is not None:
            stream.task.cancel()

    def on_drained(self, stream: Stream) -> None:
        assert isinstance(stream, _ServerCall)
        if stream.drained is not None and not stream.drained.done():
            stream.drained.set_result(None)

    def on_lost(self, streams: list[Stream], reason: str) -> None:
        for call in list(self._calls):
            if call.task is not None:
                call.task.cancel()
        self._changed(self)

    def _collect(self, call: _ServerCall, messages: list[bytes]) -> None:
        for message in messages:
            if call.message is not None:
                raise GrpcError(Status.INVALID_ARGUMENT, "call must have one message, got more")
            call.message = message

    def _request_ended(self, call: _ServerCall) -> None:
        route = call.route
        if route.length is not None and route.length != call.received:
            raise StreamFault(call.id, ErrorCode.PROTOCOL_ERROR, "content-length is not the length of the data")
        if route.handler is None:
            self._refuse(call)
        elif call.message is None or not call.reader.is_between_messages:
            self._fail(call, GrpcError(Status.INVALID_ARGUMENT, "the call ended without a whole message"))
        else:
            self._start(call, route.handler, call.message)

    def _start(self, call: _ServerCall, handler: Handler, message: bytes) -> None:
        call.message = None
        reply = handler.instant(message) if handler.instant is not None else None
        if reply is not None:
            self._answer(call, reply)
            return
        self._calls.add(call)
        call.task = concurrency.start(self._run(call, handler, message))
        if call.task.done():
            self._calls.discard(call)
            return
        call.task.add_done_callback(lambda _: self._call_ended(call))
        if call.route.timeout is not None:
            call.timer = asyncio.get_running_loop().call_later(call.route.timeout, self._deadline_passed, call)

    def _call_ended(self, call: _ServerCall) -> None:
        self._calls.discard(call)
        self._changed(self)

    async def _run(self, call: _ServerCall, handler: Handler, message: bytes) -> None:
        try:
            await self._reply(call, handler, message)
        except PlugwrightError as error:
            self._fail(call, grpc_errors.to_peer(error))
        except GrpcError as error:
            self._fail(call, error)
        except asyncio.CancelledError:
            if self._stopping and not call.ended:
                self._fail(call, GrpcError(Status.UNAVAILABLE, self._stopping))
            raise
        except Exception as error:  # one call's fault must not cost the connection
            logger.exception("call failed", extra={"error": f"{type(error).__name__}: {error}"})
            self._fail(call, GrpcError(Status.UNKNOWN, "Internal Server Error"))
        finally:
            if call.timer is not None:
                call.timer.cancel()

    async def _reply(self, call: _ServerCall, handler: Handler, message: bytes) -> None:
        if handler.unary is not None:
            self._answer(call, await handler.unary(message))
        elif handler.streaming is not None:
            async with aclosing(handler.streaming(message)) as replies:
                async for reply in replies:
                    self._send(call, partial(self.send_data, call, grpc.prefixed(reply)))
                    await self._until_drained(call)
            self._send(call, partial(self.send_trailers, call, _OK))

    def _answer(self, call: _ServerCall, reply: bytes) -> None:
        if not call.ended and self.transport is not None:
            call.sent_headers = True
            self.send_answer(call, _HEADERS, grpc.prefixed(reply), _OK)

    def _send(self, call: _ServerCall, send: Callable[[], None]) -> None:
        """Part of a stream of replies; the headers leave with the first reply."""
        if call.ended or self.transport is None:
            return
        self.hold()
        try:
            if not call.sent_headers:
                call.sent_headers = True
                self.send_headers(call, _HEADERS)
            send()
        finally:
            self.release()

    async def _until_drained(self, call: _ServerCall) -> None:
        if not call.is_drained:
            call.drained = asyncio.get_running_loop().create_future()
            await call.drained

    def _deadline_passed(self, call: _ServerCall) -> None:
        self._fail(call, GrpcError(Status.DEADLINE_EXCEEDED))
        if call.task is not None:
            call.task.cancel()

    def _fail(self, call: _ServerCall, error: GrpcError) -> None:
        if call.ended or self.transport is None:
            return
        trailers: list[Field] = [(b"grpc-status", b"%d" % error.status)]
        if error.message:
            trailers.append((b"grpc-message", grpc.encode_text(error.message)))
        call.pending.clear()
        if call.sent_headers:
            self.send_trailers(call, encode(trailers))
        else:
            self.send_headers(call, _HEADERS + encode(trailers), end=True)

    def _refuse(self, call: _ServerCall) -> None:
        route = call.route
        if route.error is not None and route.status == b"200":
            self._fail(call, route.error)
            return
        text = (route.error.message if route.error else "gRPC only").encode() + b"\n"
        self.send_headers(call, encode([(b":status", route.status), (b"content-type", b"text/plain")]))
        self.send_data(call, text, b"")


def _route(fields: tuple[Field, ...], handlers: Mapping[str, Handler]) -> _Route:
    values = dict(fields)
    length = values.get(b"content-length")
    expected = int(length) if length is not None and length.isdigit() else None

    def refused(status: bytes, code: Status, message: str) -> _Route:
        return _Route(length=expected, status=status, error=GrpcError(code, message))

    if values[b":method"] != b"POST":
        return refused(b"405", Status.INTERNAL, "method must be POST")
    kind = values.get(b"content-type", b"").split(b";")[0]
    if kind not in (b"application/grpc", b"application/grpc+proto"):
        return refused(b"415", Status.INTERNAL, "content-type must be application/grpc")
    if values.get(b"te") != b"trailers":
        return refused(b"400", Status.INTERNAL, "te must be trailers")
    handler = handlers.get(values[b":path"].decode("ascii", "replace"))
    if handler is None:
        return refused(b"200", Status.UNIMPLEMENTED, "no such method")
    try:
        timeout = grpc.decode_timeout(values[b"grpc-timeout"]) if b"grpc-timeout" in values else None
    except ValueError as error:
        return refused(b"200", Status.INVALID_ARGUMENT, str(error))
    if timeout == 0:
        return refused(b"200", Status.DEADLINE_EXCEEDED, "")
    return _Route(handler, timeout, expected)
