"""Commands in the containers of a node that runs them as processes: what `kubectl exec` starts.

A command sees what its container was started with: environment, mounts, device nodes, and the working directory. It is
a process of its own beside the container's, and ends with its client.
"""

import asyncio
import fcntl
import json
import os
import struct
import sys
import termios
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from plugwright.apiserver.remote_commands import CommandOptions, CommandStreams
from plugwright.cluster.nodes.pod_processes import Launch
from plugwright.kubelet import sandbox
from plugwright.kubelet.processes import container_environment, granted_paths
from plugwright.system import processes

__all__ = ["run_command"]

_GRACE = 2.0  # seconds from SIGTERM to SIGKILL once the client has gone
_PIECE = 2**15
_SIGNALLED = 128

Write = Callable[[bytes], Awaitable[None]]


async def run_command(launch: Launch, host: str, options: CommandOptions, streams: CommandStreams) -> int:
    """The exit code; 126 or 127, as from a shell, for a command that cannot be started."""
    environment = container_environment(host, launch.options)
    environment["PATH"] = f"{environment.get('PATH', os.defpath)}:{Path(sys.executable).parent}"
    if options.tty:
        environment.setdefault("TERM", "xterm")
    paths = json.dumps([*granted_paths(launch.options), *launch.paths])
    words = (sys.executable, "-I", "-S", sandbox.__file__, paths, launch.directory, *options.command)
    with ExitStack() as files:
        if options.tty:
            return await _in_terminal(words, environment, streams, files)
        return await _with_pipes(words, environment, options, streams)


async def _with_pipes(
    words: Sequence[str], environment: dict[str, str], options: CommandOptions, streams: CommandStreams
) -> int:
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE if options.stdin else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    feeding = asyncio.ensure_future(_feed(streams, process.stdin)) if process.stdin else None
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_copy_output(process.stdout, streams, options.stdout))
            tasks.create_task(_copy(process.stderr, partial(streams.write, is_error=True), options.stderr))
        return _code(await process.wait())
    finally:
        if feeding:
            feeding.cancel()
        await processes.end(process, _GRACE)


async def _feed(streams: CommandStreams, stdin: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, BrokenPipeError):
        while data := await streams.input.get():
            stdin.write(data)
            await stdin.drain()
    stdin.close()


async def _copy_output(reader: asyncio.StreamReader, streams: CommandStreams, is_wanted: bool) -> None:
    """Without the first line, in which the sandbox says what it could not do."""
    first = await reader.readline()
    if problems := _problems(first):
        await streams.write(problems, is_error=True)
    await _copy(reader, streams.write, is_wanted)


async def _copy(reader: asyncio.StreamReader, write: Write, is_wanted: bool) -> None:
    while data := await reader.read(_PIECE):
        if is_wanted:
            await write(data)


def _problems(line: bytes) -> bytes:
    try:
        found = json.loads(line)
    except ValueError:
        return line
    return "".join(f"plugwright: {text}\n" for text, _ in found).encode()


async def _in_terminal(
    words: Sequence[str], environment: dict[str, str], streams: CommandStreams, files: ExitStack
) -> int:
    ours, theirs = os.openpty()
    files.callback(os.close, ours)
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
            preexec_fn=partial(fcntl.ioctl, theirs, termios.TIOCSCTTY, 0),
        )
    finally:
        os.close(theirs)
    os.set_blocking(ours, False)
    try:
        async with asyncio.TaskGroup() as tasks:
            helpers = [tasks.create_task(_type(ours, streams)), tasks.create_task(_resize(ours, streams))]
            await _show(ours, streams)
            for helper in helpers:
                helper.cancel()
        return _code(await process.wait())
    finally:
        await processes.end(process, _GRACE)


async def _type(terminal: int, streams: CommandStreams) -> None:
    loop = asyncio.get_running_loop()
    while True:
        data = await streams.input.get() or b"\x04"  # the end of input, as typed
        while data:
            try:
                data = data[os.write(terminal, data) :]
            except BlockingIOError:
                with _ready(loop.add_writer, loop.remove_writer, terminal) as ready:
                    await ready.wait()


async def _resize(terminal: int, streams: CommandStreams) -> None:
    while True:
        columns, rows = await streams.sizes.get()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


async def _show(terminal: int, streams: CommandStreams) -> None:
    """Until the last process has closed the terminal, which reads as an error."""
    loop, first = asyncio.get_running_loop(), b""
    is_first = True
    with _ready(loop.add_reader, loop.remove_reader, terminal) as ready:
        while True:
            await ready.wait()
            ready.clear()
            try:
                data = os.read(terminal, _PIECE)
            except BlockingIOError:
                continue
            except OSError:
                return
            if not data:
                return
            if is_first:
                first += data
                line, end, data = first.partition(b"\n")
                if not end:
                    continue
                echo, bracket, found = line.partition(b"[")  # of what was typed before the sandbox wrote
                is_first, data = False, echo + _problems(bracket + found) + data
            if data:
                await streams.write(data)


@contextmanager
def _ready(add: Callable[..., None], remove: Callable[[int], bool], terminal: int) -> Iterator[asyncio.Event]:
    event = asyncio.Event()
    add(terminal, event.set)
    try:
        yield event
    finally:
        remove(terminal)


def _code(returned: int) -> int:
    return returned if returned >= 0 else _SIGNALLED - returned
