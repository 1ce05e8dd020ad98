"""Running plugins: as a program until a signal ends it, or inside the caller's own event loop.

SIGTERM and SIGINT stop, SIGHUP reloads (`signals`). Where systemd started the program, it hears of its life: ready,
reloading, stopping, and with WatchdogSec that the event loop goes on.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress

from plugwright.sdk import control, logs
from plugwright.sdk.control import serve_control_socket
from plugwright.sdk.daemon import Daemon, check_plugins
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.settings import Settings
from plugwright.sdk.signals import Signals
from plugwright.system.concurrency import Latest, cancel
from plugwright.system.systemd import Systemd

__all__ = ["run", "run_until_stopped", "serving"]

logger = logging.getLogger(__name__)

Reload = Callable[[Daemon], Awaitable[None]]
Watching = Callable[[Daemon, Callable[[], None]], AbstractAsyncContextManager[None]]


def run(*plugins: Plugin, settings: Settings | None = None) -> None:
    """Serves `plugins` until SIGTERM or SIGINT; SIGHUP calls their discover() again."""
    if not plugins:
        raise TypeError("run() needs at least one plugin")
    if not logging.getLogger().hasHandlers():
        _log_to_stderr()

    async def rediscover(daemon: Daemon) -> None:
        daemon.rediscover()

    run_until_stopped(check_plugins(plugins), settings or Settings(), rediscover)


def run_until_stopped(
    plugins: Iterable[Plugin], settings: Settings, reload: Reload, watching: Watching | None = None
) -> None:
    """Serves until SIGTERM or SIGINT; `reload` is called on SIGHUP and when `watching` requests it."""

    async def main() -> None:
        requests, systemd = _Requests(signals), Systemd()
        async with AsyncExitStack() as stack:
            daemon = await stack.enter_async_context(serving(*plugins, settings=settings))
            if watching is not None:
                await stack.enter_async_context(watching(daemon, requests.request_reload))
            await stack.enter_async_context(_telling(systemd, daemon))
            await _handle(requests, reload, daemon, systemd)

    try:
        with Signals() as signals:
            asyncio.run(main())
            logger.info("stopped")
    finally:
        logs.flush()  # before Python writes a traceback


@asynccontextmanager
async def serving(*plugins: Plugin, settings: Settings | None = None) -> AsyncIterator[Daemon]:
    """Serves `plugins` while inside, in the caller's own event loop; touches no signals."""
    settings = settings or Settings()
    async with AsyncExitStack() as stack:
        daemon = Daemon(settings)
        if settings.listen:
            from plugwright.sdk.probes import serve_probes  # loads an HTTP server

            stack.enter_context(serve_probes(daemon))
        await stack.enter_async_context(daemon.running(plugins))
        await stack.enter_async_context(serve_control_socket(daemon, settings.control_socket))
        yield daemon


class _Requests:
    """The pending requests of signals and of a changed file."""

    def __init__(self, signals: Signals) -> None:
        self.count = Latest(0)
        self._signals, self._loop = signals, asyncio.get_running_loop()
        signals.subscribe(self._wake_from_signal)

    @property
    def stop(self) -> bool:
        return self._signals.stop

    def request_reload(self) -> None:
        self._signals.reload = True
        self._wake()

    def take_reload(self) -> bool:
        """Whether a reload was requested since the last call."""
        requested, self._signals.reload = self._signals.reload, False
        return requested

    def _wake(self) -> None:
        self.count.publish(self.count.value + 1)

    def _wake_from_signal(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._wake)


async def _handle(requests: _Requests, reload: Reload, daemon: Daemon, systemd: Systemd) -> None:
    """Reloads whenever that is requested; returns when a stop is."""
    async for _ in requests.count.changes():
        if requests.stop:
            systemd.stopping()
            return
        if requests.take_reload():
            systemd.reloading()
            await reload(daemon)
            systemd.ready()


@asynccontextmanager
async def _telling(systemd: Systemd, daemon: Daemon) -> AsyncIterator[None]:
    """Keeps systemd's line about the daemon true, and its watchdog content, while inside."""

    def tell() -> None:
        systemd.status(control.one_line(daemon))

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


def _log_to_stderr() -> None:
    handler = logs.LogWriter(logs.standard_error())
    handler.setFormatter(logs.HumanFormatter())
    logging.getLogger().addHandler(handler)
    logging.getLogger("plugwright").setLevel(logging.INFO)
