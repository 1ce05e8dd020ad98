"""`exec` and `attach`: the WebSocket between a client and a process in a container.

Clients offer `v5.channel.k8s.io` or its predecessors: the first octet of each message identifies a stream. The end of
the process is a Status on the error stream. The `CommandRunner` decides which process runs, and where.
"""

import asyncio
from collections.abc import Mapping
from typing import Protocol

import msgspec
from msgspec import Struct
from starlette.datastructures import QueryParams
from starlette.types import Message, Receive, Scope, Send

from plugwright.apiserver.errors import bad_request, from_cluster_error, status_object
from plugwright.apiserver.registry import ResourcePath
from plugwright.apiserver.store import Object
from plugwright.errors import ClusterError, StatusError

__all__ = [
    "NO_COMMANDS",
    "STREAMED_SUBRESOURCES",
    "CommandOptions",
    "CommandRunner",
    "CommandStreams",
    "Connection",
    "read_options",
    "serve",
]

_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE, _CLOSED = 0, 1, 2, 3, 4, 255
_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_COMMANDS = {"attach": "attach", "exec": "exec", "portforward": "port-forward"}
_MOST_WORDS, _LARGEST_SIZE = 4096, 10_000
_MOST_INPUT = 16  # unread messages of input

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
STREAMED_SUBRESOURCES = tuple(_COMMANDS)  # which need a WebSocket


class CommandOptions(Struct, frozen=True):
    """The options in the query: the container, the command, and the connected streams."""

    container: str
    command: tuple[str, ...] = ()
    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False


class CommandStreams:
    """The process's side: its input in pieces, an empty one at its end; its output; the sizes of its terminal."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.input: asyncio.Queue[bytes] = asyncio.Queue(_MOST_INPUT)
        self.sizes: asyncio.Queue[tuple[int, int]] = asyncio.Queue(1)  # columns and rows

    async def write(self, data: bytes, is_error: bool = False) -> None:
        await self.send(_STDERR if is_error else _STDOUT, data)

    async def send(self, channel: int, data: bytes) -> None:
        await self._send({"type": "websocket.send", "bytes": bytes((channel,)) + data})

    async def receive(self, message: bytes) -> None:
        """Handles one message of the client; ignores meaningless ones."""
        channel, data = message[:1], message[1:]
        if channel == bytes((_STDIN,)) and data:
            await self.input.put(data)
        elif channel == bytes((_CLOSED,)) and data == bytes((_STDIN,)):
            await self.input.put(b"")
        elif channel == bytes((_RESIZE,)):
            self._resize(data)

    def _resize(self, data: bytes) -> None:
        try:
            size = msgspec.json.decode(data, type=dict[str, int])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        columns, rows = size.get("Width", 0), size.get("Height", 0)
        if 0 < columns <= _LARGEST_SIZE and 0 < rows <= _LARGEST_SIZE:
            if self.sizes.full():
                self.sizes.get_nowait()
            self.sizes.put_nowait((columns, rows))


class CommandRunner(Protocol):
    """Runs commands in containers, attaches to them, and connects to their ports; all raise `StatusError`."""

    async def execute(self, path: ResourcePath, options: CommandOptions, streams: CommandStreams) -> int:
        """Runs a new process in the container; returns its exit code."""
        ...

    async def attach(self, path: ResourcePath, options: CommandOptions, streams: CommandStreams) -> int: ...

    async def connect(self, path: ResourcePath, port: int) -> Connection:
        """A connection to a TCP port of the pod."""
        ...

    def check(self, path: ResourcePath, options: CommandOptions) -> None:
        """Raises `StatusError` for a container in which nothing can be run."""
        ...


class _NoCommands:
    """Containers that are not run: rejects every command."""

    async def execute(self, path: ResourcePath, options: CommandOptions, streams: CommandStreams) -> int:
        raise self._refused(path)

    async def attach(self, path: ResourcePath, options: CommandOptions, streams: CommandStreams) -> int:
        raise self._refused(path)

    async def connect(self, path: ResourcePath, port: int) -> Connection:
        raise self._refused(path)

    def check(self, path: ResourcePath, options: CommandOptions) -> None:
        raise self._refused(path)

    def _refused(self, path: ResourcePath) -> StatusError:
        text = "no container runs without --run: use `plugwright up --run`, or `plugwright join` with a real API server"
        return bad_request(f"plugwright does not emulate {_COMMANDS[path.subresource]} here: {text}")


NO_COMMANDS = _NoCommands()


def read_options(query: Mapping[str, str] | QueryParams) -> CommandOptions:
    parameters = QueryParams(query)
    command = tuple(parameters.getlist("command"))
    if len(command) > _MOST_WORDS:
        raise bad_request(f"a command must have at most {_MOST_WORDS} words, got {len(command)}")
    if any("\0" in word for word in command):
        raise bad_request("a command must not contain NUL")
    flags = {name: parameters.get(name, "") in ("1", "true") for name in ("stdin", "stdout", "stderr", "tty")}
    return CommandOptions(parameters.get("container", ""), command, **flags)


async def serve(scope: Scope, receive: Receive, send: Send, path: ResourcePath, runner: CommandRunner) -> None:
    """Accepts the WebSocket, runs the command, and reports its end."""
    options = read_options(QueryParams(scope["query_string"]))
    runner.check(path, options)
    protocol = next((name for name in _PROTOCOLS if name in scope["subprotocols"]), None)
    if protocol is None:
        raise bad_request(f"unable to upgrade: the client must offer {' or '.join(_PROTOCOLS)}")
    await receive()
    await send({"type": "websocket.accept", "subprotocol": protocol})
    streams = CommandStreams(send)
    await streams.send(_STDOUT, b"")  # tells the client that the connection is established
    work = runner.execute if path.subresource == "exec" else runner.attach
    running = asyncio.ensure_future(work(path, options, streams))
    reading = asyncio.ensure_future(_read(receive, streams))
    try:
        await asyncio.wait((running, reading), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await streams.send(_ERROR, msgspec.json.encode(_outcome(running)))
    finally:
        for task in (running, reading):
            task.cancel()
        await asyncio.wait((running, reading))
    await send({"type": "websocket.close", "code": 1000})


async def _read(receive: Receive, streams: CommandStreams) -> None:
    """Reads until the client disconnects."""
    while True:
        message: Message = await receive()
        if message["type"] == "websocket.disconnect":
            return
        await streams.receive(message.get("bytes") or b"")


def _outcome(running: "asyncio.Future[int]") -> Object:
    """The Status of an ended process."""
    try:
        code = running.result()
    except ClusterError as error:
        return status_object(from_cluster_error(error))
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    text = f"command terminated with non-zero exit code: exit status {code}"
    details = {"causes": [{"reason": "ExitCode", "message": str(code)}]}
    return status_object(StatusError(500, "NonZeroExitCode", text, details))
