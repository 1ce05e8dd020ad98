"""`kubectl port-forward`: connections to the ports of a pod, as SPDY streams in the messages of one WebSocket.

kubectl (1.31 and newer) offers the protocol `SPDY/3.1+portforward.k8s.io`. For each connection it opens two streams
with the same request id: one for the data, and one for the server's error. The `CommandRunner` connects.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from starlette.types import Message, Receive, Scope, Send

from plugwright.apiserver.errors import bad_request
from plugwright.apiserver.registry import ResourcePath
from plugwright.apiserver.remote_commands import CommandOptions, CommandRunner, Connection
from plugwright.apiserver.spdy import (
    SpdyPing,
    SpdyReader,
    SpdyWriter,
    StreamData,
    StreamEvent,
    StreamOpened,
    StreamReset,
)
from plugwright.errors import ClusterError, MalformedMessage

__all__ = ["serve"]

_PROTOCOL = "SPDY/3.1+portforward.k8s.io"
_PIECE = 2**15
_MOST_STREAMS, _MOST_WAITING = 1000, 16  # streams of a client; pieces that a connection has not read

Connect = Callable[[int], Awaitable[Connection]]


async def serve(scope: Scope, receive: Receive, send: Send, path: ResourcePath, runner: CommandRunner) -> None:
    """Accepts the WebSocket and forwards connections until the client disconnects."""
    runner.check(path, CommandOptions(""))
    if _PROTOCOL not in scope["subprotocols"]:
        raise bad_request(f"unable to upgrade: the client must offer {_PROTOCOL}, as kubectl 1.31 and newer do")
    await receive()
    await send({"type": "websocket.accept", "subprotocol": _PROTOCOL})
    forwarding = _Forwarding(send, partial(runner.connect, path))
    try:
        await forwarding.run(receive)
    finally:
        await forwarding.end()
    await send({"type": "websocket.close", "code": 1000})


class _ForwardedConnection:
    """A connection to one port: its two streams, the client's pending data, and the task that copies."""

    def __init__(self, stream: int, error_stream: int, port: int) -> None:
        self.stream, self.error_stream, self.port = stream, error_stream, port
        self.pieces: asyncio.Queue[bytes] = asyncio.Queue(_MOST_WAITING)  # an empty piece is the end
        self.task: asyncio.Task[None]


class _Forwarding:
    """The streams of one client."""

    def __init__(self, send: Send, connect: Connect) -> None:
        self._send, self._connect = send, connect
        self._writer = SpdyWriter()
        self._error_streams: dict[str, int] = {}  # by request id, while there is no stream for data
        self._connections: dict[int, _ForwardedConnection] = {}  # by the stream for data

    async def run(self, receive: Receive) -> None:
        """Runs until the client disconnects or breaks the protocol."""
        reader = SpdyReader()
        with suppress(MalformedMessage):
            while (message := await receive())["type"] != "websocket.disconnect":
                await self._handle_all(reader, message)

    async def end(self) -> None:
        tasks = [connection.task for connection in self._connections.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _handle_all(self, reader: SpdyReader, message: Message) -> None:
        for event in reader.feed(message.get("bytes") or b""):
            await self._handle(event)

    async def _handle(self, event: StreamEvent) -> None:
        match event:
            case StreamOpened():
                await self._open(event)
            case StreamData(stream=stream) if stream in self._connections:
                connection = self._connections[stream]
                if event.content:
                    await connection.pieces.put(event.content)
                if event.is_ended:
                    await connection.pieces.put(b"")
            case StreamReset(stream=stream) if stream in self._connections:
                connection = self._connections[stream]
                connection.task.cancel()
                await self._write(self._writer.data(connection.error_stream, b"", is_ended=True))
            case SpdyPing():
                await self._write(self._writer.pong(event))

    async def _open(self, opened: StreamOpened) -> None:
        request, kind = opened.headers.get("requestid", ""), opened.headers.get("streamtype", "")
        port = opened.headers.get("port", "")
        is_valid = port.isdecimal() and 0 < int(port) < 2**16 and len(self._connections) < _MOST_STREAMS
        if kind == "error" and is_valid and len(self._error_streams) < _MOST_STREAMS:
            self._error_streams[request] = opened.stream
        elif kind == "data" and is_valid and request in self._error_streams:
            connection = _ForwardedConnection(opened.stream, self._error_streams.pop(request), int(port))
            self._connections[opened.stream] = connection
            connection.task = asyncio.ensure_future(self._forward(connection))
            connection.task.add_done_callback(lambda _: self._forget(connection))
        else:
            await self._write(self._writer.reset(opened.stream))
            return
        await self._write(self._writer.accepted(opened.stream))

    def _forget(self, connection: _ForwardedConnection) -> None:
        del self._connections[connection.stream]
        while not connection.pieces.empty():  # the reader of the client's frames can be waiting for room
            connection.pieces.get_nowait()

    async def _forward(self, connection: _ForwardedConnection) -> None:
        """Forwards until the pod's side closes the connection."""
        failure = ""
        try:
            reader, writer = await self._connect(connection.port)
            try:
                await self._copy(connection, reader, writer)
            finally:
                writer.close()
        except ClusterError as error:
            failure = str(error)
        except OSError as error:
            failure = f"error forwarding port {connection.port}: {error.strerror or error}"
        await self._write(self._writer.data(connection.stream, b"", is_ended=True))
        await self._write(self._writer.data(connection.error_stream, failure.encode(), is_ended=True))

    async def _copy(
        self, connection: _ForwardedConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        feeding = asyncio.ensure_future(_feed(connection.pieces, writer))
        try:
            while piece := await reader.read(_PIECE):
                await self._write(self._writer.data(connection.stream, piece))
        finally:
            feeding.cancel()

    async def _write(self, frame: bytes) -> None:
        await self._send({"type": "websocket.send", "bytes": frame})


async def _feed(pieces: "asyncio.Queue[bytes]", writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # the other direction reports the lost connection
        while piece := await pieces.get():
            writer.write(piece)
            await writer.drain()
        writer.write_eof()
    while True:  # a client can continue to send
        await pieces.get()
