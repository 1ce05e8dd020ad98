"""Runs plugins: as a program until a signal ends it, or inside the caller's own event loop.

SIGTERM and SIGINT stop, SIGHUP reloads (`signals`). If systemd started the program, it receives sd_notify messages:
ready, reloading, stopping, and with WatchdogSec heartbeats of the event loop.
"""

import asyncio
import faulthandler
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from plugwright.errors import PlugwrightError
from plugwright.sdk import daemon_status, logs
from plugwright.sdk.control import serve_control_socket
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.environment import configure_logs, with_environment
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.plugin_checks import check_plugins, warn_of_misspelt_methods
from plugwright.sdk.release_state import with_own_state
from plugwright.sdk.resource_runtime import DriverFactory
from plugwright.sdk.serve_settings import ResourceDriver
from plugwright.sdk.settings import Settings
from plugwright.sdk.shared_parts import SharedParts
from plugwright.sdk.signals import Signals
from plugwright.system import garbage
from plugwright.system.concurrency import cancel, first
from plugwright.system.latest import Signal
from plugwright.system.systemd import Systemd
from plugwright.version import __version__

__all__ = ["collected_plugins", "log_start", "rediscover", "run", "run_until_stopped", "serving"]

logger = logging.getLogger(__name__)

_LOADED = 1.0  # seconds after which a daemon has loaded all that it needs
_BEATS = 3  # within the watchdog's limit: one late beat is no hang

_collected: ContextVar[list[Plugin] | None] = ContextVar("collected", default=None)

Reload = Callable[[Daemon], Awaitable[None]]
Watching = Callable[[Daemon, Callable[[], None]], AbstractAsyncContextManager[None]]


def run(*plugins: Plugin, settings: Settings | None = None, drivers: DriverFactory | None = None) -> None:
    """Serves `plugins` until SIGTERM or SIGINT; SIGHUP calls their discover() again.

    Settings left at their defaults come from the same variables as those of `plugwright run`. An error ends the program
    with one line.
    """
    if not plugins:
        raise TypeError("run() needs at least one plugin")
    collected = _collected.get()
    if collected is not None:
        collected.extend(plugins)
        return
    try:
        configure_logs(os.environ)
        checked = check_plugins(plugins)
        log_start(checked)
        settings = with_own_state(with_environment(settings or Settings(), os.environ))
        run_until_stopped(checked, settings, rediscover, drivers=drivers)
    except (PlugwrightError, OSError) as error:
        if logs.log_failure(error):
            raise SystemExit(1) from error
        raise SystemExit(f"plugwright: {' '.join(str(error).split())}") from error


def log_start(plugins: Sequence[Plugin], **facts: object) -> None:
    logger.info("starting", extra={"version": __version__, **facts, "resources": len(plugins)})


async def rediscover(daemon: Daemon) -> None:
    logger.info("calling discover() again", extra={"resources": sorted(daemon.resources)})
    daemon.rediscover()


@contextmanager
def collected_plugins() -> Iterator[list[Plugin]]:
    """While inside, run() serves nothing and adds its plugins to the list: for commands loading a program."""
    collected: list[Plugin] = []
    token = _collected.set(collected)
    try:
        yield collected
    finally:
        _collected.reset(token)


