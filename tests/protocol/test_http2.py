"""The rules of HTTP/2 beside h2, our oracle, and what a hostile peer cannot do.

h2spec (`make test-wire`) tries the standard's own list of faults.
"""

import asyncio
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import h2.events
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes

from plugwright.protocol.frames import (
    END_HEADERS,
    END_STREAM,
    PADDED,
    PREFACE,
    PRIORITY,
    ErrorCode,
    FrameKind,
    frame,
    header_frames,
)
from plugwright.protocol.grpc import BrokenExchange, prefixed
from plugwright.protocol.grpc_client import GrpcClientConnection
from plugwright.protocol.grpc_server import GrpcServerConnection, Handler
from plugwright.protocol.hpack import encode

HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/echo"),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]
SETTINGS = frame(FrameKind.SETTINGS, 0, 0)


async def echo(message: bytes) -> bytes:
    return message


async def never(_: bytes) -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


async def repeat(message: bytes) -> AsyncGenerator[bytes, None]:
    for _ in range(3):
        yield message


async def listing(_: bytes) -> AsyncGenerator[bytes, None]:
    yield bytes(1 << 20)
    await asyncio.Event().wait()


HANDLERS = {
    "/list": Handler(streaming=listing),
    "/echo": Handler(unary=echo),
    "/never": Handler(unary=never),
    "/repeat": Handler(streaming=repeat),
}


class Server:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.connections: list[GrpcServerConnection] = []

    def accept(self) -> GrpcServerConnection:
        self.connections.append(GrpcServerConnection(HANDLERS, lambda _: None))
        return self.connections[-1]


@asynccontextmanager
async def serving(root: Path) -> AsyncIterator[Server]:
    served = Server(root / "s")
    server = await asyncio.get_running_loop().create_unix_server(served.accept, served.path)
    try:
        yield served
    finally:
        server.close()
        for connection in served.connections:
            connection.abort("test ended")


