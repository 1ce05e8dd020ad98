"""The daemon's control socket: one JSON object a line in, one a line out.

Asked `{"do": "status"}`, it answers `{"ok": …}` or `{"error": "…"}`; `watch` goes on answering whenever something
changes. Who may open the socket (mode 0600) may do all of it.

How a daemon stands, told in the shapes of `report`.
"""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from plugwright.errors import ConfigError, PlugwrightError
from plugwright.sdk.daemon import Daemon, ResourceRuntime
from plugwright.sdk.registration import RegistrationState
from plugwright.sdk.status import DaemonStatus, DeviceStatus, ResourceStatus
from plugwright.system import json_lines
from plugwright.system.json_lines import Request

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

_WATCH_INTERVAL = 0.1  # seconds: a watcher gets at most ten reports a second


@asynccontextmanager
async def controlled(daemon: Daemon, path: Path | None) -> AsyncIterator[None]:
    """Serves the control socket while inside. A daemon without one logs that, and serves devices all the same."""
    listening = _listen(path) if path is not None else None
    if listening is None or path is None:
        yield
        return
    async with json_lines.serving(path, listening, partial(_handle, daemon)):
        yield


def _listen(path: Path) -> socket.socket | None:
    try:
        return json_lines.listen(path)
    except (OSError, PlugwrightError) as error:
        logger.warning("no control socket", extra={"path": str(path), "error": str(error)})
        return None


async def _handle(daemon: Daemon, request: Request) -> object:
    match request:
        case {"do": "status"}:
            return report(daemon)
        case {"do": "watch"}:
            return _reports(daemon)
        case {"do": "cordon", "resource": str(resource), "id": str(device_id), "reason": str(reason)}:
            daemon.cordon(resource, device_id, reason)
            return f"{device_id} of {resource} is cordoned: {reason}"
        case {"do": "uncordon", "resource": str(resource), "id": str(device_id)}:
            daemon.uncordon(resource, device_id)
            return f"{device_id} of {resource} is no longer cordoned"
        case {"do": "plugin", "resource": str(resource), "name": str(name), "arguments": dict(arguments)}:
            texts = {str(key): str(value) for key, value in arguments.items()}
            return await daemon.resource(resource).command(name, texts)
    raise ConfigError(f"unknown request: {json.dumps(request)[:200]}")


async def _reports(daemon: Daemon) -> AsyncIterator[DaemonStatus]:
    """One now, and one after every change."""
    async for _ in daemon.changed.changes():
        yield report(daemon)
        await asyncio.sleep(_WATCH_INTERVAL)
