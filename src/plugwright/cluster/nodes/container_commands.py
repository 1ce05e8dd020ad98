"""Commands in containers run as processes, and clients of the containers' own processes.

A command of `kubectl exec` has the environment, mounts, device nodes and working directory with which its container was
started. It is a separate process beside the container's, and ends with its client.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from plugwright.apiserver.remote_commands import CommandOptions, CommandStreams
from plugwright.cluster.nodes.pod_processes import Launch
from plugwright.kubelet import sandbox
from plugwright.kubelet.container_input import ContainerInput
from plugwright.kubelet.processes import container_environment, granted_paths
from plugwright.system import processes
from plugwright.system.terminal import Terminal

__all__ = ["attach_to", "run_command"]

_GRACE = 2.0  # seconds from SIGTERM to SIGKILL after the client has disconnected
_PIECE = 2**15
_SIGNALLED = 128

Write = Callable[[bytes], Awaitable[None]]


async def run_command(launch: Launch, host: str, options: CommandOptions, streams: CommandStreams) -> int:
    """Runs the command; returns the exit code, or as a shell 126 or 127 if the command cannot be started."""
    environment = container_environment(host, launch.options)
    environment["PATH"] = f"{environment.get('PATH', os.defpath)}:{Path(sys.executable).parent}"
    if options.tty:
        environment.setdefault("TERM", "xterm")
    paths = json.dumps([*granted_paths(launch.options), *launch.paths])
    words = (sys.executable, "-I", "-S", sandbox.__file__, paths, launch.directory, *options.command)
    if options.tty:
        return await _in_terminal(words, environment, streams)
    return await _with_pipes(words, environment, options, streams)


async def attach_to(output: AsyncIterator[bytes], given: ContainerInput | None, streams: CommandStreams) -> None:
    """Shows the output until the container ends; `given` gets the client's input and the size of its terminal."""
    if given is None:
        await _show_log(output, streams)
        return
    helpers = [asyncio.ensure_future(_resize(given, streams)), asyncio.ensure_future(_give(given, streams))]
    try:
        await _show_log(output, streams)
    finally:
        for helper in helpers:
            helper.cancel()
        await given.client_left()


async def _show_log(output: AsyncIterator[bytes], streams: CommandStreams) -> None:
    async for piece in output:
        await streams.write(piece)


async def _give(given: ContainerInput, streams: CommandStreams) -> None:
    while data := await streams.input.get():
        await given.write(data)
    await given.client_left()


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
    """Copies the output, except for the first line, in which the sandbox reports unsupported settings."""
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


async def _in_terminal(words: Sequence[str], environment: dict[str, str], streams: CommandStreams) -> int:
    terminal = Terminal()
    try:
        process = await asyncio.create_subprocess_exec(
            *words, **terminal.options, env=environment, start_new_session=True
        )
        terminal.close_theirs()
        try:
            async with asyncio.TaskGroup() as tasks:
                # The size first: input that was sent after it must find it in force.
                helpers = [tasks.create_task(_resize(terminal, streams)), tasks.create_task(_type(terminal, streams))]
                await _show(terminal, streams)
                for helper in helpers:
                    helper.cancel()
            return _code(await process.wait())
        finally:
            await processes.end(process, _GRACE)
    finally:
        terminal.close()


async def _type(terminal: Terminal, streams: CommandStreams) -> None:
    while True:
        await terminal.write(await streams.input.get())


async def _resize(terminal: Terminal | ContainerInput, streams: CommandStreams) -> None:
    while True:
        terminal.resize(*await streams.sizes.get())


async def _show(terminal: Terminal, streams: CommandStreams) -> None:
    """Shows the output, except for the first line, as `_copy_output`."""
    first = b""
    while data := await terminal.read(_PIECE):
        first += data
        line, end, rest = first.partition(b"\n")
        if not end:
            continue
        echo, bracket, found = line.partition(b"[")  # echo of input typed before the sandbox wrote
        await streams.write(echo + _problems(bracket + found) + rest)
        break
    while data := await terminal.read(_PIECE):
        await streams.write(data)


def _code(returned: int) -> int:
    return returned if returned >= 0 else _SIGNALLED - returned
