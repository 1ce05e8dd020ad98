"""gRPC over unix sockets: servers, connections, and their end.

The services are in `device_plugin`, `registration` and `pod_resources`. grpclib serves them, but closes no connection
by itself, and a kubelet keeps its own open for ever: so connections are ended here.
"""

import asyncio
import socket
import sys
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from google.protobuf.message import DecodeError, Message
from grpclib.client import Channel, UnaryStreamMethod, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler, Status
from grpclib.encoding.proto import ProtoCodec
from grpclib.exceptions import GRPCError
from grpclib.protocol import EventsProcessor, H2Protocol
from grpclib.server import Server, Stream
from h2.events import Event as H2Event

from plugwright.errors import MalformedMessage
from plugwright.protocol import grpc_errors
from plugwright.system import sockets
from plugwright.system.sockets import SocketFile

__all__ = [
    "MESSAGE_LIMIT",
    "Connection",
    "Method",
    "SocketFile",
    "Streaming",
    "Unary",
    "connect",
    "serve",
]

Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)
_AnyStream = Stream[Any, Any]  # type: ignore[explicit-any,unused-ignore]  # grpclib's parameters check nothing here

MESSAGE_LIMIT = 4 * 1024 * 1024  # Go's gRPC library accepts no larger message unless a limit is set
_HANG_UP_LIMIT = 0.25  # how long a peer whose calls have ended may take to close its connection
_ENDING = "the plugin is stopping or registers again"


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Reply]):
    """One remote procedure: its path on the wire and its messages."""

    path: str
    request: type[Request]
    reply: type[Reply]


@dataclass(frozen=True, slots=True)
class Unary(Generic[Request, Reply]):
    """A method with one reply."""

    method: Method[Request, Reply]
    reply: Callable[[Request], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Streaming(Generic[Request, Reply]):
    """A method with a stream of replies; they are encoded before, once for all streams."""

    method: Method[Request, Reply]
    replies: Callable[[], AsyncGenerator[bytes, None]]


Bound = Unary[Any, Any] | Streaming[Any, Any]


@asynccontextmanager
async def serve(
    path: Path,
    methods: Sequence[Bound],
    *,
    kept: bool = False,
    listening_on: Callable[[Path], socket.socket] | None = None,
) -> AsyncIterator[SocketFile]:
    """Serves `methods` on a socket of mode 0600; leaving ends every call and connection and removes the socket.

    `kept` leaves the file, as a killed process does. `listening_on` replaces `sockets.listen`.
    """
    services = _Services(methods)
    loop = asyncio.get_running_loop()
    listening = (listening_on or sockets.listen)(path)
    try:
        serving = SocketFile(path, path.lstat().st_ino)
        server = await _server(services, listening)
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
            await services.end()
        finally:
            server.close()


async def _server(services: "_Services", listening: socket.socket) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 13):  # from here on asyncio removes the socket's file too, which may have to stay
        return await loop.create_unix_server(services.accept, sock=listening, start_serving=False, cleanup_socket=False)
    return await loop.create_unix_server(services.accept, sock=listening, start_serving=False)


class _Services(Server):
    """grpclib's server, with its calls and connections recorded so that it can end them."""

    def __init__(self, methods: Sequence[Bound]) -> None:
        super().__init__([self], codec=_Codec())
        self._mapping = _Methods({bound.method.path: self._handler(bound) for bound in methods})
        self._calls: set[asyncio.Task[object]] = set()
        self._connections: weakref.WeakSet[H2Protocol] = weakref.WeakSet()
        self._ending = False

    def __mapping__(self) -> Mapping[str, Handler]:
        return {}

    def accept(self) -> H2Protocol:
        made = self._protocol_factory()
        connection = _Connection(made.handler, made.config, made.h2_config)
        self._connections.add(connection)
        return connection

    async def end(self) -> None:
        for _ in range(2):  # a socket that was accepted becomes a connection
            await asyncio.sleep(0)
        self._ending = True
        for call in self._calls:
            call.cancel()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_HANG_UP_LIMIT):
                    # grpclib does not report when a connection is gone
                    while self._calls or any(map(_is_open, self._connections)):  # noqa: ASYNC110
                        await asyncio.sleep(0.001)
        finally:  # up to Python 3.11.2 a timeout in a task that is being cancelled raises CancelledError
            for connection in list(self._connections):
                _abort(connection)

    def _handler(self, bound: Bound) -> Handler:
        async def handle(stream: _AnyStream) -> None:
            with self._recorded(), grpc_errors.to_peer():
                request = await _receive(stream)
                if isinstance(bound, Unary):
                    await stream.send_message(await bound.reply(request))
                    return
                async with aclosing(bound.replies()) as replies:
                    async for reply in replies:
                        await stream.send_message(reply)

        cardinality = Cardinality.UNARY_UNARY if isinstance(bound, Unary) else Cardinality.UNARY_STREAM
        return Handler(handle, cardinality, bound.method.request, bound.method.reply)

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        call = asyncio.current_task()
        assert call is not None
        self._calls.add(call)
        try:
            yield
        except asyncio.CancelledError:
            if not self._ending:
                raise
            call.uncancel()
            raise GRPCError(Status.UNAVAILABLE, _ENDING) from None
        finally:
            self._calls.discard(call)


