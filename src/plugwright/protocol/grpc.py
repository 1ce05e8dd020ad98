"""gRPC's own part of the wire, for both sides: status codes, length-prefixed messages, deadlines, error texts.

`grpc_server` and `grpc_client` are the two sides; `grpc_errors` maps to the exceptions of other packages.
"""

import re
import struct
from enum import IntEnum

__all__ = [
    "BrokenExchange",
    "GrpcError",
    "MessageReader",
    "Status",
    "decode_text",
    "decode_timeout",
    "encode_text",
    "encode_timeout",
    "prefixed",
]

_PREFIX = struct.Struct(">BI")  # compressed?, length
_SECONDS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_RESERVED = re.compile(rb"[^ -$&-~]")
_PERCENT_ENCODED = re.compile(rb"%([0-9A-Fa-f]{2})")


class Status(IntEnum):
    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class GrpcError(Exception):
    """A call with a final status other than OK."""

    def __init__(self, status: Status, message: str = "") -> None:
        super().__init__(f"{status.name}: {message}")
        self.status, self.message = status, message


class BrokenExchange(Exception):
    """The call ended without a status: the connection was lost, the stream reset, or the peer speaks no gRPC."""


class MessageReader:
    """Cuts a stream of data into messages; none larger than `limit` is collected."""

    __slots__ = ("_buffer", "_expected", "_limit")

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._expected = -1  # octets of the message whose prefix has been read

    @property
    def is_between_messages(self) -> bool:
        return self._expected < 0 and not self._buffer

    def feed(self, data: bytes) -> list[bytes]:
        """The messages complete so far."""
        if self.is_between_messages and len(data) >= _PREFIX.size:
            length = self._checked(data)
            if len(data) == _PREFIX.size + length:  # the common case, without a copy more
                return [data[_PREFIX.size :]]
        self._buffer += data
        messages: list[bytes] = []
        while self._take(messages):
            pass
        return messages

    def _take(self, messages: list[bytes]) -> bool:
        if self._expected < 0:
            if len(self._buffer) < _PREFIX.size:
                return False
            self._expected = self._checked(self._buffer)
            del self._buffer[: _PREFIX.size]
        if len(self._buffer) < self._expected:
            return False
        messages.append(bytes(self._buffer[: self._expected]))
        del self._buffer[: self._expected]
        self._expected = -1
        return True

    def _checked(self, data: bytes | bytearray) -> int:
        flag, length = _PREFIX.unpack_from(data)
        if flag:
            raise GrpcError(Status.INVALID_ARGUMENT, "message must not be compressed")
        if self._limit is not None and length > self._limit:  # in Go's words
            text = f"grpc: received message larger than max ({length} vs. {self._limit})"
            raise GrpcError(Status.RESOURCE_EXHAUSTED, text)
        return int(length)


def prefixed(message: bytes) -> bytes:
    return _PREFIX.pack(0, len(message)) + message


def encode_text(text: str) -> bytes:
    """A grpc-message: UTF-8, percent-encoded but for printable ASCII."""
    return _RESERVED.sub(lambda found: b"%%%02X" % found[0][0], text.encode("utf-8", "backslashreplace"))


def decode_text(value: bytes) -> str:
    data = _PERCENT_ENCODED.sub(lambda found: bytes([int(found[1], 16)]), value)
    return data.decode("utf-8", "replace")


def encode_timeout(seconds: float) -> bytes:
    """A grpc-timeout: at most eight digits and a unit."""
    for unit in "numSM":
        count = max(0, round(seconds / _SECONDS[unit]))
        if count < 10**8:
            return f"{count}{unit}".encode()
    return b"99999999H"


def decode_timeout(value: bytes) -> float:
    """Seconds; `ValueError` for an invalid grpc-timeout."""
    digits, unit = value[:-1].decode("ascii"), value[-1:].decode("ascii")
    if not digits.isdecimal() or len(digits) > 8 or unit not in _SECONDS:
        raise ValueError(f"grpc-timeout must be up to eight digits and a unit, got {value!r}")
    return int(digits) * _SECONDS[unit]