class Peer:
    """A client made of h2."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.h2 = H2Connection(H2Configuration(header_encoding="utf-8"))
        self.bodies: dict[int, bytes] = {}
        self.trailers: dict[int, dict[str, str]] = {}
        self.h2.initiate_connection()

    def send(self) -> None:
        self.writer.write(self.h2.data_to_send())

    async def until(self, fact: Callable[[], bool]) -> None:
        while not fact():
            data = await self.reader.read(65536)
            assert data, "the server has hung up"
            for event in self.h2.receive_data(data):
                self._handle(event)
            self.send()

    def _handle(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.DataReceived):
            assert event.stream_id is not None
            assert event.data is not None
            self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
            self.h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)
        if isinstance(event, h2.events.TrailersReceived):
            assert event.stream_id is not None
            self.trailers[event.stream_id] = {str(name): str(value) for name, value in event.headers or ()}


@asynccontextmanager
async def peer_of(server: Server) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_unix_connection(server.path)
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()


@pytest.mark.parametrize("window", [1, 1_000, 65_535, 1 << 20])
@pytest.mark.parametrize("size", [0, 1, 16_379, 16_384, 200_000])
async def test_a_call_beside_h2_arrives_whole_whatever_the_windows(root: Path, window: int, size: int) -> None:
    if size / window > 5_000:
        size = window * 500
    message = prefixed(Random(size).randbytes(size))
    async with serving(root) as server, peer_of(server) as peer:
        peer.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        peer.h2.send_headers(1, HEADERS)
        peer.send()
        await peer.until(lambda: peer.h2.local_flow_control_window(1) > 65_535)
        for start in range(0, len(message), 16_384):
            await peer.until(lambda: peer.h2.local_flow_control_window(1) >= 16_384)
            peer.h2.send_data(1, message[start : start + 16_384])
        peer.h2.end_stream(1)
        peer.send()
        await peer.until(lambda: 1 in peer.trailers)
        assert peer.bodies.get(1, b"") == message
        assert peer.trailers[1] == {"grpc-status": "0"}


async def test_padding_priorities_and_continuations_are_read(root: Path) -> None:
    block = encode([(name.encode(), value.encode()) for name, value in [*HEADERS, ("x-long", "v" * 30_000)]])
    first = b"\x07" + struct.pack(">IB", 0, 9) + block[:10] + bytes(7)
    data = (
        frame(FrameKind.HEADERS, PADDED | PRIORITY, 1, first)
        + frame(FrameKind.CONTINUATION, 0, 1, block[10:16_000])
        + frame(FrameKind.CONTINUATION, END_HEADERS, 1, block[16_000:])
        + frame(FrameKind.DATA, PADDED | END_STREAM, 1, b"\x05" + prefixed(b"hello") + bytes(5))
    )
    async with serving(root) as server:
        reader, writer = await asyncio.open_unix_connection(server.path)
        writer.write(PREFACE + SETTINGS + data)
        assert prefixed(b"hello") in await reader.readuntil(b"grpc-status\x010")
        writer.close()


async def test_a_thousand_calls_with_headers_that_fill_and_evict_the_table(root: Path) -> None:
    random = Random(1)
    async with serving(root) as server, peer_of(server) as peer:
        for number in range(1_000):
            stream_id = 2 * number + 1
            extra = [(f"x-{random.randrange(40)}", "v" * random.randrange(400)) for _ in range(random.randrange(4))]
            peer.h2.send_headers(stream_id, [*HEADERS, *extra])
            peer.h2.send_data(stream_id, prefixed(str(number).encode()), end_stream=True)
            peer.send()
            await peer.until(lambda: stream_id in peer.trailers)  # noqa: B023  awaited here
            assert peer.bodies[stream_id] == prefixed(str(number).encode())


async def test_the_same_octets_mean_another_path_after_the_table_has_changed(root: Path) -> None:
    def call(stream_id: int, path: bytes) -> bytes:
        """`path` is the field as the block has it: a literal that enters the table, or an index of it."""
        rest = encode([(b"te", b"trailers"), (b"content-type", b"application/grpc")])
        block = encode([(b":method", b"POST"), (b":scheme", b"http")]) + path + rest
        headers = frame(FrameKind.HEADERS, END_HEADERS, stream_id, block)
        return headers + frame(FrameKind.DATA, END_STREAM, stream_id, prefixed(b"hello"))

    newest = b"\xbe"  # index 62
    async with asyncio.timeout(60), serving(root) as server:
        reader, writer = await asyncio.open_unix_connection(server.path)
        writer.write(PREFACE + SETTINGS)
        calls = [b"\x44\x05/echo", newest, newest, b"\x44\x05/nope", newest]
        for number, (path, status) in enumerate(zip(calls, [b"0", b"0", b"0", b"12", b"12"], strict=True)):
            writer.write(call(2 * number + 1, path))
            answer = await reader.readuntil(b"grpc-status")
            answer += await reader.readexactly(1 + len(status))
            assert answer.endswith(bytes([len(status)]) + status), (number, answer)
        writer.close()


async def test_our_client_beside_a_server_of_h2(root: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        peer.initiate_connection()
        peer.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 3, SettingCodes.INITIAL_WINDOW_SIZE: 10})
        bodies: dict[int, bytes] = {}
        while data := await reader.read(65536):
            for event in peer.receive_data(data):
                if isinstance(event, h2.events.DataReceived):
                    bodies[event.stream_id] = bodies.get(event.stream_id, b"") + event.data
                    peer.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                if isinstance(event, h2.events.StreamEnded):
                    reply = [(":status", "200"), ("content-type", "application/grpc")]
                    peer.send_headers(event.stream_id, reply)
                    peer.send_data(event.stream_id, bodies[event.stream_id], pad_length=3)
                    peer.send_headers(event.stream_id, [("grpc-status", "0")], end_stream=True)
            writer.write(peer.data_to_send())
        writer.close()
        ended.set()

    ended = asyncio.Event()
    server = await asyncio.start_unix_server(serve, root / "s")
    loop = asyncio.get_running_loop()
    _, client = await loop.create_unix_connection(lambda: GrpcClientConnection(None), str(root / "s"))
    calls = (client.unary("/echo", str(number).encode() * 10, None) for number in range(40))
    assert await asyncio.gather(*calls) == [str(number).encode() * 10 for number in range(40)]
    # Now the server's limit of three streams is known, beyond which it would end the connection.
    calls = (client.unary("/echo", str(number).encode() * 10, None) for number in range(10))
    assert await asyncio.gather(*calls) == [str(number).encode() * 10 for number in range(10)]
    client.abort("done")
    await ended.wait()
    server.close()


async def answer_to(server: Server, data: bytes) -> bytes:
    """What the server says to these bytes until it hangs up."""
    reader, writer = await asyncio.open_unix_connection(server.path)
    writer.write(PREFACE + SETTINGS + data)
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def error_of(answer: bytes) -> ErrorCode | None:
    """The error code of the GOAWAY in an answer."""
    while answer:
        length, kind = int.from_bytes(answer[:3], "big"), answer[3]
        if kind == FrameKind.GOAWAY:
            return ErrorCode(struct.unpack(">II", answer[9:17])[1])
        answer = answer[9 + length :]
    return None


def request(stream_id: int, path: bytes = b"/never", flags: int = 4) -> bytes:
    block = b"\x83\x86\x04" + bytes([len(path)]) + path + b"\x00\x02te\x08trailers\x0f\x10\x10application/grpc"
    return frame(FrameKind.HEADERS, flags, stream_id, block)


FLOODS = {
    "pings": frame(FrameKind.PING, 0, 0, bytes(8)) * 20_000,
    "acknowledged pings": frame(FrameKind.PING, 1, 0, bytes(8)) * 20_000,
    "settings": SETTINGS * 20_000,
    "empty data": request(1) + frame(FrameKind.DATA, 0, 1) * 20_000,
    "priorities": frame(FrameKind.PRIORITY, 0, 1, bytes(5)) * 20_000,
    "unknown frames": frame(99, 0, 0) * 20_000,
    "continuations": request(1, flags=0) + frame(FrameKind.CONTINUATION, 0, 1) * 20_000,
    "a header block without end": request(1, flags=0) + frame(FrameKind.CONTINUATION, 0, 1, bytes(16_384)) * 9,
    "rapid resets": b"".join(
        request(number) + frame(FrameKind.RST_STREAM, 0, number, b"\0\0\0\x08") for number in range(1, 20_001, 2)
    ),
    "streams over the limit": b"".join(request(number) for number in range(1, 20_001, 2)),
    "windows of all streams": b"".join(request(number) for number in range(1, 200, 2))
    + frame(FrameKind.SETTINGS, 0, 0, struct.pack(">HI", 4, 1) * 2_730) * 100,
    "windows of one octet": frame(FrameKind.SETTINGS, 0, 0, struct.pack(">HI", 4, 1))
    + request(1, b"/list")
    + frame(FrameKind.DATA, END_STREAM, 1, prefixed(b""))
    + frame(FrameKind.WINDOW_UPDATE, 0, 1, b"\0\0\0\x01") * 20_000,
    "windows": frame(FrameKind.WINDOW_UPDATE, 0, 0, b"\0\0\0\x01") * 20_000,
}


@pytest.mark.parametrize("what", FLOODS)
async def test_a_flood_ends_its_own_connection_alone(root: Path, what: str) -> None:
    async with serving(root) as server, peer_of(server) as peer:
        answer = await answer_to(server, FLOODS[what])
        if answer:  # the kernel may throw it away with what the server had not read
            assert error_of(answer) in (ErrorCode.ENHANCE_YOUR_CALM, None)
        flooded = server.connections[-1]
        assert flooded.is_over
        assert not flooded.streams
        peer.h2.send_headers(1, HEADERS)
        peer.h2.send_data(1, prefixed(b"hello"), end_stream=True)
        peer.send()
        await peer.until(lambda: 1 in peer.trailers)


async def said_before_ping(server: Server, data: bytes) -> bytes:
    """What the server says to these bytes until it answers a ping after them."""
    reader, writer = await asyncio.open_unix_connection(server.path)
    writer.write(PREFACE + SETTINGS + data + frame(FrameKind.PING, 0, 0, b"all sent"))
    try:
        return await reader.readuntil(frame(FrameKind.PING, 1, 0, b"all sent"))
    finally:
        writer.close()


async def test_a_hundred_streams_are_open_at_once_and_the_next_is_refused(root: Path) -> None:
    streams = [request(number) for number in range(1, 202, 2)]
    refused = frame(FrameKind.RST_STREAM, 0, 201, int(ErrorCode.REFUSED_STREAM).to_bytes(4, "big"))
    async with serving(root) as server:
        assert FrameKind.RST_STREAM not in kinds_of(await said_before_ping(server, b"".join(streams[:100])))
        assert refused in await said_before_ping(server, b"".join(streams))


@pytest.mark.parametrize("kind", [10, 11, 99, 255])
async def test_a_frame_of_a_later_version_is_ignored(root: Path, kind: int) -> None:
    async with serving(root) as server:
        assert FrameKind.GOAWAY not in kinds_of(await said_before_ping(server, frame(kind, 0, 0, b"later")))


async def test_a_stream_that_depends_on_itself_is_an_error(root: Path) -> None:
    itself = frame(FrameKind.PRIORITY, 0, 3, b"\0\0\0\x03\x10")
    async with serving(root) as server:
        said = await said_before_ping(server, itself)
    assert frame(FrameKind.RST_STREAM, 0, 3, int(ErrorCode.PROTOCOL_ERROR).to_bytes(4, "big")) in said


@pytest.mark.parametrize(
    "sent",
    [
        frame(FrameKind.DATA, 0, 5, b"data"),
        frame(FrameKind.RST_STREAM, 0, 5, b"\0\0\0\x08"),
        frame(FrameKind.WINDOW_UPDATE, 0, 5, b"\0\0\0\x01"),
        request(3) + frame(FrameKind.DATA, 0, 5, b"data"),
    ],
    ids=["data", "reset", "window", "data after another stream"],
)
async def test_a_frame_for_a_stream_that_was_never_opened_ends_the_connection(root: Path, sent: bytes) -> None:
    async with serving(root) as server, asyncio.timeout(60):
        assert error_of(await answer_to(server, sent)) is ErrorCode.PROTOCOL_ERROR


def kinds_of(answer: bytes) -> list[int]:
    """The kinds of the frames in an answer."""
    kinds = []
    while answer:
        kinds.append(answer[3])
        answer = answer[9 + int.from_bytes(answer[:3], "big") :]
    return kinds


@pytest.mark.parametrize("size", [0, 99, 100, 101, 199, 200, 201])
def test_a_header_block_ends_with_its_last_frame(size: int) -> None:
    sent, block, flags = header_frames(1, bytes(size), END_STREAM, limit=100), 0, []
    while sent:
        length = int.from_bytes(sent[:3], "big")
        flags.append(sent[4])
        block += length
        sent = sent[9 + length :]
    assert block == size
    assert [flag & END_HEADERS for flag in flags] == [*(0 for _ in flags[1:]), END_HEADERS]
    assert flags[0] & END_STREAM


async def test_go_clients_pings_beside_a_long_list_are_not_a_flood(root: Path) -> None:
    """Go's client sends a ping for many a data frame, to measure the connection."""
    message = prefixed(bytes(3 << 20))
    async with serving(root) as server, peer_of(server) as peer:
        peer.h2.increment_flow_control_window(1 << 24)
        peer.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1 << 24})
        for stream_id in (1, 3, 5, 7):
            peer.h2.send_headers(stream_id, HEADERS)
            peer.send()
            await peer.until(lambda: peer.h2.local_flow_control_window(stream_id) > 65_535)  # noqa: B023
            for start in range(0, len(message), 16_384):
                await peer.until(lambda: peer.h2.local_flow_control_window(stream_id) >= 16_384)  # noqa: B023
                peer.h2.send_data(stream_id, message[start : start + 16_384])
            peer.h2.end_stream(stream_id)
            peer.send()
            size = 0
            while stream_id not in peer.trailers:
                await peer.until(lambda: len(peer.bodies.get(stream_id, b"")) > size or stream_id in peer.trailers)  # noqa: B023
                size = len(peer.bodies.get(stream_id, b""))
                peer.h2.ping(bytes(8))
                peer.send()
            assert peer.bodies[stream_id] == message


