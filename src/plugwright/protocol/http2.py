"""One HTTP/2 connection (RFC 9113) over an asyncio transport, limited to what gRPC needs: no push, no priorities.

This class checks received frames and limits hostile peers; `http2_sending` sends. The gRPC modules derive from it and
interpret requests.
"""

import asyncio
import struct
from collections.abc import Callable

from plugwright.protocol import frames
from plugwright.protocol.frames import (
    ACK,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_LIMIT,
    PREFACE,
    WINDOW_LIMIT,
    ConnectionFault,
    ErrorCode,
    FrameKind,
    Setting,
    StreamFault,
)
from plugwright.protocol.hpack import Decoder, Field, HeadersTooLarge, HpackError
from plugwright.protocol.http2_sending import STREAM_WINDOW, Http2Sender, Stream

__all__ = ["Http2Connection"]

HEADERS_LIMIT = 65_536  # octets of one decoded header list: an error message can have 18,000
STREAMS_LIMIT = 100  # open at once, by the peer
_BLOCK_LIMIT = 65_536  # octets of one header block, over all its frames
_CONTINUATIONS_LIMIT = 16
_CONNECTION_WINDOW = 4 << 20
_BLOCKS_KEPT = 64
# Frames free for the peer but with a cost for us (pings, settings, resets, empty data): a bucket of this size, refilled
# at this rate per second. Each data frame of ours allows one more: Go's client pings for them.
_CHEAP_FRAMES = 1_000
_CHEAP_FRAMES_PER_SECOND = 200
_STREAMS_PER_CREDIT = 5


