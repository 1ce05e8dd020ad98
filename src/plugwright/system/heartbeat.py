"""Whether the event loop still runs, for callers in other threads, and otherwise the blocking code.

Detects all blocking code: plugin code, its tasks, libraries, our own code. Nothing runs between two questions.
"""

import asyncio
import inspect
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType

__all__ = ["Heartbeat", "line_of_coroutine", "line_of_thread"]

_STANDARD_LIBRARY = f"{Path(os.__file__).parent}/"
_FROZEN = "<frozen "


class _Beat:
    def __init__(self) -> None:
        self.since = time.monotonic()
        self.ran = threading.Event()


class Heartbeat:
    """The heartbeat of the running event loop, in whose thread it must be made."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._pending: _Beat | None = None

    def check(self, limit: float = 2.0) -> str:
        """Empty if the loop runs a callback within `limit` seconds, otherwise the running code. For any thread."""
        if self._loop.is_closed():
            return "the event loop has ended"
        if threading.get_ident() == self._thread:
            return ""  # it runs this
        try:
            beat = self._beat()
        except RuntimeError:  # closed in the meantime
            return "the event loop has ended"
        if beat.ran.wait(max(0.0, beat.since + limit - time.monotonic())):
            return ""
        seconds = time.monotonic() - beat.since
        where = line_of_thread(self._thread)
        return "" if beat.ran.is_set() else f"event loop blocked for {seconds:.3g} s at {where}"

    def _beat(self) -> _Beat:
        """The pending callback of the loop, or a new callback, so a blocked loop never has more than one."""
        with self._lock:
            beat = self._pending
            if beat is None or beat.ran.is_set():
                beat = _Beat()
                self._loop.call_soon_threadsafe(beat.ran.set)
                self._pending = beat
            return beat


def line_of_thread(thread: int) -> str:
    """The current line of a thread, `FILE:LINE in NAME`: the innermost line outside of Python's own library."""
    return _innermost((frame.f_code, frame.f_lineno) for frame in _frames(sys._current_frames().get(thread)))


def line_of_coroutine(coroutine: object) -> str:
    """The same for a coroutine or an asynchronous generator: where it waits, or else where its code begins."""
    return _innermost(reversed(list(_suspended(coroutine))))


def _innermost(lines: Iterable[tuple[CodeType, int]]) -> str:
    found = list(lines)
    if not found:
        return "an unknown line"
    code, line = next((pair for pair in found if not _is_of_python(pair[0])), found[0])
    return f"{code.co_filename}:{line} in {code.co_name}"


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _suspended(awaited: object) -> Iterator[tuple[CodeType, int]]:
    """From the outermost to the innermost."""
    while True:
        frame: FrameType | None
        if inspect.iscoroutine(awaited):
            code, frame, awaited = awaited.cr_code, awaited.cr_frame, awaited.cr_await
        elif inspect.isasyncgen(awaited):
            code, frame, awaited = awaited.ag_code, awaited.ag_frame, awaited.ag_await
        else:
            return
        yield code, frame.f_lineno if frame is not None else code.co_firstlineno


def _is_of_python(code: CodeType) -> bool:
    name = code.co_filename
    return name.startswith(_FROZEN) or (name.startswith(_STANDARD_LIBRARY) and "/site-packages/" not in name)
