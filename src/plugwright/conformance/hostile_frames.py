"""HTTP/2 by hand: connections and frames that no library would send.

Only as much as faults need: headers are literals without a table, and what the peer answers is read and thrown away.
"""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from plugwright.errors import PeerGone
from plugwright.system import sockets

__all__ = ["HOSTILE", "PREFACE", "SETTINGS", "call", "cancelled_calls", "opened", "ping", "send", "unread_call"]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PUSH, _PING, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 5, 6, 8, 9
_END_STREAM, _END_HEADERS, _ACK = 0x1, 0x4, 0x1
_INITIAL_WINDOW = 4
_CANCEL = 8
_CLOSE_LIMIT = 0.25  # seconds for the peer to take note


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


SETTINGS = _frame(_SETTINGS, 0, 0, b"")


def _text(content: bytes) -> bytes:
    size = len(content)
    return (bytes([size]) if size < 127 else bytes([127, (size - 127) & 0x7F | 0x80, (size - 127) >> 7])) + content


def _headers(path: str, stream: int) -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    block = b"".join(b"\x00" + _text(name.encode()) + _text(value.encode()) for name, value in fields.items())
    return _frame(_HEADERS, _END_HEADERS, stream, block)


def _call(path: str, stream: int, message: bytes) -> bytes:
    return _headers(path, stream) + _frame(
        _DATA, _END_STREAM, stream, b"\0" + struct.pack(">I", len(message)) + message
    )


def unread_call(path: str) -> bytes:
    """A call whose answer may not be sent: the window for it is empty."""
    return PREFACE + _frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW, 0)) + _call(path, 1, b"")


def call(path: str, message: bytes) -> bytes:
    """One call on a connection of its own."""
    return PREFACE + SETTINGS + _call(path, 1, message)


def cancelled_calls(path: str, count: int, message: bytes = b"") -> bytes:
    """Calls that are cancelled as soon as they are made, on one connection, which is cut."""
    calls = (
        _call(path, stream, message) + _frame(_RST_STREAM, 0, stream, struct.pack(">I", _CANCEL))
        for stream in range(1, 2 * count, 2)
    )
    return PREFACE + SETTINGS + b"".join(calls)


HOSTILE = (
    _frame(_DATA, _END_STREAM, 1, b"data of a stream that was never opened"),
    _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", 0)),
    _frame(_CONTINUATION, _END_HEADERS, 1, b""),
    _frame(_HEADERS, _END_HEADERS, 2, b"\x80"),  # an even stream, and an index that does not exist
    _frame(_PUSH, _END_HEADERS, 1, struct.pack(">I", 2)),
    _frame(_SETTINGS, 0, 0, b"\0\0\0"),
    struct.pack(">I", 0xFFFFFF)[1:] + bytes([_DATA, 0]) + struct.pack(">I", 1) + b"the first bytes of 16 MiB",
    _frame(0xEE, 0, 0, b"a kind of a later version"),
    _headers("no path at all", 1),
)


async def send(socket: Path, data: bytes) -> None:
    """Sends the bytes on a connection of their own; cuts it when the peer closes it or answers a PING after them."""
    ping_frame = _frame(_PING, 0, 0, b"12345678") if data.startswith(PREFACE) else b""
    async with opened(socket, data + ping_frame) as reader:
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(_CLOSE_LIMIT if data else 0.0):
                await _until_answered(reader)


async def ping(socket: Path, limit: float) -> None:
    """Returns when the peer has answered a PING: it has read its connections meanwhile."""
    async with opened(socket, PREFACE + SETTINGS + _frame(_PING, 0, 0, b"12345678")) as reader:
        with suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
            async with asyncio.timeout(limit):
                while True:
                    kind, flags = await _read_frame(reader)
                    if kind == _PING and flags & _ACK:
                        return


@asynccontextmanager
async def opened(socket: Path, data: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """A connection on which the bytes were sent; it is cut in the end."""
    try:
        reader, writer = await asyncio.open_unix_connection(str(sockets.check_path(socket)))
    except OSError as error:
        raise PeerGone(f"{socket.name} cannot be connected to: {error.strerror}") from error
    try:
        writer.write(data)
        with suppress(OSError):
            await writer.drain()
        yield reader
    finally:
        writer.transport.abort()


async def _until_answered(reader: asyncio.StreamReader) -> None:
    """Until the peer has closed the connection, or has sent a frame other than its settings."""
    with suppress(asyncio.IncompleteReadError):
        while True:
            kind, _ = await _read_frame(reader)
            if kind not in (_SETTINGS, _WINDOW_UPDATE):
                return


async def _read_frame(reader: asyncio.StreamReader) -> tuple[int, int]:
    head = await reader.readexactly(9)
    await reader.readexactly(int.from_bytes(head[:3]))
    return head[3], head[4]
