"""gRPC over unix sockets: servers, connections, and their end.

The services are in `device_plugin`, `registration` and `pod_resources`. A kubelet never closes its connections:
so they are ended here.
"""

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from plugwright.errors import MalformedMessage
from plugwright.protocol import grpc_errors
from plugwright.protocol.grpc_client import GrpcClientConnection
from plugwright.protocol.grpc_server import GrpcServerConnection, Handler
from plugwright.system import sockets
from plugwright.system.latest import Latest, Signal
from plugwright.system.sockets import SocketFile

__all__ = [
    "CONNECTIONS_LIMIT",
    "MESSAGE_LIMIT",
    "Connection",
    "SocketFile",
    "Streaming",
    "Unary",
    "connect",
    "serve",
]

Reply = TypeVar("Reply")

MESSAGE_LIMIT = 4 * 1024 * 1024  # Go's gRPC library accepts no larger message unless a limit is set
CONNECTIONS_LIMIT = 256  # beyond it the oldest without a call is closed
_FINISH_LIMIT = 0.25  # seconds for running calls to finish once serving ends
_HANG_UP_LIMIT = 0.25  # time for a peer without running calls to close its connection
_ENDING = "the plugin is stopping or registers again"


class Unary(msgspec.Struct, frozen=True):
    """A method with one reply: its path on the wire, and its handler; see `Handler`."""

    path: str
    reply: Callable[[bytes], Awaitable[bytes]]
    instant: Callable[[bytes], bytes | None] | None = None

    def handler(self) -> Handler:
        return Handler(unary=self.reply, instant=self.instant)


class Streaming(msgspec.Struct, frozen=True):
    """A method with a stream of replies."""

    path: str
    replies: Callable[[bytes], AsyncGenerator[bytes, None]]

    def handler(self) -> Handler:
        return Handler(streaming=self.replies)


Bound = Unary | Streaming


@asynccontextmanager
async def serve(
    path: Path,
    methods: Sequence[Bound],
    *,
    kept: bool = False,
    listening_on: Callable[[Path], socket.socket] | None = None,
    connected: Latest[int] | None = None,
) -> AsyncIterator[SocketFile]:
    """Serves `methods` on a socket of mode 0600; leaving ends every call and connection and removes the socket.

    Streams end immediately, other calls get a short time to finish. `kept` leaves the file, as a killed process does.
    `listening_on` replaces `sockets.listen`; `connected` gets the number of connections.
    """
    connections = _Connections(methods, connected)
    loop = asyncio.get_running_loop()
    listening = (listening_on or sockets.listen)(path)
    try:
        serving = SocketFile(path, path.lstat().st_ino)
        server = await _server(connections, listening)
    except BaseException:
        listening.close()
        path.unlink(missing_ok=True)
        raise
    try:
        await server.start_serving()  # apart: cancelled in between, the loop would keep a reader of a closed socket
        yield serving
    finally:
        if not kept:
            serving.unlink()
        loop.remove_reader(listening.fileno())  # no more connections
        try:
            await connections.end()
        finally:
            server.close()


async def _server(connections: "_Connections", listening: socket.socket) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 13):  # asyncio would remove the socket's file too, which must stay in some cases
        return await loop.create_unix_server(
            connections.accept, sock=listening, start_serving=False, cleanup_socket=False
        )
    return await loop.create_unix_server(connections.accept, sock=listening, start_serving=False)


class _Connections:
    """The connections of one server, oldest first."""

    def __init__(self, methods: Sequence[Bound], connected: Latest[int] | None = None) -> None:
        self._handlers = {bound.path: bound.handler() for bound in methods}
        self._open: dict[GrpcServerConnection, None] = {}
        self._connected = connected
        self._ended = Signal()  # a call or a connection has ended

    def accept(self) -> GrpcServerConnection:
        if len(self._open) >= CONNECTIONS_LIMIT:
            idle = next((connection for connection in self._open if not connection.streams), None)
            (idle or next(iter(self._open))).abort("too many connections")
        connection = GrpcServerConnection(self._handlers, self._changed)
        self._open[connection] = None
        if self._connected is not None:
            self._connected.publish(len(self._open))
        return connection

    async def end(self) -> None:
        for _ in range(2):  # a socket that was accepted becomes a connection
            await asyncio.sleep(0)
        try:
            self._stop(streaming_only=True)
            await self._until(lambda: not any(connection.calls for connection in self._open), _FINISH_LIMIT)
            self._stop(streaming_only=False)
            await self._until(lambda: not self._open, _HANG_UP_LIMIT)
        finally:  # close() would wait until the peer has read everything, which a hung peer never does
            for connection in list(self._open):
                if connection.transport is not None:
                    connection.transport.abort()

    def _stop(self, streaming_only: bool) -> None:
        for connection in list(self._open):
            connection.stop(_ENDING, streaming_only)

    async def _until(self, fact: Callable[[], bool], limit: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._ended.until(fact)

    def _changed(self, connection: GrpcServerConnection) -> None:
        if connection.is_over:
            self._open.pop(connection, None)
            if self._connected is not None:
                self._connected.publish_if_changed(len(self._open))
        self._ended.notify()


class Connection:
    """A client's end of a socket; `limit` is the largest accepted reply in bytes."""

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self._peer = path.name
        self._limit = limit
        self._path = str(sockets.check_path(path))
        self._client: GrpcClientConnection | None = None
        self._dialling = asyncio.Lock()

    async def dial(self) -> None:
        """Connects now, not with the first call."""
        with grpc_errors.from_peer(self._peer):
            await self._connected()

    async def call(
        self, path: str, request: bytes, decode: Callable[[bytes], Reply], timeout: float | None = None
    ) -> Reply:
        """The reply; `timeout` is sent to the peer and kept here too."""
        return self._decoded(decode, await self.call_encoded(path, request, timeout))

    async def call_encoded(self, path: str, message: bytes, timeout: float | None = None) -> bytes:
        """The same with arbitrary bytes, also invalid messages, for tests of a peer."""
        with grpc_errors.from_peer(self._peer):
            async with asyncio.timeout(timeout):
                client = await self._connected()
                return await client.unary(path, message, timeout)

    async def stream(self, path: str, request: bytes, decode: Callable[[bytes], Reply]) -> AsyncGenerator[Reply, None]:
        """Every reply until the peer ends the stream."""
        with grpc_errors.from_peer(self._peer):
            client = await self._connected()
            async with aclosing(client.stream(path, request)) as replies:
                async for reply in replies:
                    yield self._decoded(decode, reply)

    def _decoded(self, decode: Callable[[bytes], Reply], reply: bytes) -> Reply:
        try:
            return decode(reply)
        except MalformedMessage as error:
            text = f"{self._peer} did not answer with a message of this method: {error}"
            raise MalformedMessage(text) from error

    async def lost(self) -> None:
        """Returns at the end of the connection made by `dial` or a call."""
        if self._client is not None:
            await self._client.lost.until(bool)

    def close(self) -> None:
        if self._client is not None:
            self._client.abort("closed here")

    async def _connected(self) -> GrpcClientConnection:
        if self._client is not None and not self._client.closing:
            return self._client
        async with self._dialling:
            if self._client is None or self._client.closing:
                loop = asyncio.get_running_loop()
                _, self._client = await loop.create_unix_connection(
                    lambda: GrpcClientConnection(self._limit), self._path
                )
            return self._client


@asynccontextmanager
async def connect(path: Path, limit: int | None = None) -> AsyncIterator[Connection]:
    connection = Connection(path, limit)
    try:
        yield connection
    finally:
        connection.close()
