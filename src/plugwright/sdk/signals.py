"""Signals of a running daemon: SIGTERM and SIGINT stop it, SIGHUP reloads; a stop always has a time limit.

The limit is extended while claims in progress are finished (`finishing`), until a second SIGTERM or SIGINT.

SIGUSR1 and SIGUSR2, which by default end a process, are ignored.

A separate thread receives the kernel's notice of a signal (`signal.set_wakeup_fd`), because a handler in Python only
runs when the main thread returns to the interpreter: a main thread hanging in a driver's library never does, and a main
thread sleeping in the event loop does not if the kernel gave the signal to another thread. The thread sleeps until
there is a signal. When a stop exceeds its limit, the thread ends the process.
"""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec

from plugwright.sdk import logs
from plugwright.system.early_signals import EarlyHangup
from plugwright.system.heartbeat import line_of_thread

__all__ = ["Signals", "StopLimits", "end_process"]

logger = logging.getLogger(__name__)

_STOP = frozenset({signal.SIGTERM, signal.SIGINT})
_HANDLED = (*_STOP, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)  # by default, each of them ends the process
_FINISHING, _FINISHED = 254, 255  # our own notices besides the numbers of signals


class StopLimits(msgspec.Struct, frozen=True):
    """Limits in seconds; together less than a pod's ten for its end."""

    finish: float = 8.0  # for claims in progress, before the stop; without any, it takes no time
    stop: float = 0.9  # for an orderly end
    last_words: float = 0.05  # afterwards, for a log line about that


class Signals:
    """Receives signals while inside, in the main thread. Calls `end` if a stop takes too long."""

    def __init__(self, limits: StopLimits | None = None, end: Callable[[StopLimits], None] | None = None) -> None:
        self.stop = self.stop_now = self.reload = False  # `stop_now`: a second signal
        self.limits, self._end = limits or StopLimits(), end or end_process
        self._wake: Callable[[], object] = lambda: None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Signals":
        self._received, self._notices = socket.socketpair()
        self._notices.setblocking(False)
        self._thread = threading.Thread(target=self._watch, name="plugwright-signals", daemon=True)
        self._thread.start()
        self._wakeup_before = signal.set_wakeup_fd(self._notices.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, _handled_by_thread) for number in _HANDLED}
        early = self._before[signal.SIGHUP]
        self.reload = isinstance(early, EarlyHangup) and early.received
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        # At exit Python waits for a plugin's own non-daemon threads: the limit still applies to those.
        main = threading.main_thread()
        if not self.stop or all(thread is main or thread.daemon for thread in threading.enumerate()):
            self._close()

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Inside, a stop can take `limits.finish` longer, unless a second signal has arrived."""
        self._notify(_FINISHING)
        try:
            yield
        finally:
            self._notify(_FINISHED)

    def subscribe(self, wake: Callable[[], object]) -> None:
        """Calls `wake`, which must not block, in another thread after each signal from now on."""
        self._wake = wake

    def _close(self) -> None:
        assert self._thread is not None
        self._notices.close()
        self._thread.join()
        self._received.close()

    def _notify(self, notice: int) -> None:
        with suppress(BlockingIOError):
            self._notices.send(bytes([notice]))

    def _take(self, notices: bytes) -> None:
        stops = sum(number in _STOP for number in notices)
        self.stop_now |= stops > (not self.stop)
        self.stop |= stops > 0
        self.reload |= signal.SIGHUP in notices
        self._wake()

    def _watch(self) -> None:
        deadline: float | None = None  # set by the first stop signal
        while True:
            self._received.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
            try:
                notices = self._received.recv(64)
            except TimeoutError:
                self._end(self.limits)
                return
            if not notices:
                return
            self._take(notices)
            if self.stop:
                deadline = self._deadline(deadline, notices)

    def _deadline(self, before: float | None, notices: bytes) -> float:
        soon = time.monotonic() + self.limits.stop
        if before is None:
            return soon
        if _FINISHED in notices or not _STOP.isdisjoint(notices):
            return min(before, soon)
        return soon + self.limits.finish if _FINISHING in notices and not self.stop_now else before


def _handled_by_thread(_: int, __: object) -> None:
    """Does nothing: only with a handler in Python does the kernel's notice reach the thread."""


def end_process(limits: StopLimits) -> None:
    """Logs the forced end and exits with code 0, even if the log hangs as well."""
    with suppress(RuntimeError):  # no thread available
        words = threading.Thread(target=_say_so, name="plugwright-last-words", daemon=True)
        words.start()
        words.join(limits.last_words)
    os._exit(0)


def _say_so() -> None:
    where = line_of_thread(threading.main_thread().ident or 0)
    logger.warning("plugin code did not end in time, exiting without it", extra={"where": where})
    logs.flush()
