"""Plugin code that keeps the event loop to itself is noticed while it does, and named.

An `async` method that blocks stops everything that shares its loop, its own time limit included. So each step of
plugin code is announced here, and a thread looks at a step that does not end. The thread sleeps unless plugin code
has just run: an idle daemon has no wake-ups from it.
"""

import logging
import sys
import threading
import time
import types
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["StallWatch", "watched"]

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