async def test_a_peer_that_asks_and_never_reads_is_disconnected(root: Path) -> None:
    async with serving(root) as server:
        reader, writer = await asyncio.open_unix_connection(server.path, limit=1)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(PREFACE + SETTINGS + frame(FrameKind.WINDOW_UPDATE, 0, 0, b"\x3f\xff\xff\xff"))
        writer.write(frame(FrameKind.SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 30)))
        body = prefixed(bytes(16_000))
        for stream_id in range(1, 20_001, 2):
            writer.write(request(stream_id, b"/echo") + frame(FrameKind.DATA, 1, stream_id, body))
            if stream_id % 100 == 1:
                await asyncio.sleep(0)
            if server.connections and server.connections[0].is_over:
                break
        while not server.connections[0].is_over:
            waiting = server.connections[0]
            assert sum(len(part) for stream in waiting.streams.values() for part in stream.pending) < 4 << 20
            await asyncio.sleep(0)
            if len(waiting.streams) >= 100:
                break
        writer.close()
        del reader


async def test_refusals_that_a_peer_never_reads_are_bounded(root: Path) -> None:
    """A refusal is one frame of headers: no window of the peer holds it back, and its stream is over."""
    async with serving(root) as server:
        reader, writer = await asyncio.open_unix_connection(server.path, limit=1)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(PREFACE + SETTINGS)
        await writer.drain()
        for first in range(1, 80_001, 1000):
            requests = (request(stream_id, b"/none") for stream_id in range(first, first + 1000, 2))
            writer.write(b"".join(requests))
            with suppress(ConnectionError):
                await writer.drain()
            if server.connections and server.connections[0].is_over:
                break
        assert server.connections[0].is_over
        writer.close()
        del reader


