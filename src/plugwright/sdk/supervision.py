"""Supervision of one resource: its failures are reported, its parts restarted, and other resources unaffected.

Some parts of a resource run forever: discovery, registration, the bookkeeping of removed devices. Every exception of a
part, whether the plugin's fault or ours, is logged with its traceback, counted, shown in `status` and passed to the
part, which marks the devices Unhealthy; then the part is restarted after a wait. Plugin code is abandoned if it ignores
its cancellation: neither a thread nor a task can be killed, but nothing has to wait for it.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from plugwright.sdk.metrics import ResourceMetrics
from plugwright.sdk.settings import Settings
from plugwright.system.concurrency import Backoff, cancel_within, retrieve_exception, single_error
from plugwright.system.latest import Latest
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["Part", "ResourceSupervisor", "RestartTiming"]

logger = logging.getLogger(__name__)

_LONGEST_WAIT = 5.0  # seconds; a resource that is not served is worth an attempt every few seconds


class Part(msgspec.Struct, frozen=True):
    """A part of a resource. `failed` gets the reason; `restarted` is called when the part is about to run again."""

    name: str
    run: Callable[[], Awaitable[None]]
    failed: Callable[[str], None]
    restarted: Callable[[], None] = lambda: None


class RestartTiming(msgspec.Struct, frozen=True):
    """The clock for steady parts, and the wait before a restart."""

    now: Callable[[], float] = time.monotonic
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep


class ResourceSupervisor:
    """Restarts the failed parts of a resource. `fault` is the last failure, until every part has run steadily since."""

    def __init__(
        self, resource: str, metrics: ResourceMetrics, settings: Settings, clock: RestartTiming | None = None
    ) -> None:
        self.fault = Latest("")
        self.abandoned: set[asyncio.Task[Any]] = set()  # cancelled, but still running
        self._resource, self._metrics, self._clock = resource, metrics, clock or RestartTiming()
        self._timeouts, self._stop_limit = settings.timeouts, settings.limits.stop
        self._problems = LogOnce(logger)
        self._steady: asyncio.TimerHandle | None = None

    async def run(self, parts: Sequence[Part]) -> None:
        """Runs the parts forever. They end together if the failure of one cannot even be recorded."""
        backoff = self._backoff()
        try:
            while True:
                began = self._clock.now()
                error = await self._run_once(parts)
                if self._clock.now() - began > self._timeouts.steady:
                    backoff.reset()
                self._record("resource", error)
                await self._clock.pause(backoff.delay())
        finally:
            self._cancel_timer()

    async def end(self, *tasks: "asyncio.Task[Any]") -> None:
        """Cancels the tasks and waits for them, but not for endless plugin code."""
        self.abandoned.update(tasks)
        for task in tasks:
            task.add_done_callback(self.abandoned.discard)
            task.add_done_callback(retrieve_exception)
        for task in await cancel_within(self._stop_limit, *tasks):
            self._metrics.abandoned += 1
            facts = {"resource": self._resource, "task": task.get_name(), "seconds": self._stop_limit}
            logger.error("plugin code does not end, continuing without it", extra=facts)

    async def _run_once(self, parts: Sequence[Part]) -> BaseException:
        tasks = [asyncio.create_task(self._keep(part), name=f"{part.name} of {self._resource}") for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self.end(*tasks)  # this ends the streams, and the kubelet considers the devices unhealthy
        return _error_of(done.pop())

    async def _keep(self, part: Part) -> None:
        backoff = self._backoff()
        while True:
            began = self._clock.now()
            try:
                await part.run()
                error: BaseException = RuntimeError("it ended without an error")
            except Exception as raised:  # noqa: BLE001  one resource's supervision
                error = single_error(raised)
            if self._clock.now() - began > self._timeouts.steady:
                backoff.reset()
            part.failed(self._record(part.name, error))
            await self._clock.pause(backoff.delay())
            part.restarted()

    def _record(self, name: str, error: BaseException) -> str:
        """Records a failure; returns the reason, for `status` and for the devices."""
        reason = clean(f"{name} failed: {type(error).__name__}: {clean(error)}")
        self._metrics.restarts += 1
        facts = {"resource": self._resource, "error": reason}
        if self._problems.is_news(reason):
            logger.error("resource failed, restarting it", extra=facts, exc_info=error)
        logger.debug("resource failed here", extra=facts, exc_info=error)
        self.fault.publish(reason)
        self._cancel_timer()
        self._steady = asyncio.get_running_loop().call_later(self._timeouts.steady, self._recovered)
        return reason

    def _recovered(self) -> None:
        self._problems.recovered()
        self.fault.publish("")

    def _cancel_timer(self) -> None:
        if self._steady is not None:
            self._steady.cancel()
            self._steady = None

    def _backoff(self) -> Backoff:
        return Backoff(self._timeouts.restart, max(self._timeouts.restart, _LONGEST_WAIT))


def _error_of(task: "asyncio.Task[None]") -> BaseException:
    if task.cancelled():
        return RuntimeError(f"{task.get_name()} was cancelled by plugin code")
    return task.exception() or RuntimeError(f"{task.get_name()} ended without an error")
