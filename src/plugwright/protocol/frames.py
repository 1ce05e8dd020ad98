"""HTTP/2 frames (RFC 9113): kinds, flags, error codes and bytes; and the allowed header fields of a request."""

import struct
from enum import IntEnum

from plugwright.protocol.hpack import Field

__all__ = [
    "ACK",
    "DEFAULT_WINDOW",
    "END_HEADERS",
    "END_STREAM",
    "FRAME_LIMIT",
    "HEAD",
    "PADDED",
    "PREFACE",
    "PRIORITY",
    "WINDOW_LIMIT",
    "ConnectionFault",
    "ErrorCode",
    "FrameKind",
    "Setting",
    "StreamFault",
    "check_length",
    "check_on_connection",
    "check_on_stream",
    "check_request",
    "check_response",
    "check_trailers",
    "frame",
    "header_frames",
    "settings",
    "unpadded",
    "window_update",
]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD = struct.Struct(">HBBBI")  # length in two parts, kind, flags, stream
FRAME_LIMIT = 16_384  # octets of a payload, unless a setting changes it
DEFAULT_WINDOW = 65_535
WINDOW_LIMIT = 2**31 - 1

ACK = END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY = 0x20


class FrameKind(IntEnum):
    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Setting(IntEnum):
    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11


class ConnectionFault(Exception):
    """The peer broke a rule of the connection, which ends."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class StreamFault(Exception):
    """The peer broke a rule of one stream, which ends."""

    def __init__(self, stream_id: int, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.stream_id, self.code = stream_id, code


def frame(kind: int, flags: int, stream_id: int, payload: bytes | memoryview = b"") -> bytes:
    length = len(payload)
    return HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream_id) + payload


def header_frames(stream_id: int, block: bytes, flags: int, limit: int) -> bytes:
    """HEADERS, and CONTINUATION if the block does not fit into one frame."""
    if len(block) <= limit:
        return frame(FrameKind.HEADERS, flags | END_HEADERS, stream_id, block)
    frames = [frame(FrameKind.HEADERS, flags, stream_id, block[:limit])]
    for start in range(limit, len(block), limit):
        is_last = start + limit >= len(block)
        part = block[start : start + limit]
        frames.append(frame(FrameKind.CONTINUATION, END_HEADERS if is_last else 0, stream_id, part))
    return b"".join(frames)


def settings(values: dict[Setting, int]) -> bytes:
    return frame(FrameKind.SETTINGS, 0, 0, b"".join(struct.pack(">HI", name, value) for name, value in values.items()))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(FrameKind.WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def unpadded(flags: int, payload: bytes) -> bytes:
    """The payload of DATA or HEADERS without its padding."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "padding as long as the frame or longer")
    return payload[1 : len(payload) - payload[0]]


def check_on_stream(stream_id: int) -> None:
    if not stream_id:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "frame must be on a stream")


def check_on_connection(stream_id: int) -> None:
    if stream_id:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "frame must not be on a stream")


def check_length(payload: bytes, length: int, kind: str) -> None:
    if len(payload) != length:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"{kind} must have {length} octets")


_OF_CONNECTION = {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
_OF_REQUEST = {b":method", b":scheme", b":path", b":authority"}


def check_request(fields: tuple[Field, ...]) -> str:
    """Why these are not the fields of a request; empty if they are."""
    names = [name for name, _ in fields if name.startswith(b":")]
    if len(set(names)) != len(names):
        return "pseudo-header twice"
    if not {b":method", b":scheme", b":path"} <= set(names) <= _OF_REQUEST:
        return "pseudo-headers must be :method, :scheme and :path, and may be :authority"
    if (b":path", b"") in fields:
        return "empty :path"
    return _bad_field(fields, len(names))


def check_response(fields: tuple[Field, ...]) -> str:
    """Why these are not the fields of a response; empty if they are."""
    if [name for name, _ in fields if name.startswith(b":")] != [b":status"]:
        return "pseudo-headers of a response must be :status"
    return _bad_field(fields, 1)


def check_trailers(fields: tuple[Field, ...]) -> str:
    """Why these are not trailers; empty if they are."""
    return _bad_field(fields, 0)


def _bad_field(fields: tuple[Field, ...], pseudo: int) -> str:
    for number, (name, value) in enumerate(fields):
        if not name or name != name.lower() or not name.isascii():
            return "header name must be lower-case ASCII"
        if name.startswith(b":") != (number < pseudo):
            return "pseudo-header after other fields"
        if name in _OF_CONNECTION or (name == b"te" and value.lower() != b"trailers"):
            return f"header {name.decode()} is not for HTTP/2"
        if not value.isascii() or any(octet in value for octet in b"\0\r\n"):
            return "header value with octets that it must not have"
    return ""
