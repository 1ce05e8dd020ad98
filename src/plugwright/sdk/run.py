"""Running plugins: as a program until a signal ends it, or inside the caller's own event loop.

SIGTERM and SIGINT stop, SIGHUP reloads. A stop that plugin code holds up is cut short: a node must not have to wait
until SIGKILL.
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from plugwright.errors import PlugwrightError
from plugwright.sdk.control import serve_control_socket
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.environment import configure_logs, with_environment
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.plugin_checks import check_plugins, warn_of_misspelt_methods
from plugwright.sdk.settings import Settings
from plugwright.system.concurrency import Latest

__all__ = ["collected_plugins", "rediscover", "run", "run_until_stopped", "serving"]

logger = logging.getLogger(__name__)

_STOP_LIMIT = 0.9  # seconds from the signal to the end, whatever plugin code does

_collected: ContextVar[list[Plugin] | None] = ContextVar("collected", default=None)

Reload = Callable[[Daemon], Awaitable[None]]
Watching = Callable[[Callable[[], None]], AbstractAsyncContextManager[None]]


def run(*plugins: Plugin, settings: Settings | None = None) -> None:
    """Serves `plugins` until SIGTERM or SIGINT; SIGHUP calls their discover() again.

    Settings that are left at their defaults come from the same variables as those of `plugwright run`. A mistake ends
    the program with one line.
    """
    if not plugins:
        raise TypeError("run() needs at least one plugin")
    collected = _collected.get()
    if collected is not None:
        collected.extend(plugins)
        return
    try:
        configure_logs(os.environ)
        run_until_stopped(check_plugins(plugins), with_environment(settings or Settings(), os.environ), rediscover)
    except (PlugwrightError, OSError) as error:
        raise SystemExit(f"plugwright: {' '.join(str(error).split())}") from error


async def rediscover(daemon: Daemon) -> None:
    daemon.rediscover()


@contextmanager
def collected_plugins() -> Iterator[list[Plugin]]:
    """While inside, run() serves nothing and adds its plugins to the list: for commands that load a program."""
    collected: list[Plugin] = []
    token = _collected.set(collected)
    try:
        yield collected
    finally:
        _collected.reset(token)


def run_until_stopped(
    plugins: Iterable[Plugin], settings: Settings, reload: Reload, watching: Watching | None = None
) -> None:
    """Serves until SIGTERM or SIGINT; `reload` is called on SIGHUP and when `watching` requests it."""

    async def main() -> None:
        requests = _Requests()
        async with AsyncExitStack() as stack:
            stack.enter_context(_signal_handlers(requests, exit_timer))
            daemon = await stack.enter_async_context(serving(*plugins, settings=settings))
            if watching is not None:
                await stack.enter_async_context(watching(requests.request_reload))
            await _handle(requests, reload, daemon)

    with _ExitTimer() as exit_timer:
        asyncio.run(main())
    logger.info("stopped")


@asynccontextmanager
async def serving(*plugins: Plugin, settings: Settings | None = None) -> AsyncIterator[Daemon]:
    """Serves `plugins` while inside, in the caller's own event loop; touches no signals."""
    settings = settings or Settings()
    warn_of_misspelt_methods(check_plugins(plugins))
    async with AsyncExitStack() as stack:
        daemon = Daemon(settings)
        if settings.listen:
            from plugwright.sdk.probes import serve_probes  # loads an HTTP server

            stack.enter_context(serve_probes(daemon, settings.listen))
        await stack.enter_async_context(daemon.running(plugins))
        await stack.enter_async_context(serve_control_socket(daemon, settings.control_socket))
        yield daemon


class _ExitTimer:
    """Ends the process `_STOP_LIMIT` seconds after a signal, if plugin code has kept it from ending by then."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def __enter__(self) -> "_ExitTimer":
        return self

    def __exit__(self, *_: object) -> None:
        # Python waits at its end for a plugin's own threads that are not daemons: the timer goes on for those.
        main = threading.main_thread()
        has_others = any(thread is not main and not thread.daemon for thread in threading.enumerate())
        if self._timer is not None and not has_others:
            self._timer.cancel()

    def start(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(_STOP_LIMIT, self._end)
            self._timer.daemon = True
            self._timer.start()

    @staticmethod
    def _end() -> None:
        logger.warning("plugin code did not end in time, exiting without it")
        logging.shutdown()
        os._exit(0)


@dataclass(slots=True)
class _Requests:
    """The pending requests of signals and of a changed file."""

    stop: bool = False
    reload: bool = False
    count: Latest[int] = field(default_factory=lambda: Latest(0))

    def request_reload(self) -> None:
        self.reload = True
        self.wake()

    def wake(self) -> None:
        self.count.publish(self.count.value + 1)


async def _handle(requests: _Requests, reload: Reload, daemon: Daemon) -> None:
    """Reloads whenever that is requested; returns when a stop is."""
    async for _ in requests.count.changes():
        if requests.stop:
            return
        if requests.reload:
            requests.reload = False
            await reload(daemon)


@contextmanager
def _signal_handlers(requests: _Requests, exit_timer: _ExitTimer) -> Iterator[None]:
    """Python's own handlers, not the loop's: those never run while plugin code blocks the loop."""
    loop = asyncio.get_running_loop()

    def stop(_: int, __: object) -> None:
        requests.stop = True
        exit_timer.start()
        loop.call_soon_threadsafe(requests.wake)

    def reload(_: int, __: object) -> None:
        requests.reload = True
        loop.call_soon_threadsafe(requests.wake)

    handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: reload}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
