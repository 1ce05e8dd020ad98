"""The sending half of an HTTP/2 connection: streams, the peer's windows, and one write for each turn of the loop.

It is also the asyncio protocol of the connection: it passes on received bytes.
"""

import asyncio
import struct
import threading
from collections import deque

from plugwright.protocol import frames
from plugwright.protocol.frames import (
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_LIMIT,
    WINDOW_LIMIT,
    ErrorCode,
    FrameKind,
)

__all__ = ["STREAM_WINDOW", "Http2Sender", "Stream"]

STREAM_WINDOW = 1 << 20  # octets of one stream that we take before they are given back
# asyncio's own buffer has 256 KiB for each read, which the C library maps and unmaps each time.
_READ_SIZE = 32_768
_CLOSED_KEPT = 256  # streams that have ended and are still distinguished from those that never were
_WRITE_SIZE = 1 << 16  # octets that are sent immediately even if more can follow
_UNREAD_LIMIT = 1 << 20  # octets that a peer can leave unread
_WAITING_LIMIT = 8 << 20  # octets of all streams that wait for the peer's windows
_CREDITED = 1024  # octets of a data frame that gives the peer credit, unless it is the last of its data


class _ReadBuffer(threading.local):
    """Received data is copied before the event loop continues, so the connections of a thread share one buffer."""

    def __init__(self) -> None:
        self.octets = memoryview(bytearray(_READ_SIZE))


_read_buffer = _ReadBuffer()


class Stream:
    """One stream; `grpc` derives its calls from it."""

    __slots__ = ("ended", "id", "pending", "receivable", "remote_ended", "taken", "trailers", "window")

    def __init__(self, stream_id: int, window: int) -> None:
        self.id = stream_id
        self.window = window  # octets that the peer takes now
        self.pending: deque[memoryview] = deque()  # data that waits for a window
        self.trailers: bytes | None = None  # the header block after the data; an empty one ends without headers
        self.receivable = STREAM_WINDOW
        self.taken = 0  # octets that were received and not given back to the peer
        self.remote_ended = False
        self.ended = False

    @property
    def is_drained(self) -> bool:
        return self.ended or (not self.pending and self.trailers is None)


