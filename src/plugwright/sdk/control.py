"""The daemon's control socket: one JSON object a line in, one a line out.

Asked `{"do": "status"}`, it answers `{"ok": …}` or `{"error": "…"}`; `watch` goes on answering whenever something
changes. Who may open the socket (mode 0600) may do all of it.
"""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from plugwright.errors import ConfigError, PlugwrightError
from plugwright.protocol import transport
from plugwright.sdk.report import report
from plugwright.sdk.runtime import Daemon

__all__ = ["controlled"]

logger = logging.getLogger(__name__)

_LINE_LIMIT = 64 * 1024
_WATCH_INTERVAL = 0.1  # a watcher is told at most this often


@asynccontextmanager
async def controlled(daemon: Daemon, path: Path | None) -> AsyncIterator[None]:
    """Serves the control socket while inside. A daemon without one still serves devices: it only says so."""
    listening = _listen(path) if path is not None else None
    if listening is None or path is None:
        yield
        return
    talks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks.add(task)
        try:
            with suppress(ConnectionError):
                await _talk(daemon, reader, writer)
        finally:
            talks.discard(task)
            writer.transport.abort() if writer.is_closing() else writer.close()

    server = await asyncio.start_unix_server(talk, sock=listening, limit=_LINE_LIMIT)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        server.close()
        for task in talks:
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


def _listen(path: Path) -> socket.socket | None:
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if _is_served(path):
            raise ConfigError("another daemon serves it")
        path.unlink(missing_ok=True)
        return transport.listen(path)
    except (OSError, ConfigError) as error:
        logger.warning("no control socket", extra={"path": str(path), "error": str(error)})
        return None


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(str(path)) == 0


async def _talk(daemon: Daemon, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async for line in _lines(reader):
        async for answer in _answers(daemon, line):
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    with suppress(ValueError):  # a line beyond the limit: nobody who means well sends one
        while line := await reader.readline():
            yield line


async def _answers(daemon: Daemon, line: bytes) -> AsyncIterator[Mapping[str, object]]:
    try:
        request = _request(line)
        if request.get("do") == "watch":
            async for _ in daemon.changed.changes():
                yield {"ok": report(daemon)}
                await asyncio.sleep(_WATCH_INTERVAL)
        else:
            yield {"ok": await _do(daemon, request)}
    except PlugwrightError as error:
        yield {"error": str(error)}


def _request(line: bytes) -> dict[str, object]:
    try:
        request = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"not JSON: {error}") from error
    if not isinstance(request, dict):
        raise ConfigError("a request is a JSON object")
    return request


async def _do(daemon: Daemon, request: dict[str, object]) -> object:
    match request:
        case {"do": "status"}:
            return report(daemon)
        case {"do": "cordon", "resource": str(resource), "id": str(device_id), "reason": str(reason)}:
            daemon.cordon(resource, device_id, reason)
            return f"{device_id} of {resource} is cordoned: {reason}"
        case {"do": "uncordon", "resource": str(resource), "id": str(device_id)}:
            daemon.uncordon(resource, device_id)
            return f"{device_id} of {resource} is no longer cordoned"
        case {"do": "plugin", "resource": str(resource), "name": str(name), "arguments": dict(arguments)}:
            texts = {str(key): str(value) for key, value in arguments.items()}
            return await daemon.resource(resource).command(name, texts)
    raise ConfigError(f"not a request: {json.dumps(request)[:200]}")
