"""A command in a container, by the API server's exec: WebSocket frames, each with a channel number, as kubectl uses.

All functions block. The command gets no standard input. Its output is read line by line with limits.
"""

import base64
import json
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from io import BufferedReader
from urllib.parse import urlencode

import msgspec

from plugwright.errors import MalformedMessage, PeerGone, PeerRefused
from plugwright.kube.access import ClusterAccess, HttpConnection
from plugwright.kube.answers import read_answer, refusal
from plugwright.kube.api_client import segment
from plugwright.kube.websocket_frames import BINARY, CLOSE, PING, PONG, WebSocketReader, accepted_key, frame
from plugwright.text import clean

__all__ = ["ExecTarget", "exec_lines"]

_PROTOCOLS = "v5.channel.k8s.io, v4.channel.k8s.io"
_OUT, _ERR, _STATUS = 1, 2, 3  # channels
_READ_SIZE = 2**16
_LINE_LIMIT = 2**26  # bytes of one line of the output
_ERROR_LIMIT = 2**16  # bytes that are kept of the standard error and of the status


class ExecTarget(msgspec.Struct, frozen=True):
    namespace: str
    pod: str
    name: str


def exec_lines(
    access: ClusterAccess, container: ExecTarget, command: Sequence[str], timeout: float | None
) -> Iterator[bytes]:
    """The command's lines, while it runs; `PeerRefused` with its error output if it fails.

    `timeout` is the longest silence in seconds; None for a command running until the caller closes the iterator.
    """
    access.login()
    query = [("command", word) for word in command]
    query += [("container", container.name), ("stdout", "true"), ("stderr", "true")]
    path = f"/api/v1/namespaces/{segment(container.namespace)}/pods/{segment(container.pod)}/exec?{urlencode(query)}"
    with closing(_Session(access, path, timeout)) as session:
        yield from session.lines()


class _Session:
    def __init__(self, access: ClusterAccess, path: str, timeout: float | None) -> None:
        self._access = access
        self._connection = HttpConnection(access, 30.0)
        self._errors, self._status = bytearray(), bytearray()
        try:
            self._stream = self._upgraded(path)
            if self._connection.transport is not None:
                self._connection.transport.settimeout(timeout)
        except BaseException:
            self._connection.close()
            raise

    def _upgraded(self, path: str) -> BufferedReader:
        key = base64.b64encode(os.urandom(16))
        headers = [("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13"), ("Sec-WebSocket-Key", key.decode())]
        answer = self._access.upgrade(self._connection, path, [*headers, ("Sec-WebSocket-Protocol", _PROTOCOLS)])
        if answer.status == 401:
            self._access.rejected()
        if answer.status != 101:
            raise refusal(answer.status, read_answer(answer).decode(errors="replace"))
        if answer.headers.get("Sec-WebSocket-Accept", "") != accepted_key(key):
            raise MalformedMessage("the API server did not accept the WebSocket as RFC 6455 says")
        assert isinstance(answer.fp, BufferedReader)  # which can have read the first frames already
        return answer.fp

    def close(self) -> None:
        """The kubelet ends the command when the connection does."""
        with suppress(OSError):
            self._send(CLOSE, struct.pack("!H", 1000))
        self._connection.close()

    def lines(self) -> Iterator[bytes]:
        rest = bytearray()
        try:
            for channel, content in self._messages():
                if channel == _OUT:
                    *whole, last = (rest + content).split(b"\n")
                    yield from map(bytes, whole)
                    rest = bytearray(last)
                    if len(rest) > _LINE_LIMIT:
                        raise MalformedMessage(f"a line of the output must have at most {_LINE_LIMIT} bytes")
                elif channel in (_ERR, _STATUS):
                    kept = self._errors if channel == _ERR else self._status
                    kept += content[: _ERROR_LIMIT - len(kept)]
        except (OSError, ValueError) as error:
            raise self._access.gone(error) from error
        if rest:
            yield bytes(rest)
        self._check_status()

    def _check_status(self) -> None:
        try:
            status = json.loads(self._status)
            succeeded, message = status.get("status") == "Success", str(status.get("message") or "")
        except (ValueError, AttributeError, RecursionError):
            raise PeerGone("the API server ended the command's connection without its status") from None
        if not succeeded:
            errors = self._errors.decode(errors="replace").strip()
            raise PeerRefused(str(status.get("reason") or ""), clean(errors or message or "the command failed"))

    def _messages(self) -> Iterator[tuple[int, bytes]]:
        """Channel and content, until the server closes the connection."""
        reader = WebSocketReader(of_client=False)
        while octets := self._stream.read1(_READ_SIZE):
            reader.feed(octets)
            for message in reader.messages():
                if message.opcode == CLOSE:
                    return
                if message.opcode == PING:
                    self._send(PONG, message.content)
                elif message.opcode == BINARY and message.content:
                    yield message.content[0], message.content[1:]
        raise PeerGone("the API server ended the connection of the command")

    def _send(self, opcode: int, content: bytes) -> None:
        if self._connection.sock is not None:
            self._connection.sock.sendall(frame(opcode, content, of_client=True))
