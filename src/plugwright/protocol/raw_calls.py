"""Calls whose messages are bytes: what no generated message could send or would read.

For tests of a peer: messages that are malformed, too large or of another version, and methods that do not exist.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.encoding.base import CodecBase

from plugwright.protocol import grpc_errors
from plugwright.system import sockets

__all__ = ["DEVICE_PLUGIN_SERVICE", "RawClient", "connect"]

DEVICE_PLUGIN_SERVICE = "/v1beta1.DevicePlugin"


class _Bytes(CodecBase):
    __content_subtype__ = "proto"

    def encode(self, message: object, message_type: object) -> bytes:
        assert isinstance(message, bytes)
        return message

    def decode(self, data: bytes, message_type: object) -> bytes:
        return data


class RawClient:
    def __init__(self, path: Path) -> None:
        self._peer = path.name
        self._channel = Channel(path=str(sockets.check_path(path)), codec=_Bytes())

    async def call(self, method: str, message: bytes, timeout: float | None = None) -> bytes:
        """The reply to one message; the method is a path such as `/v1beta1.DevicePlugin/Allocate`."""
        procedure: UnaryUnaryMethod[bytes, bytes] = UnaryUnaryMethod(self._channel, method, bytes, bytes)
        with grpc_errors.from_peer(self._peer):
            return await procedure(message, timeout=timeout)

    def close(self) -> None:
        self._channel.close()


@asynccontextmanager
async def connect(path: Path) -> AsyncIterator[RawClient]:
    client = RawClient(path)
    try:
        yield client
    finally:
        client.close()
