"""Calls of the author's code: within a time limit, off the event loop where it may block, errors made ours.

Whatever a plugin raises becomes a `PluginError`, so that one plugin's mistake stays that plugin's.

An `async` method that blocks stops everything on its event loop, its own time limit included. So each step of plugin
code goes through a `StallDetector`, whose thread logs a step that does not end, with the line it is in. The thread
sleeps unless plugin code has just run: an idle daemon has no wake-ups from it.
"""

import asyncio
import inspect
import logging
import sys
import threading
import time
import types
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from plugwright.errors import InvalidValue, PluginError, PluginFailed, PluginTimeout
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.plugin_checks import ListPacer
from plugwright.system import concurrency

__all__ = ["PluginCalls", "StallDetector"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Step:
    code: str
    thread: int
    since: float


class StallDetector:
    """Finds steps of plugin code that keep the event loop for more than `limit` seconds."""

    def __init__(self, limit: float = 1.0) -> None:
        self.count = 0
        self._limit = limit
        self._step: _Step | None = None
        self._reported: _Step | None = None
        self._awake = False
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def stalled(self) -> str:
        """The plugin code that has the event loop for too long right now; empty if none."""
        step = self._step
        return step.code if step is not None and time.monotonic() - step.since > self._limit else ""

    @types.coroutine
    def run(self, code: str, inner: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """The result of `inner`, each of whose steps is timed under the name `code`."""
        value: object = None
        error: BaseException | None = None
        while True:
            self.begin(code)
            try:
                awaited = inner.send(value) if error is None else inner.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                self.end()
            value, error = None, None
            try:
                value = yield awaited
            except BaseException as thrown:  # noqa: BLE001  handed on to `inner` in the next step
                error = thrown

    def begin(self, code: str) -> None:
        self._step = _Step(code, threading.get_ident(), time.monotonic())
        if not self._awake:
            self._awake = True
            self._wake.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="plugwright-stalls", daemon=True)
                self._thread.start()

    def end(self) -> None:
        step, self._step = self._step, None
        if step is None:
            return
        seconds = time.monotonic() - step.since
        if seconds > self._limit:
            self._report(step)
            logger.warning(
                "plugin code gave the event loop back", extra={"code": step.code, "seconds": round(seconds, 3)}
            )

    def close(self) -> None:
        self._stop.set()
        self._wake.set()

    def _watch(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._wake.clear()
            while not self._stop.wait(self._limit):
                step = self._step
                if step is None:
                    self._awake = False
                    if self._step is None:  # a step may have begun in between, while `_awake` was still set
                        break
                    self._awake = True
                elif time.monotonic() - step.since > self._limit:
                    self._report(step)

    def _report(self, step: _Step) -> None:
        if step is self._reported:
            return
        self._reported = step
        self.count += 1
        frame = sys._current_frames().get(step.thread)
        where = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}" if frame else "unknown"
        facts = {"code": step.code, "where": where, "hint": "write it without async, or await"}
        logger.error("plugin code blocks the event loop", extra=facts)


@dataclass(frozen=True, slots=True)
class PluginCalls:
    """Calls the methods of the plugin that serves `resource`."""

    resource: str
    stalls: StallDetector

    async def call(self, name: str, method: Callable[..., T | Awaitable[T]], *arguments: object, limit: float) -> T:
        """The method's result; `PluginTimeout` or `PluginFailed` if there is none within `limit` seconds."""
        task = asyncio.create_task(self._result(name, method, arguments))
        try:
            # Not asyncio.timeout: that would wait for a method that ignores its cancellation.
            done, _ = await asyncio.wait((task,), timeout=limit)
            if not done:
                raise PluginTimeout(self.resource, name, limit)
            return task.result()
        finally:
            task.cancel()
            task.add_done_callback(_retrieve_exception)

    async def device_lists(self, plugin: Plugin) -> AsyncGenerator[object, None]:
        """The lists that discover() yields, in whichever way it is written; not checked yet."""
        with self._plugin_errors("discover"):
            discovered = await self._discover(plugin)
            if not isinstance(discovered, AsyncIterable):
                yield _evaluated(discovered)
                return
            lists, pacer = aiter(discovered), ListPacer(self.resource)
            try:
                while True:
                    try:
                        devices = await self._timed("discover", anext(lists))
                    except StopAsyncIteration:
                        return
                    yield _evaluated(devices)
                    await pacer.pause()
            finally:
                if isinstance(lists, AsyncGenerator):
                    await lists.aclose()

    async def _discover(self, plugin: Plugin) -> object:
        """The one list of discover(), or an async iterable of lists."""
        discover, thread = plugin.discover, f"{self.resource} discover"
        if inspect.isgeneratorfunction(discover):
            return concurrency.iterate_in_thread(thread, lambda: map(_evaluated, discover()))
        discovered = discover() if _is_async(discover) else await concurrency.in_thread(thread, discover)
        if isinstance(discovered, Iterator):  # a generator, from a function that only looked like a plain one
            return concurrency.iterate_in_thread(thread, lambda: map(_evaluated, discovered))
        return await self._timed("discover", discovered) if isinstance(discovered, Awaitable) else discovered

    async def _result(self, name: str, method: Callable[..., T | Awaitable[T]], arguments: tuple[object, ...]) -> T:
        with self._plugin_errors(name):
            if _is_async(method):
                result = method(*arguments)
            else:
                result = await concurrency.in_thread(f"{self.resource} {name}", partial(method, *arguments))
            return await self._timed(name, result) if isinstance(result, Awaitable) else result

    def _timed(self, name: str, awaitable: Awaitable[T]) -> Awaitable[T]:
        steps = awaitable if isinstance(awaitable, Coroutine) else _as_coroutine(awaitable)
        return self.stalls.run(f"{name}() of {self.resource}", steps)

    @contextmanager
    def _plugin_errors(self, method: str) -> Iterator[None]:
        try:
            yield
        except InvalidValue as error:
            if method == "command":
                raise  # the operator's value, not the author's
            raise PluginFailed(self.resource, method, error) from error
        except (PluginError, KeyboardInterrupt, GeneratorExit):
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise PluginFailed(self.resource, method, error) from error  # the plugin cancelled itself
        except BaseException as error:  # SystemExit, and what bindings of other languages raise
            raise PluginFailed(self.resource, method, error) from error


def _is_async(method: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)


def _evaluated(devices: object) -> object:
    """A lazy list is evaluated here, where an error in it is still the plugin's."""
    return list(devices) if isinstance(devices, Iterable) and not isinstance(devices, str) else devices


def _retrieve_exception(task: "asyncio.Task[T]") -> None:
    """asyncio logs an exception that is never retrieved."""
    if not task.cancelled():
        task.exception()


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable
