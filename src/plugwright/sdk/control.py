"""The daemon's control socket: its requests, and the status it reports.

`{"do": "status"}` is answered once, `{"do": "watch"}` again whenever something changes; the other requests are in
`_handle`. Lines, answers and access are `system.json_lines`, the shapes of a status `status`.

While the event loop is blocked, a thread answers: `status` with the line that blocks it, everything else with an error.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

from plugwright.errors import ConfigError, PlugwrightError
from plugwright.sdk import logs
from plugwright.sdk.daemon import Daemon, ResourceRuntime
from plugwright.sdk.registration import RegistrationState
from plugwright.sdk.status import DaemonStatus, DeviceStatus, ResourceStatus, shown
from plugwright.system import json_lines
from plugwright.system.json_lines import Blocked, Request
from plugwright.text import clean

__all__ = ["is_ready", "one_line", "report", "serve_control_socket"]

logger = logging.getLogger(__name__)

_WATCH_INTERVAL = 0.1  # seconds: a watcher gets at most ten reports a second


@asynccontextmanager
async def serve_control_socket(daemon: Daemon, path: Path | None) -> AsyncIterator[None]:
    """Serves the control socket while inside. A socket that cannot be made is logged: devices are served without it."""
    async with AsyncExitStack() as stack:
        if path is not None:
            try:
                listening = json_lines.listen(path)
                handle, blocked = partial(_handle, daemon), _blocked(daemon)
                await stack.enter_async_context(json_lines.serving(path, listening, handle, blocked))
            except (OSError, PlugwrightError) as error:
                logger.warning("no control socket", extra={"path": str(path), "error": str(error)})
        yield


def _blocked(daemon: Daemon) -> Blocked:
    """A status takes half of what a probe does: an operator waits for it."""
    return Blocked(
        reason=lambda: daemon.heartbeat.check(daemon.settings.limits.heartbeat / 2),
        answer=partial(_answer_blocked, daemon),
    )


def _answer_blocked(daemon: Daemon, request: Request, reason: str) -> DaemonStatus:
    if request.get("do") in ("status", "watch"):
        return report(daemon, stalled=reason)
    raise ConfigError(reason)


def report(daemon: Daemon, stalled: str = "") -> DaemonStatus:
    """`stalled`: why the event loop is blocked, where another thread has found that."""
    runtimes = [runtime for _, runtime in sorted(dict(daemon.resources).items())]
    return DaemonStatus(
        ready=all(map(is_ready, runtimes)),
        registration=daemon.settings.registration.value,
        directory=str(daemon.directory),
        stalled=stalled,
        stalls=daemon.stalls.count,
        cordons=daemon.cordons(),
        cordons_unreadable=daemon.cordons_unreadable,
        log_lines_dropped=logs.dropped_lines(),
        config=asdict(daemon.config.value) if daemon.config.value is not None else None,
        resources=[_resource(runtime) for runtime in runtimes],
    )


def one_line(daemon: Daemon) -> str:
    ready = sum(map(is_ready, daemon.resources.values()))
    return f"{ready} of {len(daemon.resources)} resources registered and watched by the kubelet"


def is_ready(runtime: ResourceRuntime) -> bool:
    """Registered, and the kubelet has a stream open."""
    registered = runtime.registration.status.value.state is RegistrationState.REGISTERED
    return registered and runtime.service.streams.value.open > 0


def _resource(runtime: ResourceRuntime) -> ResourceStatus:
    status = runtime.registration.status.value
    return ResourceStatus(
        name=runtime.resource,
        state=status.state.value,
        reason=status.reason,
        since=round(status.since, 3),
        endpoint=runtime.registration.endpoint,
        streams=runtime.service.streams.value.open,
        registrations=runtime.service.metrics.registrations["ok"],
        fault=runtime.supervisor.fault.value,
        restarts=runtime.service.metrics.restarts,
        held=runtime.removed_devices.unreadable.value,
        stuck=runtime.stuck,
        discovery=runtime.discovery.failing.value,
        refused=runtime.inventory.refused.value,
        devices=_devices(runtime),
    )


def _devices(runtime: ResourceRuntime) -> list[DeviceStatus]:
    snapshot = runtime.inventory.latest.value
    if snapshot is None:
        return []
    return [
        DeviceStatus(
            id=device.id,
            health=device.health.value,
            reason=device.reason,
            code=device.code,
            since=round(snapshot.since[device.id], 3),
            numa=list(device.numa),
            attributes={clean(name): shown(value) for name, value in device.attributes.items()},
        )
        for device in snapshot.devices.values()
    ]


async def _handle(daemon: Daemon, request: Request) -> object:
    match request:
        case {"do": "status"}:
            return report(daemon)
        case {"do": "watch"}:
            return _reports(daemon)
        case {"do": "cordon", "resource": str(resource), "id": str(device_id), "reason": str(reason)}:
            await daemon.cordon(resource, device_id, reason)
            return f"{device_id} of {resource} is cordoned: {clean(reason)}"
        case {"do": "uncordon", "resource": str(resource), "id": str(device_id)}:
            await daemon.uncordon(resource, device_id)
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