class Http2Sender(asyncio.BufferedProtocol):
    is_server = True

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.transport: asyncio.Transport | None = None
        self.closing = False  # GOAWAY was sent or received: no new streams
        self.highest = 0  # the newest stream, opened by the client
        self.peer_window = DEFAULT_WINDOW  # of the whole connection
        self.initial_window = DEFAULT_WINDOW  # of a new stream
        self.frame_limit = FRAME_LIMIT
        self.peer_streams_limit = WINDOW_LIMIT
        self._held = 0  # times that `hold` was called and `release` was not
        self._out: list[bytes] = []
        self._out_size = 0
        self._paused = False
        self.credit = 0.0  # remaining budget of cheap frames from the peer
        self._closed: dict[int, bool] = {}  # ended streams; whether frames for them can still be in transit

    def data_received(self, data: bytes) -> None:
        raise NotImplementedError

    def get_buffer(self, sizehint: int) -> memoryview:
        return _read_buffer.octets

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(_read_buffer.octets[:nbytes]))

    def on_reset(self, stream: Stream, code: int) -> None:
        """The stream has ended: the peer reset it, broke a rule on it, or leaves too much unread."""
        raise NotImplementedError

    def on_drained(self, stream: Stream) -> None:
        """All data of the stream has been written."""

    def open_stream(self, stream: Stream) -> None:
        self.streams[stream.id] = stream
        self.highest = max(self.highest, stream.id)

    def send_headers(self, stream: Stream, block: bytes, end: bool = False) -> None:
        self.write(frames.header_frames(stream.id, block, END_STREAM if end else 0, self.frame_limit))
        if end:
            self._end_sending(stream)

    def send_data(self, stream: Stream, data: bytes, trailers: bytes | None = None) -> None:
        """Sends `data` as the peer's windows allow; `trailers` end the stream, empty trailers without headers."""
        if not stream.ended:
            stream.pending.append(memoryview(data))
            stream.trailers = trailers
            self.pump(stream)
            if stream.pending and self._waiting() > _WAITING_LIMIT:
                self.reset(stream, ErrorCode.ENHANCE_YOUR_CALM)
                self.on_reset(stream, ErrorCode.ENHANCE_YOUR_CALM)

    def send_answer(self, stream: Stream, headers: bytes, data: bytes, trailers: bytes) -> None:
        """A complete response; sent immediately if the peer's windows allow it, which is the usual case."""
        size = len(data)
        if self._paused or size > min(stream.window, self.peer_window, self.frame_limit, _WRITE_SIZE):
            self.send_headers(stream, headers)
            self.send_data(stream, data, trailers)
            return
        self._take_window(stream, size)
        head = frames.frame(FrameKind.HEADERS, END_HEADERS, stream.id, headers)
        end = frames.frame(FrameKind.HEADERS, END_HEADERS | END_STREAM, stream.id, trailers)
        self.write(head + frames.frame(FrameKind.DATA, 0, stream.id, data) + end)
        self._end_sending(stream)

    def send_trailers(self, stream: Stream, block: bytes) -> None:
        """Ends the stream after its pending data; an empty block sends no headers."""
        if not stream.ended:
            stream.trailers = block
            self.pump(stream)

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        if not stream.ended:
            self.write_reset(stream.id, code)
            self.forget(stream, by_us=True)

    def write_reset(self, stream_id: int, code: ErrorCode) -> None:
        self.write(frames.frame(FrameKind.RST_STREAM, 0, stream_id, int(code).to_bytes(4, "big")))

    def go_away(self, code: ErrorCode = ErrorCode.NO_ERROR, text: str = "") -> None:
        """Announces the end: no streams are served after the open ones."""
        self.closing = True
        last = self.highest if self.is_server else 0
        self.write(frames.frame(FrameKind.GOAWAY, 0, 0, struct.pack(">II", last, code) + text.encode()[:256]))

    def write(self, data: bytes) -> None:
        self._out.append(data)
        self._out_size += len(data)
        if not self._held or self._out_size >= _WRITE_SIZE:
            self.flush()

    def hold(self) -> None:
        """Collects all further writes, until the `release` of the first `hold` sends them together."""
        self._held += 1

    def release(self) -> None:
        self._held -= 1
        if not self._held:
            self.flush()

    def flush(self) -> None:
        if not self._out:
            return
        data, self._out, self._out_size = b"".join(self._out), [], 0
        if self.transport is None:
            return
        self.transport.write(data)
        if self._paused and self.transport.get_write_buffer_size() > _UNREAD_LIMIT:
            self.transport.abort()  # a peer that asks and never reads

    def grant(self, stream: Stream, octets: int) -> None:
        """Gives octets taken from the stream back to its window."""
        stream.taken += octets
        if stream.taken >= STREAM_WINDOW // 2 and not stream.remote_ended and not stream.ended:
            self.write(frames.window_update(stream.id, stream.taken))
            stream.receivable += stream.taken
            stream.taken = 0

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.pump_all()

    def pump_all(self) -> None:
        for stream in list(self.streams.values()):
            self.pump(stream)

    def _waiting(self) -> int:
        """Octets waiting for the peer, except those of the longest-waiting stream, because a large list can wait."""
        waiting = [sum(map(len, stream.pending)) for stream in self.streams.values() if stream.pending]
        return sum(waiting[1:])

    def was_open(self, stream_id: int) -> bool:
        return stream_id in self._closed

    def was_ended_by_us(self, stream_id: int) -> bool:
        return self._closed.get(stream_id, False)

    def forget(self, stream: Stream, by_us: bool) -> None:
        stream.ended = True
        stream.pending.clear()
        self.streams.pop(stream.id, None)
        self.remember_closed(stream.id, by_us)

    def remember_closed(self, stream_id: int, by_us: bool) -> None:
        self._closed[stream_id] = by_us
        if len(self._closed) > _CLOSED_KEPT:
            del self._closed[next(iter(self._closed))]

    def pump(self, stream: Stream) -> None:
        """Writes as much as the windows allow, and the trailers at the end."""
        if stream.is_drained:
            return
        while stream.pending:
            data = stream.pending[0]
            size = min(len(data), stream.window, self.peer_window, self.frame_limit, _WRITE_SIZE)
            if data and (size <= 0 or self._paused):
                return
            self._write_data(stream, data, size)
        if stream.trailers:
            self.write(frames.header_frames(stream.id, stream.trailers, END_STREAM, self.frame_limit))
        if stream.trailers is not None:
            self._end_sending(stream)
        self.on_drained(stream)

    def _write_data(self, stream: Stream, data: memoryview, size: int) -> None:
        rest = data[size:]  # a view: the peer decides how small the pieces are
        if rest:
            stream.pending[0] = rest
        else:
            stream.pending.popleft()
        # Pieces as small as the peer's windows would cost a window update for each piece.
        self._take_window(stream, size, is_credited=not rest or size >= _CREDITED)
        ends = END_STREAM if stream.trailers == b"" and not stream.pending else 0
        self.write(frames.frame(FrameKind.DATA, ends, stream.id, data[:size]))

    def _take_window(self, stream: Stream, size: int, *, is_credited: bool = True) -> None:
        stream.window -= size
        self.peer_window -= size
        if is_credited:
            self.credit += 3  # for the peer's pings and window updates

    def _end_sending(self, stream: Stream) -> None:
        if stream.remote_ended:
            self.forget(stream, by_us=False)
        elif self.is_server:  # answered before the request ended: the rest of it is not wanted
            self.write_reset(stream.id, ErrorCode.NO_ERROR)
            self.forget(stream, by_us=True)
        else:
            stream.trailers = None  # the response is still to come
