"""Calls that may hang: in threads of their own, each within a limit, and no more than a few that are stuck.

What reads a driver's files, a network file system or a slow disk does not belong on the event loop. Python cannot stop
a thread, so one that hangs stays: a caller that tries again and again must not use up the threads of the process.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from plugwright.errors import PluginError
from plugwright.system import concurrency

__all__ = ["BlockingCalls"]

T = TypeVar("T")


class BlockingCalls:
    """The calls of one kind, which `name` says in errors: `scan of example.com/fpga`."""

    def __init__(self, name: str, limit: float, most_stuck: int = 4) -> None:
        self._name, self._limit, self._most_stuck = name, limit, most_stuck
        self._stuck: set[asyncio.Future[Any]] = set()

    async def run(self, function: Callable[[], T]) -> T:
        """The function's result; PluginError when it does not end in time, or cannot be begun."""
        if len(self._stuck) >= self._most_stuck:
            raise PluginError(f"{self._name} not begun: {len(self._stuck)} earlier ones have not ended")
        try:
            call = concurrency.begin_in_thread(self._name, function)
        except RuntimeError as error:  # no thread can be started
            raise PluginError(f"{self._name} not begun: {error}") from error
        try:
            # Not asyncio.timeout: the thread must not be forgotten with its future.
            done, _ = await asyncio.wait((call,), timeout=self._limit)
            if not done:
                raise PluginError(f"{self._name} did not end within {self._limit:g} s")
            return call.result()
        finally:
            if not call.done():
                self._stuck.add(call)
                call.add_done_callback(self._ended)

    def _ended(self, call: "asyncio.Future[Any]") -> None:
        self._stuck.discard(call)
        call.exception()  # retrieved: asyncio logs an exception that nobody does
