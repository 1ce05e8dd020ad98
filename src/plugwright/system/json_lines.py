"""Control sockets: one JSON object per line in, `{"ok": …}` or `{"error": "…"}` per line out.

The socket's mode (0600) is the access control: any process with access to the socket can send every request.
"""

import asyncio
import json
import os
import socket
import stat
import struct
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from plugwright.errors import ConfigError, PeerGone, PeerRefused, PlugwrightError
from plugwright.system import sockets
from plugwright.system.concurrency import cancel
from plugwright.system.sockets import SocketFile

__all__ = ["Blocked", "Peer", "Request", "ask", "follow", "listen", "serving", "stream"]

Handler = Callable[["Request"], Awaitable[object]]  # an async iterator as the result is sent item by item

_LINE_LIMIT = 64 * 1024
_ANSWER_LIMIT = 16 * 2**20  # bytes of one answer to `stream`
_TIMEOUT = 15.0
_BLOCKED_TIMEOUT = 0.5
_ACCEPT_RETRY = 1.0
_CREDENTIALS = struct.Struct("3i")  # of SO_PEERCRED: pid, uid, gid


class Peer(msgspec.Struct, frozen=True):
    """The process behind the connection, as the kernel reports it; -1 if unknown."""

    uid: int = -1
    pid: int = -1  # 0: in a PID namespace that is not visible from here


class Request(dict[str, object]):
    """A JSON object, and who has sent it."""

    peer = Peer()


class Blocked(msgspec.Struct, frozen=True):
    """For a server with answers even while its event loop is blocked: a thread takes the connections then."""

    reason: Callable[[], str]  # why the loop is blocked, empty if it runs; can wait
    answer: Callable[[Request, str], object]  # to a request, with that reason; PlugwrightError to refuse it


def listen(path: Path, owners: Collection[int] | None = None) -> socket.socket:
    """Replaces a stale socket; ConfigError if there is another file, or another process listens.

    The directory must belong to one of `owners`, root and this user: its owner can replace the files in it.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    _check_directory(path.parent, {0, os.geteuid()} if owners is None else owners)
    if path.exists() and not path.is_socket():
        raise ConfigError(f"{path} exists and is not a socket")
    if sockets.is_listening(path):
        raise ConfigError(f"another process listens on {path}")
    path.unlink(missing_ok=True)
    return sockets.listen(path)


def _check_directory(directory: Path, owners: Collection[int]) -> None:
    """Checks a link and its target. In a directory such as /tmp, a file is its owner's (sticky)."""
    for status in (directory.lstat(), directory.stat()):
        kind = "link" if stat.S_ISLNK(status.st_mode) else "directory"
        if status.st_uid not in owners:
            raise ConfigError(f"{kind} {directory} must belong to root or to this user, got user {status.st_uid}")
        if kind == "directory" and status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            mode = stat.S_IMODE(status.st_mode)
            raise ConfigError(f"directory {directory} must not be world-writable, got mode {mode:04o}")


@asynccontextmanager
async def serving(
    path: Path, listening: socket.socket, handle: Handler, blocked: Blocked | None = None
) -> AsyncIterator[None]:
    """Answers requests while inside; leaving ends every connection and removes the socket file if it is still ours."""
    file = SocketFile.of(path)
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            # Cancelled when the server ends: asyncio would log the cancellation, as nothing awaits this task.
            with suppress(ConnectionError, asyncio.CancelledError):
                await _handle_lines(handle, reader, writer)
        finally:
            connections.discard(task)
            writer.transport.abort()

    async def taken(connection: socket.socket) -> None:
        await connected(*await asyncio.open_unix_connection(sock=connection, limit=_LINE_LIMIT))

    async with AsyncExitStack() as stack:
        stack.push_async_callback(_end_all, connections)
        stack.callback(file.unlink)  # also if the thread cannot be started
        if blocked is None:
            server = await asyncio.start_unix_server(connected, sock=listening, limit=_LINE_LIMIT)
            stack.callback(server.close)
        else:
            await stack.enter_async_context(_accepting(listening, taken, blocked, connections))
        stack.callback(file.unlink)  # before it is closed, so that no client finds a socket that refuses connections
        yield


async def _end_all(connections: "set[asyncio.Task[None]]") -> None:
    await cancel(*connections)


@asynccontextmanager
async def _accepting(
    listening: socket.socket,
    taken: Callable[[socket.socket], Coroutine[object, object, None]],
    blocked: Blocked,
    tasks: "set[asyncio.Task[None]]",
) -> AsyncIterator[None]:
    """Accepts connections in a sleeping thread, and passes them to the event loop if the loop runs."""
    loop, ended, stopping = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def hand_over(connection: socket.socket) -> None:
        task = loop.create_task(taken(connection))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def accept() -> None:
        while not stopping.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:  # shut down, or no descriptor left
                stopping.wait(_ACCEPT_RETRY)
                continue
            reason = blocked.reason()
            if reason:
                _answer_blocked(connection, blocked, reason)
            else:
                loop.call_soon_threadsafe(hand_over, connection)
        loop.call_soon_threadsafe(ended.set)

    listening.setblocking(True)
    try:
        threading.Thread(target=accept, name="plugwright-control", daemon=True).start()
    except RuntimeError as error:
        listening.close()
        raise ConfigError(f"no thread for the control socket: {error}") from error
    try:
        yield
    finally:
        stopping.set()
        listening.shutdown(socket.SHUT_RDWR)  # wakes the thread, which sleeps in accept
        try:
            await ended.wait()  # soon: the loop runs
        finally:
            listening.close()


def _answer_blocked(connection: socket.socket, blocked: Blocked, reason: str) -> None:
    """One request, in little time: the next connection waits for it."""
    with connection, suppress(OSError):
        connection.settimeout(_BLOCKED_TIMEOUT)
        with connection.makefile("rb") as stream:
            line = stream.readline(_LINE_LIMIT)
        try:
            answer = _encoded({"ok": blocked.answer(_request(line, connection), reason)})
        except Exception as error:  # noqa: BLE001  whatever it is, the next connection is answered
            answer = _encoded({"error": str(error)})
        connection.sendall(answer)


async def _handle_lines(handle: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async for line in _lines(reader):
        try:
            result = await handle(_request(line, writer.get_extra_info("socket")))
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
    writer.write(_encoded(answer))
    await writer.drain()


def _encoded(answer: Mapping[str, object]) -> bytes:
    return json.dumps(answer, default=str).encode() + b"\n"


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    with suppress(ValueError):  # a line beyond the limit ends the connection
        while line := await reader.readline():
            yield line


def _request(line: bytes, connection: socket.socket) -> Request:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError("a request must be a JSON object")
    request = Request(content)
    with suppress(OSError):
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(credentials)
        request.peer = Peer(uid, pid)
    return request


def ask(path: Path, request: Mapping[str, object], timeout: float = _TIMEOUT) -> Any:
    """The one answer to `request`. FileNotFoundError or ConnectionRefusedError if no process listens."""
    return next(_answers(path, request, timeout))


def follow(path: Path, request: Mapping[str, object]) -> Iterator[Any]:
    """Answers for as long as the server sends them."""
    return _answers(path, request, None)


async def stream(path: Path, request: Mapping[str, object]) -> AsyncGenerator[Any, None]:
    """As `follow`, for programs with an event loop; to be closed by `contextlib.aclosing`."""
    reader, writer = await asyncio.open_unix_connection(path, limit=_ANSWER_LIMIT)
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        async for line in _lines(reader):
            yield _answer(line)
    finally:
        writer.transport.abort()
    raise PeerGone(f"the daemon on {path} closed the connection")


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
