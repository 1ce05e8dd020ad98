"""Receives the events of GPUs: keeps a thread for them, replaces it when it ends, and knows why there is none.

Without events, health is not watched. It is no fault if a thread ended because its driver was unloaded: the next read
of the driver reports this. If the driver can be read but one thread ends after another, this is a fault until a thread
has waited for a while: a successful registration alone proves nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from plugwright.errors import DriverGone
from plugwright.plugins.nvidia.driver import GpuDriver, GpuEvent
from plugwright.plugins.nvidia.nvml_events import EventThread
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["EventUser", "EventWatch", "Waits", "in_one_line"]

logger = logging.getLogger(__name__)

_TOO_OFTEN = 2  # consecutive threads that have ended


class Waits(Protocol):
    """Seconds: before a thread is restarted, and after which a thread waiting for events is known to work."""

    @property
    def retry(self) -> float: ...

    @property
    def event_wait(self) -> float: ...


class EventUser(Protocol):
    @property
    def driver(self) -> GpuDriver: ...

    @property
    def intervals(self) -> Waits: ...

    @property
    def clock(self) -> Callable[[], float]: ...

    def on_watched(self, watched: frozenset[str], unwatched: Mapping[str, str]) -> None:
        """The GPUs whose events are received, and those without, with the reasons."""
        ...

    def on_event(self, event: GpuEvent, at: float) -> None: ...

    def read_now(self) -> None: ...


class EventWatch:
    """An `EventListener` with one thread for all present GPUs, and another for those added later."""

    def __init__(self, user: EventUser) -> None:
        self._user = user
        self._watched: frozenset[str] = frozenset()
        self._unwatched: dict[str, str] = {}
        self._problems = LogOnce(logger)
        self._threads: dict[EventThread, frozenset[str]] = {}
        self._without_events: set[str] = set()  # GPUs that do not support events
        self._restart_timer: asyncio.TimerHandle | None = None
        self._steady_timer: asyncio.TimerHandle | None = None
        self._lost_in_a_row = 0

    @property
    def clock(self) -> Callable[[], float]:
        return self._user.clock

    def follow(self, uuids: Sequence[str]) -> None:
        """Receives the events of these GPUs, which the driver reports."""
        self._publish(self._watched, {uuid: why for uuid, why in self._unwatched.items() if uuid in uuids})
        covered = {uuid for thread, uuids in self._threads.items() if not thread.stopped for uuid in uuids}
        missing = tuple(uuid for uuid in uuids if uuid not in covered | self._without_events)
        if missing and self._restart_timer is None:
            thread = EventThread(self._user.driver, missing, self, self._user.intervals.event_wait)
            self._threads[thread] = frozenset(missing)
            try:
                thread.start()
            except RuntimeError as error:  # no thread available
                self.on_lost(thread, error)

    def on_driver_gone(self, error: DriverGone) -> None:
        self._lost_in_a_row = 0
        if error.unloaded:  # an event set ends with its driver, even if its thread notices that later
            self._stop_threads()

    def stop(self) -> None:
        self._stop_threads()
        for timer in (self._restart_timer, self._steady_timer):
            if timer is not None:
                timer.cancel()
        self._restart_timer = self._steady_timer = None

    def on_registered(self, thread: EventThread, watched: frozenset[str], unwatched: Mapping[str, str]) -> None:
        if thread.stopped:
            return
        asked = self._threads[thread]
        self._without_events |= asked - watched - set(unwatched)
        self._threads[thread] = watched
        if not watched:
            self._threads.pop(thread)
        for uuid, reason in unwatched.items():
            facts = {"gpu": uuid, "error": reason}
            self._problems.error("cannot register events of a GPU", reason, key=uuid, extra=facts)
        for uuid in watched:
            self._problems.recovered(uuid)
        proved = asked if self._lost_in_a_row < _TOO_OFTEN else frozenset()
        still_unwatched = {uuid: reason for uuid, reason in self._unwatched.items() if uuid not in proved}
        self._publish((self._watched | watched) - set(unwatched), {**still_unwatched, **unwatched})
        if watched and self._lost_in_a_row:
            if self._steady_timer is not None:
                self._steady_timer.cancel()
            wait = self._user.intervals.event_wait
            self._steady_timer = asyncio.get_running_loop().call_later(wait, self._on_steady, thread)

    def on_event(self, thread: EventThread, event: GpuEvent, at: float) -> None:
        if not thread.stopped:
            self._user.on_event(event, at)

    def on_lost(self, thread: EventThread, error: Exception) -> None:
        """Makes the listener read the driver: a new thread starts after a pause if the driver still exists."""
        uuids = self._threads.pop(thread, None)
        if uuids is None or thread.stopped:
            return
        self._lost_in_a_row += 1
        is_fault = not isinstance(error, DriverGone) or self._lost_in_a_row >= _TOO_OFTEN
        self._log_lost(error, is_fault)
        faults = dict.fromkeys(uuids, in_one_line(error)) if is_fault else {}
        self._publish(self._watched - uuids, {**self._unwatched, **faults})
        self._without_events.clear()
        if self._restart_timer is None:  # a registration that fails immediately would fail again immediately
            loop = asyncio.get_running_loop()
            self._restart_timer = loop.call_later(self._user.intervals.retry, self._allow_restart)
        self._user.read_now()

    def _log_lost(self, error: Exception, is_fault: bool) -> None:
        if not is_fault:
            logger.info("no longer receiving events of GPUs", extra={"reason": clean(error)})
        elif self._problems.is_news(in_one_line(error)):
            cause = None if isinstance(error, DriverGone) else error
            logger.error("receiving events of GPUs failed", extra={"error": clean(error)}, exc_info=cause)

    def _allow_restart(self) -> None:
        self._restart_timer = None
        self._user.read_now()

    def _on_steady(self, thread: EventThread) -> None:
        """Records a thread as steady, after others had ended."""
        uuids = self._threads.get(thread, frozenset())
        if uuids and not thread.stopped:
            self._lost_in_a_row = 0
            self._problems.recovered()
            self._publish(self._watched, {uuid: why for uuid, why in self._unwatched.items() if uuid not in uuids})

    def _stop_threads(self) -> None:
        for thread in self._threads:
            thread.stopped = True
        self._threads.clear()
        self._without_events.clear()
        self._publish(frozenset(), self._unwatched)

    def _publish(self, watched: frozenset[str], unwatched: Mapping[str, str]) -> None:
        self._watched, self._unwatched = watched, dict(unwatched)
        self._user.on_watched(self._watched, self._unwatched)


def in_one_line(error: BaseException) -> str:
    return clean(error) if isinstance(error, DriverGone) else clean(f"{type(error).__name__}: {error}")
