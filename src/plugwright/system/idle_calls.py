"""Calls for an idle event loop: log lines and audits, which must not delay the next answer.

Each turn of the loop makes one call, so a new request waits for at most one of them. If the loop is never idle, calls
run anyway after a tenth of a second.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

__all__ = ["IdleCalls"]

logger = logging.getLogger(__name__)

_QUIET = 0.001  # seconds without another call; by then a caller in a hurry has come back
_LATEST = 0.1  # seconds after the first one


class IdleCalls:
    """`add` is called on the event loop; `flush` makes all waiting calls."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()
        self._first = self._last = 0.0  # when the oldest call was added, and the newest

    def add(self, call: Callable[[], object]) -> None:
        self._last = time.monotonic()
        if not self._waiting:
            self._first = self._last
            asyncio.get_running_loop().call_later(_QUIET, self._run)
        self._waiting.append(call)

    def flush(self) -> None:
        while self._waiting:
            self._make()

    def _run(self) -> None:
        now, loop = time.monotonic(), asyncio.get_running_loop()
        wait = min(self._last + _QUIET, self._first + _LATEST) - now
        if wait > 0:
            loop.call_later(wait, self._run)
            return
        if self._waiting:  # no more than one: two after another double the p99 of an Allocate
            self._make()
        if self._waiting:
            loop.call_soon(self._run)

    def _make(self) -> None:
        call = self._waiting.popleft()
        try:
            call()
        except Exception:  # one call: the others are made all the same
            logger.exception("a call for the idle event loop failed")