class Http2Connection(Http2Sender):
    """The rules for both sides; a subclass handles requests or responses."""

    def __init__(self) -> None:
        super().__init__()
        self._buffer = b""
        self._awaits_preface = self.is_server
        self._awaits_settings = True
        self._decoder = Decoder(HEADERS_LIMIT)
        self._blocks: dict[bytes, tuple[Field, ...]] = {}
        self._blocks_version = 0
        self._continued: tuple[int, int, bytearray, int] | None = None  # stream, flags, block, frames
        self.is_over = False
        self._receivable = _CONNECTION_WINDOW
        self.credit = float(_CHEAP_FRAMES)
        self._credited = 0.0

    def on_request(self, stream_id: int, fields: tuple[Field, ...], ended: bool) -> None:
        """The headers of a new stream (server), not checked yet."""
        raise NotImplementedError

    def on_headers(self, stream: Stream, fields: tuple[Field, ...], ended: bool) -> None:
        """Headers on an open stream: a response (client), trailers."""
        raise NotImplementedError

    def on_data(self, stream: Stream, data: bytes, ended: bool) -> None:
        raise NotImplementedError

    def on_go_away(self, last: int) -> None:
        """The peer handles no stream after `last`."""

    def on_lost(self, streams: list[Stream], reason: str) -> None:
        """The connection is over, and every stream with it."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._credited = asyncio.get_running_loop().time()
        values = {Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW, Setting.MAX_HEADER_LIST_SIZE: HEADERS_LIMIT}
        if self.is_server:
            values[Setting.MAX_CONCURRENT_STREAMS] = STREAMS_LIMIT
        else:
            values[Setting.ENABLE_PUSH] = 0
        opening = frames.settings(values) + frames.window_update(0, _CONNECTION_WINDOW - DEFAULT_WINDOW)
        self.write(opening if self.is_server else PREFACE + opening)

    def data_received(self, data: bytes) -> None:
        self.hold()
        try:
            self._buffer = self._consume(self._buffer + data if self._buffer else data)
        except ConnectionFault as fault:
            self.go_away(fault.code, str(fault))
            self.flush()
            self.abort(str(fault))
        finally:
            self.release()

    def eof_received(self) -> None:
        return None  # closes

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc) if exc else "Connection lost")

    def abort(self, reason: str) -> None:
        """Ends the connection; written data is still sent if the peer accepts it immediately."""
        if self.transport is not None:
            if self.transport.get_write_buffer_size():
                self.transport.abort()
            else:
                self.transport.close()
        self._end(reason)

    def _end(self, reason: str) -> None:
        if self.is_over:
            return
        self.closing = self.is_over = True
        self.transport = None
        self._buffer = b""
        streams, self.streams = list(self.streams.values()), {}
        for stream in streams:
            stream.ended = True
        self.on_lost(streams, reason)

    def _consume(self, buffer: bytes) -> bytes:
        """Handles every whole frame of `buffer`; returns the rest."""
        position, size = 0, len(buffer)
        if self._awaits_preface:
            if buffer[: len(PREFACE)] != PREFACE[:size]:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "not HTTP/2")
            if size < len(PREFACE):
                return buffer
            self._awaits_preface, position = False, len(PREFACE)
        while size - position >= 9 and self.transport is not None:
            high, low, kind, flags, stream_id = frames.HEAD.unpack_from(buffer, position)
            length = high << 8 | low
            if length > FRAME_LIMIT:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"frame of {length} octets")
            if size - position < 9 + length:
                break
            start = position + 9
            position = start + length
            try:
                self._frame(kind, flags, stream_id & WINDOW_LIMIT, buffer[start:position])
            except StreamFault as fault:
                self._reset_faulty(fault)
        return buffer[position:] if position < size else b""

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._continued is not None and (kind != FrameKind.CONTINUATION or stream_id != self._continued[0]):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "header block interrupted by another frame")
        if self._awaits_settings:
            if kind != FrameKind.SETTINGS or flags & ACK:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "first frame must be SETTINGS")
            self._awaits_settings = False
        if kind < len(_HANDLERS):
            _HANDLERS[kind](self, flags, stream_id, payload)
        else:  # of a later version of HTTP/2: ignored
            self._spend()

    def _data(self, flags: int, stream_id: int, payload: bytes) -> None:
        frames.check_on_stream(stream_id)
        self._take(len(payload))
        stream = self._known(stream_id)
        if stream is None:
            return
        data, ended = frames.unpadded(flags, payload), bool(flags & END_STREAM)
        if not data and not ended:
            self._spend()
        stream.receivable -= len(payload)
        if stream.receivable < 0:
            raise StreamFault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allows")
        stream.taken += len(payload) - len(data)
        stream.remote_ended = ended
        self.on_data(stream, data, ended)

    def _take(self, octets: int) -> None:
        """Data counts against the connection's window even if its stream has ended."""
        self._receivable -= octets
        if self._receivable < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window allows")
        if self._receivable < _CONNECTION_WINDOW // 2:
            self.write(frames.window_update(0, _CONNECTION_WINDOW - self._receivable))
            self._receivable = _CONNECTION_WINDOW

    def _headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        frames.check_on_stream(stream_id)
        block, depends_on = frames.unpadded(flags, payload), 0
        if flags & frames.PRIORITY:
            if len(block) < 5:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for a priority")
            depends_on, block = int.from_bytes(block[:4], "big") & WINDOW_LIMIT, block[5:]
        if flags & END_HEADERS:
            self._block(flags, stream_id, block)
        else:
            self._continued = (stream_id, flags, bytearray(block), 0)
        if depends_on == stream_id:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "stream depends on itself")

    def _continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._continued is None:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        _, first_flags, block, count = self._continued
        block += payload
        if len(block) > _BLOCK_LIMIT or count >= _CONTINUATIONS_LIMIT:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "header block too long")
        self._continued = (stream_id, first_flags, block, count + 1)
        if flags & END_HEADERS:
            self._continued = None
            self._block(first_flags, stream_id, bytes(block))

    def _block(self, flags: int, stream_id: int, block: bytes) -> None:
        """One whole header block, decoded even if its stream is refused: the next depends on it."""
        try:
            fields = self._decoded(block)
        except HeadersTooLarge as error:
            self.highest = max(self.highest, stream_id) if self.is_server else self.highest
            raise StreamFault(stream_id, ErrorCode.ENHANCE_YOUR_CALM, str(error)) from None
        except HpackError as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, str(error)) from None
        ended = bool(flags & END_STREAM)
        if self.is_server and stream_id > self.highest:
            self._request(stream_id, fields, ended)
            return
        stream = self._known(stream_id, is_headers=True)
        if stream is None:
            return
        if self.is_server and (problem := frames.check_trailers(fields) if ended else "trailers must end the stream"):
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, problem)
        stream.remote_ended = ended
        self.on_headers(stream, fields, ended)

    def _request(self, stream_id: int, fields: tuple[Field, ...], ended: bool) -> None:
        if not stream_id % 2:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a client's streams must have odd numbers")
        self.highest = stream_id
        if self.closing:
            return
        if len(self.streams) >= STREAMS_LIMIT:
            raise StreamFault(stream_id, ErrorCode.REFUSED_STREAM, f"more than {STREAMS_LIMIT} streams")
        self.on_request(stream_id, fields, ended)

    def _decoded(self, block: bytes) -> tuple[Field, ...]:
        """A known block means the same as long as the dynamic table has not changed."""
        decoder = self._decoder
        if self._blocks_version != decoder.version:
            self._blocks.clear()
            self._blocks_version = decoder.version
        fields = self._blocks.get(block)
        if fields is None:
            fields = decoder.decode(block)
            if decoder.version == self._blocks_version and len(self._blocks) < _BLOCKS_KEPT:
                self._blocks[block] = fields
        return fields

    def _priority(self, _: int, stream_id: int, payload: bytes) -> None:
        frames.check_on_stream(stream_id)
        self._spend()
        if len(payload) != 5:
            raise StreamFault(stream_id, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY must have 5 octets")
        if int.from_bytes(payload[:4], "big") & WINDOW_LIMIT == stream_id:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "stream depends on itself")

    def _rst_stream(self, _: int, stream_id: int, payload: bytes) -> None:
        frames.check_on_stream(stream_id)
        frames.check_length(payload, 4, "RST_STREAM")
        self._check_not_idle(stream_id)
        self._spend()
        stream = self.streams.get(stream_id)
        if stream is not None:
            self.forget(stream, by_us=False)
            self.on_reset(stream, int.from_bytes(payload, "big"))

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        frames.check_on_connection(stream_id)
        if len(payload) % 6 or (flags & ACK and payload):
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a wrong length")
        if flags & ACK:
            return
        values = dict(struct.iter_unpack(">HI", payload))  # the last value of a setting counts
        # Another window costs a look at every stream.
        self._spend(1 + len(self.streams) // _STREAMS_PER_CREDIT if Setting.INITIAL_WINDOW_SIZE in values else 1)
        for name, value in values.items():
            self._apply(name, value)
        self.write(frames.frame(FrameKind.SETTINGS, ACK, 0))
        self.pump_all()

    def _apply(self, name: int, value: int) -> None:
        if name == Setting.ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH must be 0 or 1")
        if name == Setting.MAX_CONCURRENT_STREAMS:
            self.peer_streams_limit = value
        if name == Setting.MAX_FRAME_SIZE:
            if not FRAME_LIMIT <= value < 2**24:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of range")
            self.frame_limit = value
        if name == Setting.INITIAL_WINDOW_SIZE:
            change = value - self.initial_window
            if value > WINDOW_LIMIT or any(stream.window + change > WINDOW_LIMIT for stream in self.streams.values()):
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE out of range")
            for stream in self.streams.values():
                stream.window += change
            self.initial_window = value

    def _push_promise(self, _: int, __: int, ___: bytes) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE is not allowed here")

    def _ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        frames.check_on_connection(stream_id)
        frames.check_length(payload, 8, "PING")
        self._spend()
        if not flags & ACK:
            self.write(frames.frame(FrameKind.PING, ACK, 0, payload))

    def _goaway(self, _: int, stream_id: int, payload: bytes) -> None:
        frames.check_on_connection(stream_id)
        self.closing = True
        self.on_go_away(int.from_bytes(payload[:4], "big") & WINDOW_LIMIT)

    def _window_update(self, _: int, stream_id: int, payload: bytes) -> None:
        frames.check_length(payload, 4, "WINDOW_UPDATE")
        self._spend()
        increment = int.from_bytes(payload, "big") & WINDOW_LIMIT
        if stream_id == 0:
            if not increment:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "window increment of 0")
            self.peer_window += increment
            if self.peer_window > WINDOW_LIMIT:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "window over 2^31-1")
            self.pump_all()
            return
        self._check_not_idle(stream_id)
        if not increment:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "window increment of 0")
        stream = self.streams.get(stream_id)
        if stream is not None:
            stream.window += increment
            if stream.window > WINDOW_LIMIT:
                raise StreamFault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "window over 2^31-1")
            self.pump(stream)

    def _known(self, stream_id: int, is_headers: bool = False) -> Stream | None:
        """The open stream; None if we reset the stream and frames for it can still be in transit."""
        stream = self.streams.get(stream_id)
        if stream is not None:
            if stream.remote_ended:
                raise StreamFault(stream_id, ErrorCode.STREAM_CLOSED, "frame after the end of its stream")
            return stream
        if self.was_ended_by_us(stream_id):
            self._spend()
            return None
        self._check_not_idle(stream_id)
        if not is_headers:
            raise StreamFault(stream_id, ErrorCode.STREAM_CLOSED, "data for a stream that has ended")
        code = ErrorCode.STREAM_CLOSED if self.was_open(stream_id) else ErrorCode.PROTOCOL_ERROR
        raise ConnectionFault(code, "headers for a stream that has ended")

    def _check_not_idle(self, stream_id: int) -> None:
        if stream_id > self.highest or stream_id % 2 == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "frame for a stream that was never opened")

    def _reset_faulty(self, fault: StreamFault) -> None:
        self._spend()
        self.write_reset(fault.stream_id, fault.code)
        stream = self.streams.get(fault.stream_id)
        if stream is not None:
            self.forget(stream, by_us=True)
            self.on_reset(stream, fault.code)
        elif fault.stream_id <= self.highest:
            self.remember_closed(fault.stream_id, by_us=True)

    def _spend(self, cost: int = 1) -> None:
        self.credit -= cost
        if self.credit >= 0:
            return
        now = asyncio.get_running_loop().time()
        self.credit = min(_CHEAP_FRAMES, (now - self._credited) * _CHEAP_FRAMES_PER_SECOND)
        self._credited = now
        if self.credit < 1:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")


_Handler = Callable[[Http2Connection, int, int, bytes], None]
_HANDLERS: tuple[_Handler, ...] = (  # by their kinds
    Http2Connection._data,
    Http2Connection._headers,
    Http2Connection._priority,
    Http2Connection._rst_stream,
    Http2Connection._settings,
    Http2Connection._push_promise,
    Http2Connection._ping,
    Http2Connection._goaway,
    Http2Connection._window_update,
    Http2Connection._continuation,
)
