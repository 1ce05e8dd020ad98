"""The daemon's control socket: one JSON object a line in, one a line out.

Asked `{"do": "status"}`, it answers `{"ok": …}` or `{"error": "…"}`; `watch` goes on answering whenever something
changes. Who may open the socket (mode 0600) may do all of it.

How a daemon stands, told in the shapes of `report`.
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
from plugwright.protocol.transport import Serving
from plugwright.sdk.daemon import Daemon, ResourceRuntime
from plugwright.sdk.registration import RegistrationState
from plugwright.sdk.status import DaemonStatus, DeviceStatus, ResourceStatus

__all__ = ["controlled", "is_ready", "report"]


def report(daemon: Daemon) -> DaemonStatus:
    runtimes = [daemon.resources[name] for name in sorted(daemon.resources)]
    return DaemonStatus(
        ready=all(map(is_ready, runtimes)),
        registration=daemon.settings.registration.value,
        directory=str(daemon.directory),
        stalled=daemon.stalls.stalled,
        stalls=daemon.stalls.count,
        resources=[_resource(runtime) for runtime in runtimes],
    )


def is_ready(runtime: ResourceRuntime) -> bool:
    """Registered, and the kubelet is watching the list."""
    return (
        runtime.lifecycle.standing.value.state is RegistrationState.REGISTERED
        and runtime.service.streams.value.open > 0
    )


def _resource(runtime: ResourceRuntime) -> ResourceStatus:
    standing = runtime.lifecycle.standing.value
    return ResourceStatus(
        name=runtime.resource,
        state=standing.state.value,
        reason=standing.reason,
        since=round(standing.since, 3),
        endpoint=runtime.lifecycle.endpoint,
        streams=runtime.service.streams.value.open,
        registrations=runtime.service.tally.registrations["ok"],
        discovery=runtime.discovery.failing.value,
        refused=runtime.inventory.refused.value,
        devices=_devices(runtime),
    )


def _devices(runtime: ResourceRuntime) -> list[DeviceStatus]:
    snapshot = runtime.inventory.newest.value
    if snapshot is None:
        return []
    return [
        DeviceStatus(
            id=device.id,
            health=device.health.value,
            reason=device.reason,
            since=round(snapshot.since[device.id], 3),
            numa=list(device.numa),
            attributes=dict(device.attributes),
        )
        for device in snapshot.devices.values()
    ]


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
    serving = Serving(path, path.lstat().st_ino)
    talks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks.add(task)
        try:
            # Cancelled when the daemon ends: nobody waits for this task, and asyncio would complain of it.
            with suppress(ConnectionError, asyncio.CancelledError):
                await _talk(daemon, reader, writer)
        finally:
            talks.discard(task)
            writer.transport.abort()

    server = await asyncio.start_unix_server(talk, sock=listening, limit=_LINE_LIMIT)
    try:
        yield
    finally:
        serving.unlink()
        server.close()
        for task in talks:
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


def _listen(path: Path) -> socket.socket | None:
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if path.exists() and not path.is_socket():
            raise ConfigError("there is a file of that name that is no socket")
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
        if _is_watch(line):
            await _watched(daemon, reader, writer)
            return
        await _tell(writer, await _answer(daemon, line))
    await _flushed(writer)


async def _flushed(writer: asyncio.StreamWriter) -> None:
    """What was written is on its way before the connection is cut."""
    writer.close()
    await writer.wait_closed()


async def _watched(daemon: Daemon, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Tells of every change until the watcher hangs up."""

    async def tell_changes() -> None:
        with suppress(ConnectionError):
            async for _ in daemon.changed.changes():
                await _tell(writer, {"ok": report(daemon)})
                await asyncio.sleep(_WATCH_INTERVAL)

    telling = asyncio.create_task(tell_changes())
    try:
        await reader.read()
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def _tell(writer: asyncio.StreamWriter, answer: Mapping[str, object]) -> None:
    writer.write(json.dumps(answer, default=str).encode() + b"\n")  # attributes may hold anything
    await writer.drain()


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    with suppress(ValueError):  # a line beyond the limit: nobody who means well sends one
        while line := await reader.readline():
            yield line


def _is_watch(line: bytes) -> bool:
    with suppress(ConfigError):
        return _request(line).get("do") == "watch"
    return False


async def _answer(daemon: Daemon, line: bytes) -> Mapping[str, object]:
    try:
        return {"ok": await _do(daemon, _request(line))}
    except PlugwrightError as error:
        return {"error": str(error)}


def _request(line: bytes) -> dict[str, object]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
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