def run_until_stopped(
    plugins: Iterable[Plugin],
    settings: Settings,
    reload: Reload,
    watching: Watching | None = None,
    drivers: DriverFactory | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT; `reload` is called on SIGHUP and when `watching` requests it."""

    async def main() -> None:
        requests, systemd = _Requests(signals), Systemd()
        async with AsyncExitStack() as stack:
            daemon = await stack.enter_async_context(serving(*plugins, settings=settings, drivers=drivers))
            if watching is not None:
                await stack.enter_async_context(watching(daemon, requests.request_reload))
            await stack.enter_async_context(_telling(systemd, daemon))
            await stack.enter_async_context(_watched(settings.watchdog))
            giving_back = asyncio.get_running_loop().call_later(_LOADED, garbage.freeze)
            stack.callback(giving_back.cancel)
            await _handle(requests, reload, daemon, systemd)

    try:
        with Signals() as signals:
            asyncio.run(main())
            logger.info("stopped")
    finally:
        logs.flush()  # before Python writes a traceback


@asynccontextmanager
async def serving(
    *plugins: Plugin,
    settings: Settings | None = None,
    drivers: DriverFactory | None = None,
    shared: SharedParts | None = None,
    history_dir: Path | None = None,
) -> AsyncIterator[Daemon]:
    """Serves `plugins` while inside, in the caller's own event loop; handles no signals. `shared` is as in `Daemon`.

    The history of the devices is stored in `history_dir`, or in the state directory.
    """
    settings = settings or Settings()
    warn_of_misspelt_methods(check_plugins(plugins))
    async with AsyncExitStack() as stack:
        daemon = Daemon(settings, drivers, shared)
        if settings.listen:
            from plugwright.sdk.probes import serve_probes  # loads an HTTP server

            stack.enter_context(serve_probes(daemon))
        await stack.enter_async_context(daemon.running(plugins))
        if (directory := history_dir or settings.state_dir) is not None:
            from plugwright.sdk.history import recording  # not needed by a daemon that keeps no history

            await stack.enter_async_context(recording(daemon, directory))
        await stack.enter_async_context(serve_control_socket(daemon, settings.control_socket))
        yield daemon


class _Requests:
    """The pending requests of signals and of a changed file."""

    def __init__(self, signals: Signals) -> None:
        self.changed = Signal()
        self._signals, self._loop = signals, asyncio.get_running_loop()
        signals.subscribe(self._wake_from_signal)

    @property
    def stop(self) -> bool:
        return self._signals.stop

    async def finish(self, daemon: Daemon) -> None:
        """Waits for claims in progress: the kubelet retries an interrupted call only after a minute or more."""
        drivers = [runtime.driver for runtime in daemon.resources.values() if runtime.driver is not None]
        with self._signals.finishing(), suppress(TimeoutError):
            async with asyncio.timeout(self._signals.limits.finish):
                await first(_finished(drivers), self.changed.until(lambda: self._signals.stop_now))

    def request_reload(self) -> None:
        self._signals.reload = True
        self._wake()

    def take_reload(self) -> bool:
        """Whether a reload was requested since the last call."""
        requested, self._signals.reload = self._signals.reload, False
        return requested

    def _wake(self) -> None:
        self.changed.notify()

    def _wake_from_signal(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._wake)


async def _handle(requests: _Requests, reload: Reload, daemon: Daemon, systemd: Systemd) -> None:
    """Reloads on each request; returns when a stop is requested."""
    async for _ in requests.changed.notifications():
        if requests.stop:
            systemd.stopping()
            await requests.finish(daemon)
            return
        if requests.take_reload():
            systemd.reloading()
            await reload(daemon)
            systemd.ready()


async def _finished(drivers: Iterable[ResourceDriver]) -> None:
    await asyncio.gather(*(driver.finish() for driver in drivers))


@asynccontextmanager
async def _telling(systemd: Systemd, daemon: Daemon) -> AsyncIterator[None]:
    """Updates the systemd status line and pings its watchdog while inside."""

    def tell() -> None:
        systemd.status(daemon_status.one_line(daemon))

    async def ping() -> None:
        while systemd.watchdog:
            systemd.alive()
            await asyncio.sleep(systemd.watchdog / 2)

    unsubscribe = daemon.changed.subscribe(tell)
    pinging = asyncio.create_task(ping())
    systemd.ready()
    tell()
    try:
        yield
    finally:
        unsubscribe()
        await cancel(pinging)


@asynccontextmanager
async def _watched(limit: float) -> AsyncIterator[None]:
    """Ends the process for a restart by the kubelet when its event loop hangs for `limit` seconds; 0 is no limit.

    Replaces a liveness probe, which would come over the pod's network: a node with a broken network would lose its
    devices too. Python's fault handler waits in a thread independent of the loop and the interpreter's lock, and writes
    the current lines of all threads to stderr before it ends the process.
    """
    if not limit:
        yield
        return
    beating = asyncio.create_task(_beat(limit))
    try:
        yield
    finally:
        await cancel(beating)
        faulthandler.cancel_dump_traceback_later()


async def _beat(limit: float) -> None:
    while True:
        faulthandler.dump_traceback_later(limit, exit=True)
        await asyncio.sleep(limit / _BEATS)
