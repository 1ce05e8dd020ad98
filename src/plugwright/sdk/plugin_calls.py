"""Calls of the author's code: time-limited, in threads if it can block, with its errors converted to ours.

Every exception of a plugin becomes a `PluginError`, so a mistake in one plugin does not affect others.

A blocking `async` method stops everything on its event loop, including its own time limit. Therefore each step of
plugin code runs under a `StallDetector`, whose thread logs a blocked step with its current line. The thread sleeps
unless plugin code has just run, and causes no wake-ups of an idle daemon.

A method without `async` runs in a thread of `PluginThreads`, of which only a few can hang.
"""

import asyncio
import inspect
import logging
import threading
import time
import types
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import msgspec

from plugwright.errors import InvalidValue, PluginError, PluginFailed, PluginTimeout
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.plugin_checks import ListPacer
from plugwright.system import concurrency
from plugwright.system.blocking import BlockingCalls
from plugwright.system.heartbeat import line_of_coroutine, line_of_thread
from plugwright.system.latest import Latest

__all__ = ["MOST_HUNG", "MOST_THREADS", "PluginCalls", "PluginThreads", "StallDetector"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
MOST_HUNG = 4  # threads of one method; its further calls fail immediately
MOST_THREADS = 16  # of one method; its further calls wait
_MOST_DEVICES = 300_000  # of a list; the kubelet accepts no more in one message


class _Step(msgspec.Struct, frozen=True, eq=False):
    """Plugin code currently running on the event loop."""

    code: str
    thread: int
    since: float


class StallDetector:
    """Finds steps of plugin code blocking the event loop for more than `limit` seconds."""

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
        """The plugin code currently blocking the event loop for too long; empty if none."""
        step = self._step
        return step.code if step is not None and time.monotonic() - step.since > self._limit else ""

    @types.coroutine
    def run(self, code: str, inner: Coroutine[Any, Any, T], source: object = None) -> Generator[Any, Any, T]:
        """The result of `inner`, each of whose steps is timed under the name `code`.

        `source` is the generator of the step `inner`, if any.
        """
        value: object = None
        error: BaseException | None = None
        while True:
            self.begin(code)
            try:
                awaited = inner.send(value) if error is None else inner.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                self.end(source or inner)
            value, error = None, None
            try:
                value = yield awaited
            except BaseException as thrown:  # noqa: BLE001  passed to `inner` in the next step
                error = thrown

    def begin(self, code: str) -> None:
        self._step = _Step(code, threading.get_ident(), time.monotonic())
        if not self._awake:
            self._awake = True
            self._wake.set()
            if self._thread is None:
                self._thread = self._started()

    def end(self, source: object) -> None:
        step, self._step = self._step, None
        if step is None:
            return
        seconds = time.monotonic() - step.since
        if seconds > self._limit:
            self._report(step, line_of_coroutine(source))  # it is no longer in the line that blocked
            logger.warning(
                "plugin code gave the event loop back", extra={"code": step.code, "seconds": round(seconds, 3)}
            )

    def close(self) -> None:
        self._stop.set()
        self._wake.set()

    def _started(self) -> threading.Thread | None:
        thread = threading.Thread(target=self._watch, name="plugwright-stalls", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread available: the next step tries again
            logger.debug("stalls are not watched", extra={"error": str(error)})
            self._awake = False
            return None
        return thread

    def _watch(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._wake.clear()
            wait = self._limit
            while not self._stop.wait(wait):
                step, wait = self._step, self._limit
                if step is None:
                    self._awake = False
                    if self._step is None:  # a step can have begun in between, while `_awake` was still set
                        break
                    self._awake = True
                elif time.monotonic() - step.since > self._limit:
                    self._report(step, line_of_thread(step.thread))
                else:  # begun since the last check: checked again as soon as its limit has passed
                    wait = step.since + self._limit - time.monotonic()

    def _report(self, step: _Step, where: str) -> None:
        if step is self._reported:
            return
        self._reported = step
        self.count += 1
        facts = {"code": step.code, "where": where, "hint": "write it without async, or await"}
        logger.error("plugin code blocks the event loop", extra=facts)


class PluginThreads:
    """Threads for the code of one plugin: a few per method, and no further calls while several hang.

    `blocked` contains the currently suspended methods, with the reasons.
    """

    def __init__(self, resource: str) -> None:
        self.blocked: Latest[Mapping[str, str]] = Latest({})
        self._resource = resource
        self._calls: dict[str, BlockingCalls] = {}

    @property
    def stuck(self) -> dict[str, int]:
        """Number of hung threads by method; methods without hung threads are omitted."""
        return {method: len(calls.hung.value) for method, calls in self._calls.items() if calls.hung.value}

    def of(self, method: str) -> BlockingCalls:
        calls = self._calls.get(method)
        if calls is None:
            name = f"{method}() of {self._resource}"
            calls = self._calls[method] = BlockingCalls(name, None, MOST_HUNG, MOST_THREADS)
            calls.hung.subscribe(self._publish_blocked)
        return calls

    def _publish_blocked(self) -> None:
        refusals = {method: (calls.name, calls.refusal) for method, calls in self._calls.items()}
        reasons = {method: f"{name} is not called: {reason}" for method, (name, reason) in refusals.items() if reason}
        self.blocked.publish_if_changed(reasons)


class PluginCalls:
    """Calls the methods of the plugin of `resource`."""

    def __init__(self, resource: str, stalls: StallDetector) -> None:
        self.resource, self.stalls = resource, stalls
        self.threads = PluginThreads(resource)

    async def call(self, name: str, method: Callable[..., T | Awaitable[T]], *arguments: object, limit: float) -> T:
        """The method's result; `PluginTimeout` or `PluginFailed` if there is none within `limit` seconds."""
        task = concurrency.start(self._result(name, method, arguments))
        if task.done():
            return task.result()
        try:
            # Not asyncio.timeout, which would wait for a method ignoring its cancellation.
            done, _ = await asyncio.wait((task,), timeout=limit)
            if not done:
                raise PluginTimeout(self.resource, name, limit)
            return task.result()
        finally:
            task.cancel()
            task.add_done_callback(concurrency.retrieve_exception)

    async def device_lists(self, plugin: Plugin) -> AsyncGenerator[object, None]:
        """The lists yielded by discover(), in whichever form it is written; not checked yet."""
        try:
            async with aclosing(self._device_lists(plugin)) as lists:
                async for devices in lists:
                    yield devices
        except BaseException as error:
            self._raise_plugin_error("discover", error)
            raise

    async def _device_lists(self, plugin: Plugin) -> AsyncGenerator[object, None]:
        discovered = await self._discover(plugin)
        if not isinstance(discovered, AsyncIterable):
            yield _evaluated(discovered)
            return
        lists, pacer = aiter(discovered), ListPacer(self.resource)
        try:
            while True:
                try:
                    devices = await self._timed("discover", anext(lists), lists)
                except StopAsyncIteration:
                    return
                yield _evaluated(devices)
                await pacer.pause()
        finally:
            if isinstance(lists, AsyncGenerator):
                await lists.aclose()

    async def _discover(self, plugin: Plugin) -> object:
        """The single list of discover(), or an async iterable of lists."""
        discover = plugin.discover
        if inspect.isgeneratorfunction(discover):
            return self.threads.of("discover").iterate(lambda: map(_evaluated, discover()))
        discovered = discover() if _is_async(discover) else await self.threads.of("discover").run(discover)
        if isinstance(discovered, Iterator):  # a generator returned by a function that looked like a plain one
            return self.threads.of("discover").iterate(lambda: map(_evaluated, discovered))
        return await self._timed("discover", discovered) if isinstance(discovered, Awaitable) else discovered

    async def _result(self, name: str, method: Callable[..., T | Awaitable[T]], arguments: tuple[object, ...]) -> T:
        try:
            if _is_async(method):
                result = method(*arguments)
            else:
                result = await self.threads.of(name).run(partial(method, *arguments))
            return await self._timed(name, result) if isinstance(result, Awaitable) else result
        except BaseException as error:
            self._raise_plugin_error(name, error)
            raise

    def _timed(self, name: str, awaitable: Awaitable[T], source: object = None) -> Awaitable[T]:
        steps = awaitable if isinstance(awaitable, Coroutine) else _as_coroutine(awaitable)
        return self.stalls.run(f"{name}() of {self.resource}", steps, source)

    def _raise_plugin_error(self, method: str, error: BaseException) -> None:
        """Raises `PluginFailed` for other errors caused by the plugin."""
        if isinstance(error, InvalidValue):
            if method == "command":
                return  # the operator's value, not the author's
        elif isinstance(error, PluginError | KeyboardInterrupt | GeneratorExit):
            return
        elif isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is None or task.cancelling():
                return
            # otherwise the plugin cancelled itself
        raise PluginFailed(self.resource, method, error) from error  # SystemExit too, and exceptions of bindings


def _is_async(method: Callable[..., object]) -> bool:
    code = getattr(method, "__code__", None)
    if isinstance(code, types.CodeType) and code.co_flags & inspect.CO_COROUTINE:
        return True
    return inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)


def _evaluated(devices: object) -> object:
    """Evaluates a lazy list here, where its errors are still attributed to the plugin. It can be endless."""
    if not isinstance(devices, Iterable) or isinstance(devices, str):
        return devices
    evaluated = list(islice(devices, _MOST_DEVICES + 1))
    if len(evaluated) > _MOST_DEVICES:
        raise InvalidValue(f"discover() must yield at most {_MOST_DEVICES:,} devices in a list")
    return evaluated


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable
