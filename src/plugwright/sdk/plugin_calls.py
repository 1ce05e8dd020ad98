"""Calling the author's code: within a limit, off the loop if it may block, and its failures made ours.

Whatever a plugin raises becomes a `PluginError`, so that one plugin's mistake stays that plugin's.

Plugin code that keeps the event loop to itself is noticed while it does, and named.

An `async` method that blocks stops everything that shares its loop, its own time limit included. So each step of
plugin code is announced here, and a thread looks at a step that does not end. The thread sleeps unless plugin code
has just run: an idle daemon has no wake-ups from it.
"""

import asyncio
import inspect
import logging
import sys
import threading
import time
import types
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from plugwright.errors import PluginError, PluginFailed, PluginTimeout
from plugwright.sdk.plugin import Plugin
from plugwright.system import concurrency

__all__ = ["Caller", "StallWatch", "watched"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Step:
    code: str
    thread: int
    since: float


class StallWatch:
    """`limit`: seconds that one step of plugin code may keep the event loop."""

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
        """Which plugin code has the event loop for too long right now; empty if none."""
        step = self._step
        return step.code if step is not None and time.monotonic() - step.since > self._limit else ""

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
                    if self._step is None:  # a step may have begun in between, and found us awake
                        break
                    self._awake = True
                elif time.monotonic() - step.since > self._limit:
                    self._report(step)

    def _report(self, step: _Step) -> None:
        if step is self._reported:
            return
        self._reported = step
        self.count += 1
        facts = {"code": step.code, "where": _where(step.thread), "hint": "write it without async, or await"}
        logger.error("plugin code blocks the event loop", extra=facts)


def _where(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "unknown"
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


@types.coroutine
def watched(code: str, watch: StallWatch, inner: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Runs `inner`, announcing each of its steps to `watch`."""
    value: object = None
    error: BaseException | None = None
    while True:
        watch.begin(code)
        try:
            awaited = inner.send(value) if error is None else inner.throw(error)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            watch.end()
        value, error = None, None
        try:
            value = yield awaited
        except BaseException as thrown:  # noqa: BLE001  handed on to `inner` in the next step
            error = thrown


@dataclass(frozen=True, slots=True)
class Caller:
    """Calls the methods of the plugin that serves `resource`."""

    resource: str
    stalls: StallWatch

    async def call(self, name: str, method: Callable[..., T | Awaitable[T]], *arguments: object, limit: float) -> T:
        """The method's answer; `PluginTimeout` or `PluginFailed` if there is none."""
        answering = asyncio.create_task(self._answer(name, method, arguments))
        try:
            # Not asyncio.timeout: a method that swallows its cancellation must not be waited for.
            done, _ = await asyncio.wait((answering,), timeout=limit)
            if not done:
                raise PluginTimeout(self.resource, name, limit)
            return answering.result()
        finally:
            answering.cancel()
            answering.add_done_callback(_look_at)

    async def lists(self, plugin: Plugin) -> AsyncGenerator[object, None]:
        """What discover() yields, in whichever of the ways it may be written; not checked yet."""
        with self._failures("discover"):
            async with aclosing(await self._found(plugin)) as lists:
                async for devices in lists:
                    yield devices

    async def _found(self, plugin: Plugin) -> AsyncGenerator[object, None]:
        discover, thread = plugin.discover, self._thread("discover")
        if inspect.isgeneratorfunction(discover):
            return concurrency.iterate_in_thread(thread, lambda: map(_whole, discover()))
        found = discover() if _is_async(discover) else await concurrency.in_thread(thread, discover)
        if isinstance(found, AsyncIterable):
            return self._stepped(aiter(found))
        if isinstance(found, Iterator):  # a generator, from a function that only looked like a plain one
            return concurrency.iterate_in_thread(thread, lambda: map(_whole, found))
        return _only(_whole(await self._watched("discover", found) if isinstance(found, Awaitable) else found))

    async def _stepped(self, lists: AsyncIterator[object]) -> AsyncGenerator[object, None]:
        try:
            while True:
                try:
                    devices = await self._watched("discover", anext(lists))
                except StopAsyncIteration:
                    return
                yield _whole(devices)
                await asyncio.sleep(0)  # a discover() that awaits nothing must not have the loop to itself
        finally:
            if isinstance(lists, AsyncGenerator):
                await lists.aclose()

    async def _answer(self, name: str, method: Callable[..., T | Awaitable[T]], arguments: tuple[object, ...]) -> T:
        with self._failures(name):
            if _is_async(method):
                answer = method(*arguments)
            else:
                answer = await concurrency.in_thread(self._thread(name), partial(method, *arguments))
            return await self._watched(name, answer) if isinstance(answer, Awaitable) else answer

    async def _watched(self, name: str, awaitable: Awaitable[T]) -> T:
        steps = awaitable if isinstance(awaitable, Coroutine) else _as_coroutine(awaitable)
        return await watched(f"{name}() of {self.resource}", self.stalls, steps)

    def _thread(self, name: str) -> str:
        return f"{self.resource} {name}"

    @contextmanager
    def _failures(self, method: str) -> Iterator[None]:
        try:
            yield
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


def _whole(devices: object) -> object:
    """A lazy list is walked through here, where what it raises is still the plugin's."""
    return list(devices) if isinstance(devices, Iterable) and not isinstance(devices, str) else devices


def _look_at(task: "asyncio.Task[T]") -> None:
    """An error that nobody waits for any more is looked at, or asyncio would complain of it."""
    if not task.cancelled():
        task.exception()


async def _only(item: object) -> AsyncGenerator[object, None]:
    yield item


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable
