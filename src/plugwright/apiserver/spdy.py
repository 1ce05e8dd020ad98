"""The part of SPDY/3.1 used by `kubectl port-forward`: streams with headers, data, half closes, resets and pings.

Its peers announce no windows and wait for none, so the connection alone provides flow control. Pure: octets in, events
out.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping

from msgspec import Struct

from plugwright.errors import MalformedMessage

__all__ = ["SpdyPing", "SpdyReader", "SpdyWriter", "StreamData", "StreamEvent", "StreamOpened", "StreamReset"]

_VERSION, _CONTROL = 3, 0x80
_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _PING, _GOAWAY = 1, 2, 3, 6, 7
_FIN = 0x01
_CANCEL = 5
_LARGEST_FRAME, _LARGEST_HEADERS = 2**20, 2**16  # octets
_WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie "
    "keep-alive origin"
)
_REST = (
    b"100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Authoritative "
    b"Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found500 "
    b"Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec "
    b"00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,"
    b"application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset="
    b"iso-8859-1,utf-,*,enq=0."
)


def _text(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


# Both sides start header compression with it; zlib checks that they agree.
_DICTIONARY = b"".join(_text(word.replace("_", " ").encode()) for word in _WORDS.split()) + _REST


class StreamOpened(Struct, frozen=True):
    """A stream that the client has opened."""

    stream: int
    headers: Mapping[str, str]
    is_ended: bool = False


class StreamData(Struct, frozen=True):
    """Octets of a stream; the last ones if the client has closed its side."""

    stream: int
    content: bytes
    is_ended: bool = False


class StreamReset(Struct, frozen=True):
    """The client has abandoned the stream."""

    stream: int


class SpdyPing(Struct, frozen=True):
    number: bytes


StreamEvent = StreamOpened | StreamData | StreamReset | SpdyPing


class SpdyReader:
    """Frames of a client, from pieces of any size; raises `MalformedMessage`."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._headers = zlib.decompressobj(zdict=_DICTIONARY)

    def feed(self, octets: bytes) -> Iterator[StreamEvent]:
        self._buffer += octets
        while len(self._buffer) >= 8:
            length = int.from_bytes(self._buffer[5:8])
            if length > _LARGEST_FRAME:
                raise MalformedMessage(f"a SPDY frame must have at most {_LARGEST_FRAME} octets, got {length}")
            if len(self._buffer) < 8 + length:
                return
            head, payload = bytes(self._buffer[:8]), bytes(self._buffer[8 : 8 + length])
            del self._buffer[: 8 + length]
            if (event := self._event(head, payload)) is not None:
                yield event

    def _event(self, head: bytes, payload: bytes) -> StreamEvent | None:
        is_ended = bool(head[4] & _FIN)
        if not head[0] & _CONTROL:
            return StreamData(_stream(head), payload, is_ended)
        version, kind = int.from_bytes(head[:2]) & 0x7FFF, int.from_bytes(head[2:4])
        if version != _VERSION:
            raise MalformedMessage(f"the version of a SPDY frame must be {_VERSION}, got {version}")
        if kind == _SYN_STREAM:
            return StreamOpened(_stream(payload), self._read_headers(payload[10:]), is_ended)
        if kind == _RST_STREAM:
            return StreamReset(_stream(payload))
        return SpdyPing(payload[:4]) if kind == _PING else None  # settings and windows have no effect here

    def _read_headers(self, compressed: bytes) -> dict[str, str]:
        """Reads headers; all headers of a connection form one compressed stream."""
        try:
            block = self._headers.decompress(compressed, _LARGEST_HEADERS)
            if self._headers.unconsumed_tail:
                raise MalformedMessage(f"SPDY headers must have at most {_LARGEST_HEADERS} octets")
            (count,), offset = struct.unpack_from(">I", block), 4
            words: list[str] = []
            while len(words) < 2 * count:
                (size,) = struct.unpack_from(">I", block, offset)
                words.append(block[offset + 4 : offset + 4 + size].decode())
                offset += 4 + size
        except (zlib.error, struct.error, UnicodeDecodeError) as error:
            raise MalformedMessage(f"SPDY headers cannot be read: {error}") from None
        return {name.lower(): value for name, value in zip(words[::2], words[1::2], strict=True)}


class SpdyWriter:
    """Frames of a server."""

    def __init__(self) -> None:
        self._headers = zlib.compressobj(zdict=_DICTIONARY)

    def accepted(self, stream: int) -> bytes:
        compressed = self._headers.compress(struct.pack(">I", 0)) + self._headers.flush(zlib.Z_SYNC_FLUSH)
        return _control(_SYN_REPLY, struct.pack(">I", stream) + compressed)

    def data(self, stream: int, content: bytes, is_ended: bool = False) -> bytes:
        return struct.pack(">II", stream, (_FIN if is_ended else 0) << 24 | len(content)) + content

    def reset(self, stream: int) -> bytes:
        return _control(_RST_STREAM, struct.pack(">II", stream, _CANCEL))

    def pong(self, ping: SpdyPing) -> bytes:
        return _control(_PING, ping.number)


def _stream(octets: bytes) -> int:
    if len(octets) < 4:
        raise MalformedMessage("a SPDY frame ends before the number of its stream")
    return int.from_bytes(octets[:4]) & 0x7FFFFFFF


def _control(kind: int, payload: bytes) -> bytes:
    return struct.pack(">HHI", 0x8000 | _VERSION, kind, len(payload)) + payload