async def test_lists_that_wait_for_windows_are_bounded_for_the_connection(root: Path) -> None:
    ping = frame(FrameKind.PING, 0, 0, b"all sent")
    lists = b"".join(
        request(number, b"/list") + frame(FrameKind.DATA, END_STREAM, number, prefixed(b""))
        for number in range(1, 200, 2)
    )
    async with serving(root) as server:
        reader, writer = await asyncio.open_unix_connection(server.path)
        writer.write(PREFACE + frame(FrameKind.SETTINGS, 0, 0, struct.pack(">HI", 4, 0)) + lists + ping)
        said = await reader.readuntil(frame(FrameKind.PING, 1, 0, b"all sent"))
        waiting = sum(len(part) for stream in server.connections[0].streams.values() for part in stream.pending)
        assert 4 << 20 < waiting < 10 << 20
        assert frame(FrameKind.RST_STREAM, 0, 199, b"\0\0\0\x0b") in said
        writer.close()


async def test_data_beyond_the_window_of_a_reader_that_waits_ends_the_stream(root: Path) -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = encode([(b":status", b"200"), (b"content-type", b"application/grpc")])
        message = frame(FrameKind.DATA, 0, 1, prefixed(bytes(16_000)))
        writer.write(SETTINGS + frame(FrameKind.HEADERS, END_HEADERS, 1, head) + message * 200)
        said = await reader.readuntil(frame(FrameKind.RST_STREAM, 0, 1, b"\0\0\0\x03"))
        assert said
        writer.close()
        ended.set()

    ended = asyncio.Event()
    server = await asyncio.start_unix_server(flood, root / "s")
    loop = asyncio.get_running_loop()
    _, client = await loop.create_unix_connection(lambda: GrpcClientConnection(None), str(root / "s"))
    replies = client.stream("/repeat", b"")
    assert await anext(replies) == bytes(16_000)
    await ended.wait()
    await replies.aclose()
    client.abort("done")
    server.close()


async def test_a_client_is_told_of_a_lost_connection(root: Path) -> None:
    async with serving(root) as server:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_unix_connection(lambda: GrpcClientConnection(None), str(server.path))
        calling = asyncio.ensure_future(client.unary("/never", b"", None))
        while not (server.connections and server.connections[0].streams):
            await asyncio.sleep(0)
        transport = server.connections[0].transport
        assert transport is not None
        transport.abort()
        with pytest.raises(BrokenExchange, match="Connection lost"):
            await calling
