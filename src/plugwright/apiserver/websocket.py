"""WebSockets (RFC 6455) for the API server: takes over upgraded connections from uvicorn, and calls the application.

`kubectl exec`, `cp`, `attach` and `port-forward` use it; `kube.websocket_frames` implements frames. A client that sends
faster than the application reads is slowed down.
"""

import asyncio
import struct
from collections import deque
from http import HTTPStatus

from starlette.types import Message, Scope
from uvicorn import Config
from uvicorn.server import ServerState

from plugwright.errors import MalformedMessage, MessageTooLarge
from plugwright.kube import websocket_frames
from plugwright.kube.websocket_frames import BINARY, CLOSE, PONG, WebSocketReader

__all__ = ["WebSocketConnection"]

_MOST_WAITING = 64  # messages that the application has not read
_LARGEST_HEAD = 64 * 1024
_PROTOCOL_ERROR, _TOO_BIG, _GONE = 1002, 1009, 1006


class WebSocketConnection(asyncio.Protocol):
    """One connection, from its upgrade request to the end."""

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, object]) -> None:
        self.transport: asyncio.Transport
        self._application, self._server, self._state = config.loaded_app, server_state, app_state
        self._buffer = bytearray()
        self._key = b""
        self._reader = WebSocketReader(of_client=True)
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
        if self._key:
            self._reader.feed(data)
            self._read_messages()
            return
        self._buffer += data
        self._read_request()

    def _read_request(self) -> None:
        """Reads the request, which uvicorn has checked and passes on unchanged."""
        head, end, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        if not end:
            if len(head) > _LARGEST_HEAD:
                self.transport.abort()
            return
        request_line, *lines = head.split(b"\r\n")
        headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
        self._buffer.clear()
        self._reader.feed(rest)
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
                self._write(BINARY, message["bytes"])
            case "websocket.http.response.start":
                self._refuse(message)
            case "websocket.http.response.body":
                self.transport.write(message.get("body", b""))
                self._end()
            case "websocket.close":
                self._close(message.get("code", 1000))

    def _accept(self, subprotocol: str) -> None:
        lines = [b"HTTP/1.1 101 Switching Protocols", b"Upgrade: websocket", b"Connection: Upgrade"]
        lines.append(b"Sec-WebSocket-Accept: " + websocket_frames.accepted_key(self._key).encode())
        if subprotocol:
            lines.append(b"Sec-WebSocket-Protocol: " + subprotocol.encode())
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n")
        self._is_accepted = True
        self._read_messages()

    def _refuse(self, message: Message) -> None:
        status = HTTPStatus(message["status"])
        lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode(), b"Connection: close"]
        lines += [name + b": " + value for name, value in message.get("headers", ())]
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n")

    def _read_messages(self) -> None:
        if not self._is_accepted or self._is_closed:
            return
        try:
            for message in self._reader.messages():
                self._handle(message)
        except MessageTooLarge:
            self._close(_TOO_BIG)
        except MalformedMessage:
            self._close(_PROTOCOL_ERROR)

    def _handle(self, message: websocket_frames.Message) -> None:
        match message.opcode:
            case websocket_frames.BINARY:
                self._put({"type": "websocket.receive", "bytes": message.content})
            case websocket_frames.PING:
                self._write(PONG, message.content)
            case websocket_frames.CLOSE:
                self._put({"type": "websocket.disconnect", "code": 1000})
                self._close(1000)

    def _put(self, message: Message) -> None:
        if self._is_closed:
            return
        self._messages.append(message)
        self._arrived.set()
        if len(self._messages) >= _MOST_WAITING:
            self.transport.pause_reading()

    def _write(self, opcode: int, content: bytes) -> None:
        if not self._is_closed:
            self.transport.write(websocket_frames.frame(opcode, content))

    def _close(self, code: int) -> None:
        if self._is_closed:
            return
        if self._is_accepted:
            self._write(CLOSE, struct.pack(">H", code))
        self._end()

    def _end(self) -> None:
        self._put({"type": "websocket.disconnect", "code": _GONE})
        self._is_closed = True
        self.transport.close()
