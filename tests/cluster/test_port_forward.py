"""`kubectl port-forward` over real WebSockets and sockets, and clients that break the protocol."""

import asyncio
import json
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.cluster.embedding import embedded
from tests.cluster.web_sockets import CommandClient, WebSocketClient, commanding, frame

from plugwright.apiserver import spdy

PROTOCOL = "SPDY/3.1+portforward.k8s.io"
SLEEP = [{"name": "main", "image": "demo", "command": ["sleep", "600"]}]


@dataclass
class Forward:
    """One connection as kubectl has it; `received` and `failure` are complete when `ended` has both streams."""

    data: int
    error: int
    received: bytearray = field(default_factory=bytearray)
    failure: bytearray = field(default_factory=bytearray)
    ended: set[int] = field(default_factory=set)


class SpdyClient:
    def __init__(self, socket: WebSocketClient) -> None:
        self.socket = socket
        self.compressed = zlib.compressobj(zdict=spdy._DICTIONARY)
        self.forwards: list[Forward] = []
        self.accepted: set[int] = set()
        self.reset: set[int] = set()
        self.pongs: list[bytes] = []
        self.buffer = bytearray()

    def send(self, octets: bytes) -> None:
        self.socket.writer.write(frame(octets))

    def open_stream(self, stream: int, kind: str, port: str, request: str) -> None:
        headers = {"Streamtype": kind, "Port": port, "Requestid": request}
        block = struct.pack(">I", len(headers)) + b"".join(
            struct.pack(">I", len(word)) + word.encode() for pair in headers.items() for word in pair
        )
        packed = self.compressed.compress(block) + self.compressed.flush(zlib.Z_SYNC_FLUSH)
        payload = struct.pack(">IIBB", stream, 0, 0, 0) + packed
        self.send(struct.pack(">HHI", 0x8003, 1, len(payload)) + payload)

    def forward(self, port: int) -> Forward:
        error = 4 * len(self.forwards) + 1
        forward = Forward(error + 2, error)
        self.forwards.append(forward)
        self.open_stream(error, "error", str(port), str(error))
        self.write(error, b"", is_ended=True)  # kubectl writes nothing there
        self.open_stream(error + 2, "data", str(port), str(error))
        return forward

    def write(self, stream: int, content: bytes, is_ended: bool = False) -> None:
        self.send(struct.pack(">II", stream, (is_ended << 24) | len(content)) + content)

    async def until_ended(self, forward: Forward) -> None:
        async with asyncio.timeout(30):
            while len(forward.ended) < 2:
                await self.receive()

    async def receive(self) -> None:
        opcode, payload = await self.socket.receive()
        assert opcode == 2, payload
        self.buffer += payload
        while len(self.buffer) >= 8 and len(self.buffer) >= 8 + (size := int.from_bytes(self.buffer[5:8])):
            head, content = bytes(self.buffer[:8]), bytes(self.buffer[8 : 8 + size])
            del self.buffer[: 8 + size]
            self._take(head, content)

    def _take(self, head: bytes, content: bytes) -> None:
        if head[0] & 0x80:
            kind, stream = int.from_bytes(head[2:4]), int.from_bytes(content[:4])
            if kind == 6:
                self.pongs.append(content)
                return
            {2: self.accepted, 3: self.reset}[kind].add(stream)
            return
        stream = int.from_bytes(head[:4])
        forward = next(one for one in self.forwards if stream in (one.data, one.error))
        (forward.received if stream == forward.data else forward.failure).extend(content)
        if head[4] & 1:
            forward.ended.add(stream)


@asynccontextmanager
async def forwarding(directory: Path) -> AsyncIterator[SpdyClient]:
    async with embedded(processes=True) as lab, commanding(lab, directory) as client:
        lab.create("p", containers=SLEEP, terminationGracePeriodSeconds=1)
        await lab.container("p", lambda status: "running" in status["state"])
        async with client.connected() as socket:
            path = client.path("p", subresource="portforward")
            status, headers, body = await socket.upgrade(path, client.token, PROTOCOL)
            assert (status, headers.get("sec-websocket-protocol")) == (101, PROTOCOL), body
            yield SpdyClient(socket)


@asynccontextmanager
async def echo_server() -> AsyncIterator[tuple[int, list[int]]]:
    """Sends back what it got once the other side has ended its own; the sizes of all that it got."""
    sizes: list[int] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        content = await reader.read(-1)
        sizes.append(len(content))
        writer.write(content)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], sizes


