"""Control sockets: one JSON object per line in, `{"ok": …}` or `{"error": "…"}` per line out.

The socket's mode (0600) is the access control: a process that may open it may send every request.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from plugwright.errors import ConfigError, PeerGone, PeerRefused, PlugwrightError
from plugwright.system import sockets
from plugwright.system.concurrency import cancel
from plugwright.system.sockets import SocketFile

__all__ = ["Request", "ask", "follow", "listen", "serving"]

Request = dict[str, object]
Handler = Callable[[Request], Awaitable[object]]  # an async iterator as the result is sent item by item

_LINE_LIMIT = 64 * 1024
_TIMEOUT = 15.0


def listen(path: Path) -> socket.socket:
    """Replaces a stale socket; ConfigError where there is another file, or another process listens."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if path.exists() and not path.is_socket():
        raise ConfigError(f"{path} exists and is not a socket")
    if sockets.is_listening(path):
        raise ConfigError(f"another process listens on {path}")
    path.unlink(missing_ok=True)
    return sockets.listen(path)


@asynccontextmanager
async def serving(path: Path, listening: socket.socket, handle: Handler) -> AsyncIterator[None]:
    """Answers requests while inside; leaving ends every connection and removes the socket file if it is still ours."""
    file = SocketFile.of(path)
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            # Cancelled when the server ends: asyncio would log that, as nothing awaits this task.
            with suppress(ConnectionError, asyncio.CancelledError):
                await _handle_lines(handle, reader, writer)
        finally:
            connections.discard(task)
            writer.transport.abort()

    server = await asyncio.start_unix_server(connected, sock=listening, limit=_LINE_LIMIT)
    try:
        yield
    finally:
        file.unlink()
        server.close()
        await cancel(*connections)


async def _handle_lines(handle: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async for line in _lines(reader):
        try:
            result = await handle(_request(line))
        except PlugwrightError as error:
            await _send(writer, {"error": str(error)})
            continue
        if isinstance(result, AsyncIterator):
            await _stream(result, reader, writer)
            return
        await _send(writer, {"ok": result})
    writer.close()
    await writer.wait_closed()  # the last answer is sent before the connection is aborted


async def _stream(items: AsyncIterator[object], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends every item until the client hangs up."""

    async def send_all() -> None:
        with suppress(ConnectionError):
            async for item in items:
                await _send(writer, {"ok": item})

    sending = asyncio.create_task(send_all())
    try:
        await reader.read()
    finally:
        await cancel(sending)


async def _send(writer: asyncio.StreamWriter, answer: Mapping[str, object]) -> None:
    writer.write(json.dumps(answer, default=str).encode() + b"\n")  # a plugin's attributes may hold anything
    await writer.drain()


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    with suppress(ValueError):  # a line beyond the limit ends the connection
        while line := await reader.readline():
            yield line


def _request(line: bytes) -> Request:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not JSON: {error}") from error
    if not isinstance(request, dict):
        raise ConfigError("a request must be a JSON object")
    return request


def ask(path: Path, request: Mapping[str, object], timeout: float = _TIMEOUT) -> Any:
    """The one answer to `request`. FileNotFoundError or ConnectionRefusedError where no process listens."""
    return next(_answers(path, request, timeout))


def follow(path: Path, request: Mapping[str, object]) -> Iterator[Any]:
    """Answers for as long as the server sends them."""
    return _answers(path, request, None)


def _answers(path: Path, request: Mapping[str, object], timeout: float | None) -> Iterator[Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(str(path))
        with connection.makefile("rwb") as stream:
            stream.write(json.dumps(request).encode() + b"\n")
            stream.flush()
            try:
                for line in stream:
                    yield _answer(line)
            except TimeoutError as error:
                raise PeerGone(f"the daemon on {path} did not answer within {timeout:g} s") from error
    raise PeerGone(f"the daemon on {path} closed the connection")


def _answer(line: bytes) -> Any:
    answer = json.loads(line)
    if "error" in answer:
        raise PeerRefused("", answer["error"])
    return answer["ok"]
