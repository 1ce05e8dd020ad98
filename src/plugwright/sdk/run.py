"""Runs plugins until told to stop: as a program of its own, or inside one's own event loop."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from plugwright.sdk.control import controlled
from plugwright.sdk.daemon import Daemon, checked
from plugwright.sdk.logs import HumanFormatter
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.settings import Settings
from plugwright.system.inotify import Directory

__all__ = ["run", "run_until_stopped", "serving", "watching_file"]

logger = logging.getLogger(__name__)

_STOP_LIMIT = 0.9  # seconds from the signal to the end, whatever plugin code does

_SETTLE = 0.1  # an editor needs more than one step to write a file

Reload = Callable[[Daemon], Awaitable[None]]
Watching = Callable[[Callable[[], None]], AbstractAsyncContextManager[None]]


def run(*plugins: Plugin, settings: Settings | None = None) -> None:
    """Serves `plugins` until SIGTERM or SIGINT; SIGHUP calls their discover() anew."""
    if not plugins:
        raise TypeError("run() needs at least one plugin")
    if not logging.getLogger().hasHandlers():
        _log_to_stderr()

    async def rediscover(daemon: Daemon) -> None:
        daemon.rediscover()

    run_until_stopped(checked(plugins), settings or Settings(), rediscover)


def run_until_stopped(
    plugins: Iterable[Plugin], settings: Settings, reload: Reload, watching: Watching | None = None
) -> None:
    """`reload` is called, in the daemon's event loop, on SIGHUP and when `watching` wishes for it."""

    async def main() -> None:
        wishes = _Wishes()
        async with AsyncExitStack() as stack:
            stack.enter_context(_signals(wishes, last_resort))
            daemon = await stack.enter_async_context(serving(*plugins, settings=settings))
            if watching is not None:
                await stack.enter_async_context(watching(wishes.wish))
            await _grant(wishes, reload, daemon)

    with _LastResort() as last_resort:
        asyncio.run(main())
    logger.info("stopped")


@asynccontextmanager
async def serving(*plugins: Plugin, settings: Settings | None = None) -> AsyncIterator[Daemon]:
    """Serves `plugins` while inside, in the caller's own event loop; touches no signals."""
    settings = settings or Settings()
    async with AsyncExitStack() as stack:
        daemon = Daemon(settings)
        if settings.listen:
            from plugwright.sdk.probes import answering_probes  # loads an HTTP server: only where it is asked for

            stack.enter_context(answering_probes(daemon, settings.listen))
        await stack.enter_async_context(daemon.running(plugins))
        await stack.enter_async_context(controlled(daemon, settings.control_socket))
        yield daemon


class _LastResort:
    """Ends the process when plugin code does not let go: the node must not wait until SIGKILL."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def __enter__(self) -> "_LastResort":
        return self

    def __exit__(self, *_: object) -> None:
        # Python waits at its end for the threads of the plugin's own that are no daemons.
        waited_for = [each for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]
        if self._timer is not None and not waited_for:
            self._timer.cancel()

    def arm(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(_STOP_LIMIT, self._end)
            self._timer.daemon = True
            self._timer.start()

    @staticmethod
    def _end() -> None:
        logger.warning("plugin code did not end in time, leaving without it")
        logging.shutdown()
        os._exit(0)


@dataclass(slots=True)
class _Wishes:
    """What signals have asked for."""

    stop: bool = False
    reload: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def wish(self) -> None:
        self.reload = True
        self.news.set()


async def _grant(wishes: _Wishes, reload: Reload, daemon: Daemon) -> None:
    while not wishes.stop:
        await wishes.news.wait()
        wishes.news.clear()
        if wishes.reload and not wishes.stop:
            wishes.reload = False
            await reload(daemon)


@asynccontextmanager
async def watching_file(path: Path, wish: Callable[[], None]) -> AsyncIterator[None]:
    """Wishes for a reload when something happens to the file, or beside it: ConfigMaps change by a link there."""
    loop = asyncio.get_running_loop()

    async with AsyncExitStack() as stack:
        for place in sorted({path.absolute().parent, path.resolve().parent}):
            directory = Directory(place, writes=True)
            directory.ticks.subscribe(lambda: loop.call_later(_SETTLE, wish))
            await stack.enter_async_context(directory.watching())
        yield


@contextmanager
def _signals(wishes: _Wishes, last_resort: _LastResort) -> Iterator[None]:
    """Python's own handlers, not the loop's: those never run while plugin code blocks the loop."""
    loop = asyncio.get_running_loop()

    def stop(_: int, __: object) -> None:
        wishes.stop = True
        last_resort.arm()
        loop.call_soon_threadsafe(wishes.news.set)

    def again(_: int, __: object) -> None:
        wishes.reload = True
        loop.call_soon_threadsafe(wishes.news.set)

    wanted = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: again}
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(HumanFormatter())
    logging.getLogger().addHandler(handler)
    logging.getLogger("plugwright").setLevel(logging.INFO)
