"""Connections and frames that no HTTP/2 library would send; the peer's responses are read and discarded."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from plugwright.errors import PeerGone
from plugwright.protocol import frames, grpc, hpack
from plugwright.protocol.frames import ACK, END_HEADERS, END_STREAM, PREFACE, ErrorCode, FrameKind, Setting, frame
from plugwright.system import sockets

__all__ = ["HOSTILE", "PREFACE", "SETTINGS", "call", "cancelled_calls", "opened", "ping", "send", "unread_call"]

SETTINGS = frame(FrameKind.SETTINGS, 0, 0)
_PING = frame(FrameKind.PING, 0, 0, b"12345678")
_CLOSE_LIMIT = 0.25  # seconds for the peer to notice


def _headers(path: str, stream: int) -> bytes:
    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": path.encode(),
        b":authority": b"localhost",
        b"content-type": b"application/grpc",
        b"te": b"trailers",
    }
    return frame(FrameKind.HEADERS, END_HEADERS, stream, hpack.encode(fields.items()))


def _call(path: str, stream: int, message: bytes) -> bytes:
    return _headers(path, stream) + frame(FrameKind.DATA, END_STREAM, stream, grpc.prefixed(message))


def unread_call(path: str) -> bytes:
    """A call whose response cannot be sent, because its window is empty."""
    return PREFACE + frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}) + _call(path, 1, b"")


def call(path: str, message: bytes) -> bytes:
    """One call on a separate connection."""
    return PREFACE + SETTINGS + _call(path, 1, message)


def cancelled_calls(path: str, count: int, message: bytes = b"") -> bytes:
    """Calls that are cancelled immediately, on one connection, which is then cut."""
    calls = (
        _call(path, stream, message) + frame(FrameKind.RST_STREAM, 0, stream, struct.pack(">I", ErrorCode.CANCEL))
        for stream in range(1, 2 * count, 2)
    )
    return PREFACE + SETTINGS + b"".join(calls)


HOSTILE = (
    frame(FrameKind.DATA, END_STREAM, 1, b"data of a stream that was never opened"),
    frames.window_update(0, 0),
    frame(FrameKind.CONTINUATION, END_HEADERS, 1, b""),
    frame(FrameKind.HEADERS, END_HEADERS, 2, b"\x80"),  # an even stream, and a nonexistent index
    frame(FrameKind.PUSH_PROMISE, END_HEADERS, 1, struct.pack(">I", 2)),
    frame(FrameKind.SETTINGS, 0, 0, b"\0\0\0"),
    frames.HEAD.pack(0xFFFF, 0xFF, FrameKind.DATA, 0, 1) + b"the first bytes of 16 MiB",
    frame(0xEE, 0, 0, b"a kind of a later version"),
    _headers("no path at all", 1),
)


async def send(socket: Path, data: bytes) -> None:
    """Sends the bytes on a separate connection, which is cut when the peer closes it or answers a subsequent PING."""
    ping_frame = _PING if data.startswith(PREFACE) else b""
    async with opened(socket, data + ping_frame) as reader:
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(_CLOSE_LIMIT if data else 0.0):
                await _until_answered(reader)


async def ping(socket: Path, limit: float) -> None:
    """Returns when the peer has answered a PING, and so has read its connections."""
    async with opened(socket, PREFACE + SETTINGS + _PING) as reader:
        with suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
            async with asyncio.timeout(limit):
                while True:
                    kind, flags = await _read_frame(reader)
                    if kind == FrameKind.PING and flags & ACK:
                        return


@asynccontextmanager
async def opened(socket: Path, data: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """A connection on which the bytes were sent; it is cut at the end."""
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
    """Waits until the peer has closed the connection, or has sent a frame other than its settings."""
    with suppress(asyncio.IncompleteReadError):
        while True:
            kind, _ = await _read_frame(reader)
            if kind not in (FrameKind.SETTINGS, FrameKind.WINDOW_UPDATE):
                return


async def _read_frame(reader: asyncio.StreamReader) -> tuple[int, int]:
    head = await reader.readexactly(9)
    await reader.readexactly(int.from_bytes(head[:3]))
    return head[3], head[4]
