"""Bytes at random, and frames that are almost right, into both sides of the wire: no exception, no hang, no growth.

`make fuzz` plays a million of them; ring 1 some thousands, with the same seed.
"""

import asyncio
import os
from random import Random

import pytest

from plugwright.protocol import frames
from plugwright.protocol.frames import PREFACE, FrameKind
from plugwright.protocol.grpc import prefixed
from plugwright.protocol.grpc_client import GrpcClientConnection
from plugwright.protocol.grpc_server import GrpcServerConnection, Handler
from plugwright.protocol.hpack import encode
from plugwright.protocol.http2 import STREAMS_LIMIT, Http2Connection

INPUTS = int(os.environ.get("PLUGWRIGHT_FUZZ_INPUTS", "4000"))
PER_CONNECTION = 20

REQUEST = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/echo"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
]
RESPONSE = [(b":status", b"200"), (b"content-type", b"application/grpc")]
TRAILERS = [(b"grpc-status", b"0")]
BLOCKS = [encode(REQUEST), encode(RESPONSE), encode(TRAILERS), b"\x40\x01a\x01b", b"\xbe", b"\x20", b""]


class Sink(asyncio.Transport):
    """A transport that counts what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += len(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


async def echo(message: bytes) -> bytes:
    return message


def random_input(random: Random) -> bytes:
    """One frame, well-formed or not, or bytes of any kind."""
    if random.random() < 0.1:
        return random.randbytes(random.choice([1, 8, 9, 100]))
    kind = random.choice([*FrameKind, 10, 255])
    payload = {
        FrameKind.HEADERS: random.choice(BLOCKS),
        FrameKind.CONTINUATION: random.choice(BLOCKS),
        FrameKind.DATA: prefixed(random.randbytes(random.randrange(20))),
        FrameKind.WINDOW_UPDATE: random.randrange(1 << 32).to_bytes(4, "big"),
        FrameKind.PING: bytes(8),
        FrameKind.RST_STREAM: bytes(4),
        FrameKind.GOAWAY: bytes(8),
        FrameKind.PRIORITY: bytes(5),
        FrameKind.SETTINGS: b"".join(
            random.randrange(9).to_bytes(2, "big") + random.choice([0, 1, 16_384, 1 << 31]).to_bytes(4, "big")
            for _ in range(random.randrange(3))
        ),
    }.get(FrameKind(kind) if kind < 10 else FrameKind.PING, b"")
    if random.random() < 0.3 and payload:
        changed = bytearray(payload)
        changed[random.randrange(len(changed))] = random.randrange(256)
        payload = bytes(changed)
    flags = random.choice([0, 1, 4, 5, random.randrange(256)])
    stream_id = random.choice([0, 1, 1, 3, 5, random.randrange(1 << 31)])
    return frames.frame(kind, flags, stream_id, payload)


def connection(random: Random, is_server: bool) -> Http2Connection:
    made: Http2Connection
    if is_server:
        made = GrpcServerConnection({"/echo": Handler(unary=echo)}, lambda _: None)
    else:
        made = GrpcClientConnection(1_000)
    made.connection_made(Sink())
    if random.random() < 0.95:
        made.data_received((PREFACE if is_server else b"") + frames.frame(FrameKind.SETTINGS, 0, 0))
    return made


@pytest.mark.parametrize("is_server", [True, False], ids=["server", "client"])
@pytest.mark.timeout(3000)
async def test_no_bytes_raise_hang_or_grow(is_server: bool) -> None:
    random = Random(7 + is_server)
    for _ in range(INPUTS // PER_CONNECTION // 2):
        tried = connection(random, is_server)
        sink = tried.transport
        assert isinstance(sink, Sink)
        calls: list[asyncio.Task[bytes]] = []
        if isinstance(tried, GrpcClientConnection):
            calls = [asyncio.create_task(tried.unary("/echo", b"x", None)) for _ in range(3)]
            await asyncio.sleep(0)
        received = 0
        for _ in range(PER_CONNECTION):
            data = random_input(random)
            received += len(data)
            cut = random.randrange(len(data) + 1)
            tried.data_received(data[:cut])
            tried.data_received(data[cut:])
        await asyncio.sleep(0)
        assert len(tried.streams) <= STREAMS_LIMIT
        assert sink.written < 2_000 + 40 * received
        tried.connection_lost(None)
        assert not tried.streams
        await asyncio.gather(*calls, return_exceptions=True)