class _Methods(dict[str, Handler]):
    """Has a handler for unknown methods too: Go's library does not accept grpclib's own answer to those."""

    def get(self, path: str, default: object = None) -> Handler:
        return self[path] if path in self else Handler(_unimplemented, Cardinality.UNARY_UNARY, Message, Message)


async def _unimplemented(_: _AnyStream) -> None:
    raise GRPCError(Status.UNIMPLEMENTED, "no such method")


class _Connection(H2Protocol):
    """Closes on bytes that cannot be HTTP/2, and ignores frames of later versions of it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.processor = _Processor(self.handler, self.connection)

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except UnicodeDecodeError:
            self.processor.close("a header that is not ASCII")


class _Processor(EventsProcessor):
    def process(self, event: H2Event) -> None:
        if event.__class__ in getattr(self, "processors", {}):
            super().process(event)


class _Codec(ProtoCodec):
    """Sends messages that are encoded already as they are."""

    def encode(self, message: Any, message_type: Any) -> bytes:  # type: ignore[explicit-any,unused-ignore]
        return message if isinstance(message, bytes) else super().encode(message, message_type)


async def _receive(stream: _AnyStream) -> Message:
    try:
        request = await stream.recv_message()
    except (DecodeError, AssertionError, NotImplementedError) as error:  # of grpclib, for bad bytes
        raise MalformedMessage(f"not a message of this method: {error}") from error
    if request is None:
        raise MalformedMessage("the call ended without a message")
    return request  # type: ignore[no-any-return]


def _is_open(connection: H2Protocol) -> bool:
    return not hasattr(connection, "connection") or not connection.connection.is_closing()


def _abort(connection: H2Protocol) -> None:
    # close() would wait until everything written has been read, by a peer that may never read again
    transport = getattr(getattr(connection, "connection", None), "_transport", None)
    if transport is not None:
        transport.abort()


class _Channel(Channel):
    """Sends the authority `localhost`, as a kubelet does (2.1): some servers refuse one that is a path or a port."""

    def _get_authority(self, host: str, port: int) -> str:
        return "localhost"


class Connection:
    """A client's end of a socket; `limit` is the largest reply in bytes that it accepts."""

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self._peer = path.name
        self._limit = limit
        self._channel = _Channel(path=str(sockets.check_path(path)))

    async def dial(self) -> None:
        """Connects now, not with the first call."""
        with grpc_errors.from_peer(self._peer):
            await self._channel.__connect__()

    async def call(self, method: Method[Request, Reply], request: Request, timeout: float | None = None) -> Reply:
        """The reply; `timeout` is sent to the peer and kept here too."""
        procedure = UnaryUnaryMethod(self._channel, method.path, method.request, method.reply)
        with grpc_errors.from_peer(self._peer):
            return self._accepted(await procedure(request, timeout=timeout))

    async def stream(self, method: Method[Request, Reply], request: Request) -> AsyncGenerator[Reply, None]:
        """Every reply until the peer ends the stream."""
        procedure = UnaryStreamMethod(self._channel, method.path, method.request, method.reply)
        with grpc_errors.from_peer(self._peer):
            async with procedure.open() as stream:
                await stream.send_message(request, end=True)
                async for reply in stream:
                    yield self._accepted(reply)

    def close(self) -> None:
        self._channel.close()

    def _accepted(self, reply: Reply) -> Reply:
        size = reply.ByteSize() if self._limit is not None else 0
        if self._limit is not None and size > self._limit:  # in Go's words: grpclib has no limit of its own
            text = f"grpc: received message larger than max ({size} vs. {self._limit})"
            raise GRPCError(Status.RESOURCE_EXHAUSTED, text)
        return reply


@asynccontextmanager
async def connect(path: Path, limit: int | None = None) -> AsyncIterator[Connection]:
    connection = Connection(path, limit)
    try:
        yield connection
    finally:
        connection.close()
