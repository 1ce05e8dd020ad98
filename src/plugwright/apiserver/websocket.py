"""WebSockets (RFC 6455) for the API server: uvicorn hands an upgraded connection to this, and it calls the application.

`kubectl exec` and `cp` speak it. Messages are binary, at most 1 MiB each; there are no extensions. A client that sends
faster than the application reads is made to wait.
"""

import asyncio
import base64
import hashlib
import struct
from collections import deque
from http import HTTPStatus
from typing import NamedTuple

from starlette.types import Message, Scope
from uvicorn import Config
from uvicorn.server import ServerState

__all__ = ["WebSocketConnection"]

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # of the RFC, for the answer to a key
_LARGEST, _MOST_WAITING = 2**20, 64  # octets of a message; messages that the application has not read
_LARGEST_HEAD = 64 * 1024
_BINARY, _CLOSE, _PONG = 0x2, 0x8, 0xA
_PROTOCOL_ERROR, _TOO_BIG, _GONE = 1002, 1009, 1006


class _Frame(NamedTuple):
    is_final: bool
    opcode: int
    payload: bytes


class WebSocketConnection(asyncio.Protocol):
    """One connection, from the request that asked for the upgrade to the end."""

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, object]) -> None:
        self.transport: asyncio.Transport
        self._application, self._server, self._state = config.loaded_app, server_state, app_state
        self._buffer = bytearray()
        self._key = b""
        self._fragments = bytearray()
        self._messages: deque[Message] = deque([{"type": "websocket.connect"}])
        self._arrived, self._writable = asyncio.Event(), asyncio.Event()
        self._arrived.set()
        self._writable.set()
        self._is_accepted = self._is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._server.connections.add(self)  # type: ignore[arg-type]  # its protocols are named one by one

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._put({"type": "websocket.disconnect", "code": _GONE})
        self._is_closed = True
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def shutdown(self) -> None:
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._key:
            self._read_request()
        if self._is_accepted:
            self._read_frames()

    def _read_request(self) -> None:
        """The request, which uvicorn has checked and passes on as it came."""
        head, end, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        if not end:
            if len(head) > _LARGEST_HEAD:
                self.transport.abort()
            return
        request_line, *lines = head.split(b"\r\n")
        headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
        self._buffer = bytearray(rest)
        self._key = dict(headers).get(b"sec-websocket-key", b"") or b"none"
        raw_path, _, query = request_line.split(b" ")[1].partition(b"?")
        offered = dict(headers).get(b"sec-websocket-protocol", b"").decode("latin-1")
        scope: Scope = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "path": raw_path.decode("latin-1"),
            "query_string": query,
            "headers": headers,
            "subprotocols": [name.strip() for name in offered.split(",") if name.strip()],
            "state": dict(self._state),
            "extensions": {"websocket.http.response": {}},
        }
        task = asyncio.get_running_loop().create_task(self._run(scope))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    async def _run(self, scope: Scope) -> None:
        try:
            await self._application(scope, self._receive, self._send)
        finally:
            if not self._is_closed:
                self._close(1000 if self._is_accepted else _PROTOCOL_ERROR)

    async def _receive(self) -> Message:
        await self._arrived.wait()
        message = self._messages.popleft()
        if not self._messages:
            self._arrived.clear()
            if not self._is_closed:
                self.transport.resume_reading()
        return message

    async def _send(self, message: Message) -> None:
        await self._writable.wait()
        if self._is_closed:
            return
        match message["type"]:
            case "websocket.accept":
                self._accept(message.get("subprotocol") or "")
            case "websocket.send":
                self._write(_BINARY, message["bytes"])
            case "websocket.http.response.start":
                self._refuse(message)
            case "websocket.http.response.body":
                self.transport.write(message.get("body", b""))
                self._end()
            case "websocket.close":
                self._close(message.get("code", 1000))

    def _accept(self, subprotocol: str) -> None:
        accepted = base64.b64encode(hashlib.sha1(self._key + _GUID, usedforsecurity=False).digest())
        lines = [b"HTTP/1.1 101 Switching Protocols", b"Upgrade: websocket", b"Connection: Upgrade"]
        lines.append(b"Sec-WebSocket-Accept: " + accepted)
        if subprotocol:
            lines.append(b"Sec-WebSocket-Protocol: " + subprotocol.encode())
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n")
        self._is_accepted = True
        self._read_frames()

    def _refuse(self, message: Message) -> None:
        status = HTTPStatus(message["status"])
        lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode(), b"Connection: close"]
        lines += [name + b": " + value for name, value in message.get("headers", ())]
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n")

    def _read_frames(self) -> None:
        while not self._is_closed and (frame := self._next_frame()) is not None:
            self._handle(frame)

    def _next_frame(self) -> _Frame | None:
        """None until there is a whole one."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        first, second = buffer[0], buffer[1]
        if not second & 0x80 or first & 0x70:  # a client must mask, and no extension was agreed on
            self._close(_PROTOCOL_ERROR)
            return None
        length, offset = second & 0x7F, 2
        if length == 126:
            offset = 4
        elif length == 127:
            offset = 10
        if len(buffer) < offset + 4:
            return None
        if length > 125:
            (length,) = struct.unpack(">H" if length == 126 else ">Q", buffer[2:offset])
        if length > _LARGEST:
            self._close(_TOO_BIG)
            return None
        end = offset + 4 + length
        if len(buffer) < end:
            return None
        mask, payload = buffer[offset : offset + 4], bytes(buffer[offset + 4 : end])
        del buffer[:end]
        return _Frame(bool(first & 0x80), first & 0x0F, _unmasked(payload, mask))

    def _handle(self, frame: _Frame) -> None:
        match frame.opcode:
            case 0x0 | 0x1 | 0x2:
                self._fragments += frame.payload
                if len(self._fragments) > _LARGEST:
                    self._close(_TOO_BIG)
                elif frame.is_final:
                    self._put({"type": "websocket.receive", "bytes": bytes(self._fragments)})
                    self._fragments.clear()
            case 0x9:
                self._write(_PONG, frame.payload[:125])
            case 0x8:
                self._put({"type": "websocket.disconnect", "code": 1000})
                self._close(1000)
            case 0xA:
                pass
            case _:
                self._close(_PROTOCOL_ERROR)

    def _put(self, message: Message) -> None:
        if self._is_closed:
            return
        self._messages.append(message)
        self._arrived.set()
        if len(self._messages) >= _MOST_WAITING:
            self.transport.pause_reading()

    def _write(self, opcode: int, payload: bytes) -> None:
        length = len(payload)
        if length < 126:
            head = bytes((0x80 | opcode, length))
        elif length < 2**16:
            head = struct.pack(">BBH", 0x80 | opcode, 126, length)
        else:
            head = struct.pack(">BBQ", 0x80 | opcode, 127, length)
        self.transport.write(head + payload)

    def _close(self, code: int) -> None:
        if self._is_closed:
            return
        if self._is_accepted:
            self._write(_CLOSE, struct.pack(">H", code))
        self._end()

    def _end(self) -> None:
        self._put({"type": "websocket.disconnect", "code": _GONE})
        self._is_closed = True
        self.transport.close()


def _unmasked(payload: bytes, mask: bytes | bytearray) -> bytes:
    length = len(payload)
    key = (bytes(mask) * (length // 4 + 1))[:length]
    return (int.from_bytes(payload) ^ int.from_bytes(key)).to_bytes(length)
