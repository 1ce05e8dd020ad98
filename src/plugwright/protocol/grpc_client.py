"""The calling side of gRPC on one connection."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from plugwright.protocol import frames, grpc
from plugwright.protocol.frames import WINDOW_LIMIT, ErrorCode
from plugwright.protocol.grpc import BrokenExchange, GrpcError, MessageReader, Status
from plugwright.protocol.hpack import Field, encode
from plugwright.protocol.http2 import Http2Connection
from plugwright.protocol.http2_sending import Stream
from plugwright.system.latest import Latest

__all__ = ["GrpcClientConnection"]


class _ClientCall(Stream):
    __slots__ = ("error", "has_headers", "messages", "owed", "reader", "waiter")

    def __init__(self, stream_id: int, window: int, limit: int | None) -> None:
        super().__init__(stream_id, window)
        self.reader = MessageReader(limit)
        self.messages: deque[bytes] = deque()
        self.owed = 0  # octets to give back to the window when no message waits
        self.has_headers = False
        self.error: Exception | None = None  # how it ended, unless with OK
        self.waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class GrpcClientConnection(Http2Connection):
    """Calls a server; `limit` is the largest accepted reply in octets."""

    is_server = False

    def __init__(self, limit: int | None) -> None:
        super().__init__()
        self.lost = Latest(False)
        self._limit = limit
        self._next = 1
        self._heads: dict[str, bytes] = {}
        self._turns: list[asyncio.Future[None]] = []  # of calls that wait for another to end

    async def unary(self, path: str, message: bytes, timeout: float | None) -> bytes:
        """The one reply; `GrpcError` or `BrokenExchange` if there is none. `timeout` is sent; the caller keeps it."""
        await self._turn()
        call = self._open(path, message, timeout)
        try:
            while not call.ended:
                await self._change(call)
        finally:
            self._close(call)
        if call.error is not None:
            raise call.error
        if len(call.messages) != 1:
            raise GrpcError(Status.INTERNAL, f"call must have one reply, got {len(call.messages)}")
        return call.messages[0]

    async def stream(self, path: str, message: bytes) -> AsyncGenerator[bytes, None]:
        """Every reply until the server ends the stream."""
        await self._turn()
        call = self._open(path, message, None)
        try:
            while True:
                while call.messages:
                    reply = call.messages.popleft()
                    self._give_back(call)
                    yield reply
                if call.ended:
                    break
                await self._change(call)
        finally:
            self._close(call)
        if call.error is not None:
            raise call.error

    def on_headers(self, stream: Stream, fields: tuple[Field, ...], ended: bool) -> None:
        assert isinstance(stream, _ClientCall)
        values = dict(fields)
        if not stream.has_headers:
            stream.has_headers = True
            if problem := frames.check_response(fields) or _not_grpc(values):
                self._end_call(stream, BrokenExchange(problem))
                return
            if not ended:
                return
        self._end_call(stream, _outcome(stream, values))

    def on_data(self, stream: Stream, data: bytes, ended: bool) -> None:
        assert isinstance(stream, _ClientCall)
        try:
            messages = stream.reader.feed(data)
        except GrpcError as error:
            self._end_call(stream, error)
            return
        stream.owed += len(data)
        stream.messages.extend(messages)
        self._give_back(stream)
        stream.wake()
        if ended:
            self._end_call(stream, BrokenExchange("stream ended without a status"))

    def on_reset(self, stream: Stream, code: int) -> None:
        assert isinstance(stream, _ClientCall)
        names = {int(known): known.name for known in ErrorCode}
        stream.error = BrokenExchange(f"stream reset by the peer: {names.get(code, code)}")
        stream.wake()
        self._next_turn()

    def on_go_away(self, last: int) -> None:
        for stream in [stream for stream in self.streams.values() if stream.id > last]:
            assert isinstance(stream, _ClientCall)
            self._end_call(stream, BrokenExchange("connection ended by the peer before the call"))
        self._hang_up_if_idle()

    def on_lost(self, streams: list[Stream], reason: str) -> None:
        self.lost.publish(True)
        for call in streams:
            assert isinstance(call, _ClientCall)
            call.error = BrokenExchange(reason)
            call.wake()
        for turn in self._turns:
            if not turn.done():
                turn.set_result(None)

    async def _turn(self) -> None:
        """Waits until the server takes one more call."""
        while not self.closing and len(self.streams) >= self.peer_streams_limit:
            turn = asyncio.get_running_loop().create_future()
            self._turns.append(turn)
            try:
                await turn
            finally:
                if turn in self._turns:
                    self._turns.remove(turn)

    def _open(self, path: str, message: bytes, timeout: float | None) -> _ClientCall:
        if self.closing or self.transport is None or self._next > WINDOW_LIMIT:
            raise BrokenExchange("Connection lost")
        call = _ClientCall(self._next, self.initial_window, self._limit)
        self._next += 2
        self.open_stream(call)
        self.hold()
        try:
            self.send_headers(call, self._head(path, timeout))
            self.send_data(call, grpc.prefixed(message), b"")
        finally:
            self.release()
        return call

    def _head(self, path: str, timeout: float | None) -> bytes:
        head = self._heads.get(path)
        if head is None:
            named = ((b":scheme", b"http"), (b":path", path.encode()), (b":authority", b"localhost"))
            fixed = ((b"te", b"trailers"), (b"content-type", b"application/grpc"), (b"user-agent", b"grpc-plugwright"))
            head = self._heads[path] = encode(((b":method", b"POST"), *named, *fixed))
        return head if timeout is None else head + encode(((b"grpc-timeout", grpc.encode_timeout(timeout)),))

    async def _change(self, call: _ClientCall) -> None:
        call.waiter = asyncio.get_running_loop().create_future()
        await call.waiter

    def _give_back(self, call: _ClientCall) -> None:
        if not call.messages and call.owed:
            self.grant(call, call.owed)
            call.owed = 0

    def _end_call(self, call: _ClientCall, error: Exception | None) -> None:
        """The call has its outcome; ignores the rest of its stream."""
        if call.error is None:
            call.error = error
        self.reset(call, ErrorCode.CANCEL) if not call.remote_ended else self.forget(call, by_us=False)
        call.wake()
        self._next_turn()

    def _close(self, call: _ClientCall) -> None:
        self.reset(call, ErrorCode.CANCEL)
        self._next_turn()

    def _next_turn(self) -> None:
        if self._turns:
            turn = self._turns.pop(0)
            if not turn.done():
                turn.set_result(None)
        self._hang_up_if_idle()

    def _hang_up_if_idle(self) -> None:
        if self.closing and not self.streams and self.transport is not None:
            self.transport.close()


def _not_grpc(values: dict[bytes, bytes]) -> str:
    if values[b":status"] != b"200":
        return f"unexpected HTTP status {values[b':status'].decode('ascii', 'replace')}"
    kind = values.get(b"content-type", b"")
    return "" if kind.startswith(b"application/grpc") else f"unexpected content-type {kind.decode('ascii', 'replace')}"


def _outcome(call: _ClientCall, trailers: dict[bytes, bytes]) -> Exception | None:
    text = trailers.get(b"grpc-status", b"")
    if not text.isdigit():
        return BrokenExchange("stream ended without a status")
    code = int(text)
    if code == Status.OK:
        return None if call.reader.is_between_messages else BrokenExchange("stream ended in the middle of a message")
    status = Status(code) if code in Status.__members__.values() else Status.UNKNOWN
    return GrpcError(status, grpc.decode_text(trailers.get(b"grpc-message", b"")))
