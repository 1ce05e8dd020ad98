"""The daemon's control socket and its requests.

`{"do": "status"}` and `{"do": "report"}` (the NodeReport of `node_report`) are answered once, `{"do": "watch"}` and
`{"do": "watch reports"}` again after every change. `{"do": "ready", "wait": 9}` is answered when all resources are
served, or refused after 9 seconds with the reasons. `_handle` contains the other requests. `system.json_lines`
implements lines, answers and access, `daemon_status` composes a status.

While the event loop is blocked, a thread answers: `status` with the blocking line, everything else with an error.
"""

import asyncio
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from plugwright.errors import ConfigError, PlugwrightError
from plugwright.sdk.cordon_controller import utc
from plugwright.sdk.cordons import LATEST, Cordon
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.daemon_status import report, unready, without_pods
from plugwright.sdk.holdings.holding import Holdings, HoldingSource, UnknownSource
from plugwright.sdk.serve_settings import ResourceDriver
from plugwright.sdk.status import DaemonStatus
from plugwright.system import json_lines
from plugwright.system.concurrency import Backoff, cancel, in_thread
from plugwright.system.inotify import Directory
from plugwright.system.json_lines import Blocked, Request
from plugwright.system.latest import Signal
from plugwright.system.log_once import LogOnce
from plugwright.system.sockets import SocketFile
from plugwright.text import clean

__all__ = ["read_history", "read_node_report", "serve_control_socket"]

logger = logging.getLogger(__name__)


_SOCKET_RETRY, _SOCKET_LONGEST = 0.1, 5.0  # seconds before the retry of a control socket that was removed or taken
_DIGITS_SHOWN = 40  # of a number in an error
_SOURCE_LIMIT, _SOURCE_LEAST = 1.0, 0.05  # seconds that an operator waits for the sources of holdings
_WATCH_INTERVAL = 0.1  # seconds: a watcher gets at most ten reports a second


@asynccontextmanager
async def serve_control_socket(
    daemon: Daemon, path: Path | None, *, answers_blocked: bool = True
) -> AsyncIterator[None]:
    """Serves the control socket while inside; it is recreated if its file is removed or another process had it.

    A socket that cannot be made is logged: devices are served without it. Answering while the event loop is blocked
    needs a thread; without `answers_blocked` there is none.
    """
    if path is None:
        yield
        return
    tried, blocked = asyncio.Event(), _blocked(daemon) if answers_blocked else None
    keeping = asyncio.create_task(_keep_socket(path, partial(_handle, daemon), blocked, tried))
    try:
        await tried.wait()
        yield
    finally:
        await cancel(keeping)


async def _keep_socket(path: Path, handle: json_lines.Handler, blocked: Blocked | None, tried: asyncio.Event) -> None:
    """Runs indefinitely; `tried` is set when the socket is served or its first creation has failed."""
    problems, backoff = LogOnce(logger), Backoff(first=_SOCKET_RETRY, longest=_SOCKET_LONGEST)
    while True:
        try:
            listening, directory = json_lines.listen(path), Directory(path.parent)
            file = SocketFile.of(path)
            async with json_lines.serving(path, listening, handle, blocked), directory.watching():
                if problems.recovered():
                    logger.info("control socket served", extra={"path": str(path)})
                backoff.reset()
                tried.set()
                await file.removed(directory.changed)
            reason = "its file was removed or replaced"
        except (OSError, PlugwrightError) as error:
            reason = str(error)
        problems.warning("no control socket", reason, extra={"path": str(path), "error": reason})
        tried.set()
        await asyncio.sleep(backoff.delay())


def _blocked(daemon: Daemon) -> Blocked:
    """The limit of a status is half of that of a probe, because an operator waits for it."""
    return Blocked(
        reason=lambda: daemon.heartbeat.check(daemon.settings.limits.heartbeat / 2),
        answer=partial(_answer_blocked, daemon),
    )


def _answer_blocked(daemon: Daemon, request: Request, reason: str) -> Mapping[str, object]:
    view = _VIEWS.get(str(request.get("do")))
    if view is None:
        raise ConfigError(reason)
    holdings = without_pods("the event loop is blocked")
    status = report(daemon, holdings, stalled=reason)
    if view is not read_node_report:
        return dict(status)
    from plugwright.sdk.node_reporting import kubelet_report, node_report  # loaded only when requested

    return node_report(daemon, status, holdings, kubelet_report(daemon.settings, daemon.directory), [reason])


async def _handle(daemon: Daemon, request: Request) -> object:
    match request:
        case {"do": "status" | "report" as name}:
            return await _VIEWS[name](daemon)
        case {"do": "watch" | "watch reports" as name}:
            return _changes(daemon, _VIEWS[name])
        case {"do": "ready", "wait": int() | float() as seconds}:
            return await _until_ready(daemon, _finite(seconds))
        case {"do": "cordon", "resource": str(resource), "id": str(device_id), "reason": str(reason)}:
            cordon = Cordon(reason, await _author(request), time.time(), _end(request))
            await daemon.cordons.add(resource, device_id, cordon)
            until = f" until {utc(cordon.until)}" if math.isfinite(cordon.until) else ""
            return f"{device_id} of {resource} is cordoned{until}: {clean(reason)}"
        case {"do": "uncordon", "resource": str(resource), "id": str(device_id)}:
            rule = await daemon.cordons.remove(resource, device_id, await _author(request))
            still = f"; the configuration file still cordons it: {rule}" if rule else ""
            return f"{device_id} of {resource} is no longer cordoned{still}"
        case {"do": "history", "since": int() | float() as since}:
            return await read_history(daemon, _finite(since))
        case {"do": "log level", "level": str(level), "for": int() | float() as seconds}:
            daemon.log_level.change(level, _finite(seconds), await _author(request))
            return daemon.log_level.describe()
        case {"do": "log level"} if "level" not in request:
            return daemon.log_level.describe()
        case {"do": "driver" | "plugin" as whom, "resource": str(name), "name": str(command), "arguments": dict(given)}:
            texts = {str(key): str(value) for key, value in given.items()}
            target = _driver(daemon, name) if whom == "driver" else daemon.resource(name)
            return await target.command(command, texts)
    raise ConfigError(f"unknown request: {json.dumps(request)[:200]}")


