"""Calling the author's code: within a limit, off the loop if it may block, and its failures made ours.

Whatever a plugin raises becomes a `PluginError`, so that one plugin's mistake stays that plugin's.
"""

import asyncio
import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
)
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from plugwright.errors import PluginError, PluginFailed, PluginTimeout
from plugwright.sdk import threads
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.stalls import StallWatch, watched

__all__ = ["Caller"]

T = TypeVar("T")


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
            return threads.iterate_in_thread(thread, lambda: map(_whole, discover()))
        found = discover() if _is_async(discover) else await threads.in_thread(thread, discover)
        if isinstance(found, AsyncIterable):
            return self._stepped(aiter(found))
        if isinstance(found, Iterator):  # a generator, from a function that only looked like a plain one
            return threads.iterate_in_thread(thread, lambda: map(_whole, found))
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
                answer = await threads.in_thread(self._thread(name), partial(method, *arguments))
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