async def test_a_connection_carries_data_both_ways_and_ends(tmp_path: Path) -> None:
    content = bytes(range(256)) * 8000
    async with echo_server() as (port, _), forwarding(tmp_path) as client:
        forward = client.forward(port)
        for start in range(0, len(content), 60_000):
            client.write(forward.data, content[start : start + 60_000])
        client.write(forward.data, b"", is_ended=True)
        await client.until_ended(forward)
        assert forward.received == content
        assert forward.failure == b""
        assert client.accepted == {forward.data, forward.error}


async def test_connections_are_independent(tmp_path: Path) -> None:
    async with echo_server() as (port, _), forwarding(tmp_path) as client:
        forwards = [client.forward(port) for _ in range(20)]
        for number in (3, 1, 2):
            for index, forward in enumerate(forwards):
                client.write(forward.data, b"%d-%d " % (index, number), is_ended=number == 2)
        for index, forward in enumerate(forwards):
            await client.until_ended(forward)
            assert forward.received == b"%d-3 %d-1 %d-2 " % (index, index, index)


async def test_a_port_on_which_nothing_listens_is_reported_and_ends_no_other(tmp_path: Path) -> None:
    async with echo_server() as (port, _), forwarding(tmp_path) as client:
        lost, kept = client.forward(1), client.forward(port)
        await client.until_ended(lost)
        client.write(kept.data, b"still here", is_ended=True)
        await client.until_ended(kept)
        text = "error forwarding port 1 to pod default/p: failed to connect to localhost:1: Connection refused"
        assert lost.failure.decode() == text
        assert not lost.received
        assert kept.received == b"still here"


async def test_a_reset_closes_the_connection_to_the_pod(tmp_path: Path) -> None:
    async with echo_server() as (port, sizes), forwarding(tmp_path) as client:
        forward = client.forward(port)
        client.write(forward.data, b"abc")
        client.send(struct.pack(">HHIII", 0x8003, 3, 8, forward.data, 5))
        async with asyncio.timeout(30):
            while forward.error not in forward.ended:
                await client.receive()
        other = client.forward(port)
        client.write(other.data, b"x", is_ended=True)
        await client.until_ended(other)
        assert other.received == b"x"
        assert sizes[-1] == 1


async def test_pings_are_answered_and_wrong_streams_are_reset(tmp_path: Path) -> None:
    async with forwarding(tmp_path) as client:
        client.send(struct.pack(">HHII", 0x8003, 6, 4, 77))
        client.open_stream(1, "data", "80", "no error stream of this request")
        client.open_stream(3, "error", "65536", "3")
        client.open_stream(5, "other", "80", "5")
        async with asyncio.timeout(30):
            while len(client.reset) < 3:
                await client.receive()
        assert client.reset == {1, 3, 5}
        assert client.pongs == [struct.pack(">I", 77)]


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">HHI", 0x8002, 6, 4) + bytes(4),
        struct.pack(">II", 1, 2**24 - 1),
        struct.pack(">HHI", 0x8003, 1, 14) + bytes(14),
        struct.pack(">HHI", 0x8003, 1, 2) + bytes(2),
    ],
    ids=["version", "too-long", "headers", "short"],
)
async def test_a_frame_against_the_protocol_ends_the_connection(tmp_path: Path, sent: bytes) -> None:
    async with forwarding(tmp_path) as client:
        client.send(sent)
        assert (await client.socket.receive())[0] == 8


async def _refusal(client: CommandClient, protocol: str) -> tuple[int, str]:
    async with client.connected() as socket:
        status, _, body = await socket.upgrade(client.path("p", subresource="portforward"), client.token, protocol)
        return status, json.loads(body)["message"]


async def test_a_forward_that_cannot_work_is_refused_with_what_to_do(tmp_path: Path) -> None:
    for processes, protocol, text in (
        (True, "v4.channel.k8s.io", "the client must offer SPDY/3.1+portforward.k8s.io, as kubectl 1.31 and newer do"),
        (False, PROTOCOL, "plugwright does not emulate port-forward here: no container runs without --run"),
    ):
        async with embedded(processes=processes) as lab, commanding(lab, tmp_path) as client:
            lab.create("p", containers=SLEEP, terminationGracePeriodSeconds=1)
            await lab.phase("p")
            status, message = await _refusal(client, protocol)
            assert status == 400
            assert text in message
