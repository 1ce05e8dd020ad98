"""A client of WebSockets as `kubectl exec` is one, with frames that a test may malform."""

import asyncio
import base64
import hashlib
import json
import os
import ssl
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.cluster.embedding import Lab

from plugwright.apiserver import tls
from plugwright.apiserver.server import listen, serving

__all__ = ["CommandClient", "Ended", "WebSocketClient", "commanding", "frame"]

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def frame(payload: bytes, opcode: int = 2, final: bool = True, masked: bool = True) -> bytes:
    first, length = (0x80 if final else 0) | opcode, len(payload)
    second = 0x80 if masked else 0
    if length < 126:
        head = bytes((first, second | length))
    elif length < 2**16:
        head = struct.pack(">BBH", first, second | 126, length)
    else:
        head = struct.pack(">BBQ", first, second | 127, length)
    if not masked:
        return head + payload
    mask = os.urandom(4)
    masks = (mask * (length // 4 + 1))[:length]
    return head + mask + (int.from_bytes(payload) ^ int.from_bytes(masks)).to_bytes(length)


@dataclass
class WebSocketClient:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def upgrade(self, path: str, token: str, *protocols: str) -> tuple[int, dict[str, str], bytes]:
        """The status, the headers, and the body of a refusal."""
        key = base64.b64encode(os.urandom(16))
        lines = [f"GET {path} HTTP/1.1", "Host: here", f"Authorization: Bearer {token}", "Connection: Upgrade",
                 "Upgrade: websocket", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key.decode()}",
                 f"Sec-WebSocket-Protocol: {', '.join(protocols)}"]  # fmt: skip
        self.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:]) if name}
        status = int(head[0].split()[1])
        if status == 101:
            expected = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest()).decode()
            assert headers["sec-websocket-accept"] == expected
            return status, headers, b""
        return status, headers, await self.reader.read()

    async def receive(self) -> tuple[int, bytes]:
        """The opcode and the payload of the next frame."""
        first, second = await self.reader.readexactly(2)
        length = second
        if length in (126, 127):
            size = 2 if length == 126 else 8
            (length,) = struct.unpack(">H" if size == 2 else ">Q", await self.reader.readexactly(size))
        return first & 0x0F, await self.reader.readexactly(length)


@dataclass
class Ended:
    """What a command wrote, and the Status of its end."""

    output: bytes
    errors: bytes
    status: dict[str, Any]

    @property
    def code(self) -> int:
        causes = self.status.get("details", {}).get("causes", [])
        return int(causes[0]["message"]) if causes else 0


@dataclass
class CommandClient:
    """`kubectl exec` and `attach` of one cluster."""

    port: int
    authority: Path
    token: str

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[WebSocketClient]:
        context = ssl.create_default_context(cafile=str(self.authority))
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context, limit=2**22)
        try:
            yield WebSocketClient(reader, writer)
        finally:
            writer.transport.abort()

    def path(self, pod: str, *command: str, subresource: str = "exec", **flags: str) -> str:
        query: list[tuple[str, str]] = [*(("command", word) for word in command), *flags.items()]
        return f"/api/v1/namespaces/default/pods/{pod}/{subresource}?{urlencode(query)}"

    async def run(self, pod: str, *command: str, given: Sequence[bytes] = (), tty: bool = False) -> Ended:
        flags = {"stdout": "true", **({"tty": "true"} if tty else {"stderr": "true"})}
        path = self.path(pod, *command, **flags, **({"stdin": "true"} if given else {}))
        async with self.connected() as client:
            status, headers, body = await client.upgrade(path, self.token, "v5.channel.k8s.io", "v4.channel.k8s.io")
            assert (status, headers.get("sec-websocket-protocol")) == (101, "v5.channel.k8s.io"), body
            for piece in given:
                client.writer.write(frame(piece))
            channels = {1: bytearray(), 2: bytearray(), 3: bytearray()}
            while True:
                opcode, payload = await client.receive()
                if opcode == 8:
                    break
                channels[payload[0]] += payload[1:]
            return Ended(bytes(channels[1]), bytes(channels[2]), json.loads(bytes(channels[3])))


@asynccontextmanager
async def commanding(lab: Lab, directory: Path) -> AsyncIterator[CommandClient]:
    """Serves the cluster as `plugwright up` does."""
    certificates = tls.make(directory)
    with listen(0) as listening:
        async with serving(lab.cluster.application, [listening], certificates):
            yield CommandClient(listening.getsockname()[1], certificates.authority, lab.cluster.token)
