"""WebSocket frames (RFC 6455), of clients and servers: reading, writing, and the answer to a client's key.

Pure: octets in, messages out. There are no extensions, and a message has at most 1 MiB.
"""

import base64
import hashlib
import os
import struct
from collections.abc import Iterator

from msgspec import Struct

from plugwright.errors import MalformedMessage, MessageTooLarge

__all__ = ["BINARY", "CLOSE", "PING", "PONG", "Message", "WebSocketReader", "accepted_key", "frame"]

CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10  # opcodes
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # of the RFC
_LARGEST = 2**20  # octets of a message
_LARGEST_CONTROL = 125


class Message(Struct, frozen=True):
    """Data, with the opcode BINARY for texts too, or a control frame."""

    opcode: int
    content: bytes


class WebSocketReader:
    """Messages of a peer, from pieces of any size; raises `MalformedMessage`."""

    def __init__(self, *, of_client: bool) -> None:
        self._is_masked = of_client  # a client must mask its frames, and a server must not
        self._buffer, self._fragments = bytearray(), bytearray()

    def feed(self, octets: bytes) -> None:
        self._buffer += octets

    def messages(self) -> Iterator[Message]:
        """The complete messages so far."""
        while (found := self._next_frame()) is not None:
            is_final, opcode, content = found
            if opcode in (CLOSE, PING, PONG):
                yield Message(opcode, content[:_LARGEST_CONTROL])
                continue
            if opcode not in (CONTINUED, TEXT, BINARY):
                raise MalformedMessage(f"a WebSocket frame has the unknown opcode {opcode}")
            self._fragments += content
            if len(self._fragments) > _LARGEST:
                raise MessageTooLarge(f"a WebSocket message must have at most {_LARGEST} bytes")
            if is_final:
                whole = bytes(self._fragments)
                self._fragments.clear()
                yield Message(BINARY, whole)

    def _next_frame(self) -> tuple[bool, int, bytes] | None:
        """None until there is a whole one."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        first, second = buffer[0], buffer[1]
        if bool(second & 0x80) != self._is_masked or first & 0x70:
            side = "client must be masked" if self._is_masked else "server must be unmasked"
            raise MalformedMessage(f"a WebSocket frame of a {side} and without extensions")
        length, start = second & 0x7F, 2
        if length > 125:
            start += 2 if length == 126 else 8
            if len(buffer) < start:
                return None
            length = int.from_bytes(buffer[2:start])
        if length > _LARGEST:
            raise MessageTooLarge(f"a WebSocket frame must have at most {_LARGEST} bytes, got {length}")
        content_at = start + 4 if self._is_masked else start
        end = content_at + length
        if len(buffer) < end:
            return None
        mask, content = bytes(buffer[start:content_at]), bytes(buffer[content_at:end])
        del buffer[:end]
        return bool(first & 0x80), first & 0x0F, _masked(content, mask) if mask else content


def frame(opcode: int, content: bytes, *, of_client: bool = False) -> bytes:
    """A whole message in one frame."""
    length, mask_bit = len(content), 0x80 if of_client else 0
    if length < 126:
        head = bytes((0x80 | opcode, mask_bit | length))
    elif length < 2**16:
        head = struct.pack(">BBH", 0x80 | opcode, mask_bit | 126, length)
    else:
        head = struct.pack(">BBQ", 0x80 | opcode, mask_bit | 127, length)
    if not of_client:
        return head + content
    mask = os.urandom(4)
    return head + mask + _masked(content, mask)


def accepted_key(key: bytes) -> str:
    """The value of Sec-WebSocket-Accept for a client's Sec-WebSocket-Key."""
    return base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest()).decode()


def _masked(content: bytes, mask: bytes) -> bytes:
    length = len(content)
    key = (mask * (length // 4 + 1))[:length]
    return (int.from_bytes(content) ^ int.from_bytes(key)).to_bytes(length)
