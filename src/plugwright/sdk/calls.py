"""Calling the author's code: within a limit, off the loop if it may block, and its failures made ours.

Whatever a plugin raises becomes a `PluginError`, so that one plugin's mistake stays that plugin's.
"""

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from plugwright.errors import PluginError, PluginFailed, PluginTimeout
from plugwright.model import Device
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

    async def call(self, method: Callable[..., T | Awaitable[T]], *arguments: object, limit: float) -> T:
        """The method's answer; `PluginTimeout` or `PluginFailed` if there is none."""
        name = method.__name__
        with self._failures(name):
            try:
                async with asyncio.timeout(limit) as timeout:
                    return await self._answer(name, method, arguments)
            except TimeoutError:
                if timeout.expired():
                    raise PluginTimeout(self.resource, name, limit) from None
                raise

    async def lists(self, plugin: Plugin) -> AsyncIterator[Iterable[Device]]:
        """What discover() yields, in whichever of the ways it may be written."""
        with self._failures("discover"):
            discover = plugin.discover
            if inspect.isgeneratorfunction(discover):
                lists = threads.iterate_in_thread(self._thread("discover"), cast("Callable[[], Any]", discover))
                async for devices in lists:
                    yield devices
                return
            found = discover() if _is_async(discover) else await threads.in_thread(self._thread("discover"), discover)
            async for devices in self._found(found):
                yield devices

    async def _found(self, found: object) -> AsyncIterator[Iterable[Device]]:
        if isinstance(found, AsyncIterable):
            async for devices in self._stepped(aiter(found)):
                yield devices
        elif isinstance(found, Awaitable):
            yield await self._watched("discover", found)
        else:
            yield cast("Iterable[Device]", found)

    async def _stepped(self, lists: AsyncIterator[Iterable[Device]]) -> AsyncIterator[Iterable[Device]]:
        try:
            while True:
                try:
                    devices = await self._watched("discover", anext(lists))
                except StopAsyncIteration:
                    return
                yield devices
        finally:
            close = getattr(lists, "aclose", None)
            if close is not None:
                await close()

    async def _answer(self, name: str, method: Callable[..., T | Awaitable[T]], arguments: tuple[object, ...]) -> T:
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
        except PluginError:
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise PluginFailed(self.resource, method, error) from error  # the plugin cancelled itself
        except (Exception, SystemExit) as error:
            raise PluginFailed(self.resource, method, error) from error


def _is_async(method: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable
