"""Methods whose messages are protobuf's own: what other people's plugins and kubelets are made with."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import DecodeError, Message

from plugwright.errors import MalformedMessage
from plugwright.protocol import transport

__all__ = ["Method", "call", "streaming", "unary"]

Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Reply]):
    path: str
    request: type[Request]
    reply: type[Reply]


def unary(
    method: Method[Request, Reply], reply: Callable[[Request], Awaitable[Reply | bytes | object]]
) -> transport.Unary:
    """`reply` may give bytes, which pass as they are."""

    async def answer(message: bytes) -> bytes:
        answered = await reply(_decoded(method.request, message))
        assert isinstance(answered, bytes | Message)
        return answered if isinstance(answered, bytes) else answered.SerializeToString()

    return transport.Unary(method.path, answer)


def streaming(
    method: Method[Request, Reply], replies: Callable[[], AsyncGenerator[bytes, None]]
) -> transport.Streaming:
    return transport.Streaming(method.path, lambda _: replies())


def _decoded(kind: type[Request], message: bytes) -> Request:
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise MalformedMessage(f"not a message of this method: {error}") from error


async def call(connection: transport.Connection, method: Method[Request, Reply], request: Request) -> Reply:
    return await connection.call(method.path, request.SerializeToString(), method.reply.FromString)