async def read_history(daemon: Daemon, since: float) -> object:
    if daemon.history is None:
        raise ConfigError("this daemon keeps no history: it has no state directory (--state-dir)")
    return msgspec.to_builtins(await daemon.history.events(since))


def _driver(daemon: Daemon, resource: str) -> ResourceDriver:
    if (driver := daemon.resource(resource).driver) is None:
        raise ConfigError(f"{resource} is served by the device plugin API alone")
    return driver


def _finite(number: float) -> float:
    """The number as a float. JSON allows integers beyond the range of floats, and NaN."""
    try:
        if math.isfinite(number):
            return float(number)
    except OverflowError:
        pass
    raise ConfigError(f"seconds must be a finite number, got {clean(str(number)[:_DIGITS_SHOWN])}")


def _end(request: Request) -> float:
    """The end of a cordon, in seconds since the epoch."""
    match request:
        case {"for": int() | float() as seconds}:
            end = time.time() + _finite(seconds)
        case {"until": int() | float() as seconds}:
            end = _finite(seconds)
        case _:
            end = math.nan if {"for", "until"} & request.keys() else math.inf
    if not 0 <= end <= LATEST and not math.isinf(end):
        raise ConfigError("a cordon must end at a time, before the year 10000")
    return float(end)


async def _author(request: Request) -> str:
    """The user of the peer process, as reported by the kernel, and the name that the request gives for its author."""
    uid, pid = request.peer.uid, request.peer.pid
    try:
        name = await in_thread("user name", partial(_user_name, uid))
    except RuntimeError:  # no thread could be started
        name = f"user {uid}"
    by = request.get("by")
    return f"{clean(by, 64)}, as {name} (uid {uid}, pid {pid})" if by else f"{name} (uid {uid}, pid {pid})"


def _user_name(uid: int) -> str:
    """Name of a user in the user database, which can be on another machine."""
    import pwd  # only needed if an operator changes something

    try:
        return clean(pwd.getpwuid(uid).pw_name)
    except (KeyError, ValueError, OverflowError):
        return f"user {uid}"


async def _until_ready(daemon: Daemon, seconds: float) -> str:
    """Waits here, so that the caller need not poll."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            async for _ in daemon.changed.notifications():
                if not unready(daemon):
                    return "ready"
    raise ConfigError("; ".join(unready(daemon)) or "not ready in time")


async def _status(daemon: Daemon) -> DaemonStatus:
    return report(daemon, await _holdings(daemon))


async def _holdings(daemon: Daemon) -> Holdings:
    """All holdings; the last known ones, with the name of the source, if a source does not answer in time."""
    ledger = daemon.ledger
    ledger.wanted.notify()
    wanted = ledger.wanted.count
    since = ledger.reading[1] if ledger.reading is not None else time.monotonic()
    try:
        async with asyncio.timeout(max(_SOURCE_LEAST, since + _SOURCE_LIMIT - time.monotonic())):
            await ledger.answered.until(lambda count: count >= wanted)
    except TimeoutError:
        source = ledger.reading[0] if ledger.reading is not None else HoldingSource.POD_RESOURCES
        unknown = UnknownSource(f"{source.value} has not answered yet", time.time())
        latest = ledger.latest.value
        return replace(latest, unknown={**latest.unknown, source: unknown, HoldingSource.POD_RESOURCES: unknown})
    return ledger.latest.value


async def read_node_report(daemon: Daemon) -> Mapping[str, object]:
    from plugwright.sdk.node_reporting import kubelet_report, node_report  # loaded only when requested

    kubelet = await in_thread("kubelet configuration", partial(kubelet_report, daemon.settings, daemon.directory))
    holdings = await _holdings(daemon)
    return node_report(daemon, report(daemon, holdings), holdings, kubelet, unready(daemon))


async def _changes(daemon: Daemon, view: Callable[[Daemon], Awaitable[object]]) -> AsyncIterator[object]:
    """Yields the view now, and again after every change; NodeReports contain the history, which follows later."""
    changed, sources = Signal(), [daemon.changed]
    if view is read_node_report and daemon.history is not None:
        sources.append(daemon.history.noticed)
    unsubscribes = [source.subscribe(changed.notify) for source in sources]
    try:
        async for _ in changed.notifications():
            yield await view(daemon)
            await asyncio.sleep(_WATCH_INTERVAL)
    finally:
        for unsubscribe in unsubscribes:
            unsubscribe()


_VIEWS: dict[str, Callable[[Daemon], Awaitable[object]]] = {
    "status": _status,
    "watch": _status,
    "report": read_node_report,
    "watch reports": read_node_report,
}
