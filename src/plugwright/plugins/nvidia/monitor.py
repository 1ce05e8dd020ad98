"""The monitor of one machine's GPUs, shared by all resources that offer parts of it.

It reads the driver in a thread, receives events from another, and publishes the newest `View`. A machine on which
nothing happens is read once a minute. What a view means is decided elsewhere: `selection` which devices a resource
offers, and `health` which of them are fit.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace

from plugwright.plugins.nvidia import health
from plugwright.plugins.nvidia.driver import (
    DriverGone,
    EventKind,
    Gpu,
    GpuDriver,
    GpuEvent,
    GpuHealth,
    GpuSnapshot,
)
from plugwright.plugins.nvidia.health import XidRecord
from plugwright.plugins.nvidia.nvml_events import EventThread
from plugwright.plugins.nvidia.selection import Selection
from plugwright.system import concurrency
from plugwright.system.concurrency import Latest

__all__ = ["GpuMonitor", "PollIntervals", "View", "changes"]

logger = logging.getLogger(__name__)

ReadResult = tuple[GpuSnapshot, dict[str, GpuHealth]] | DriverGone
XidRecords = Mapping[str, tuple[XidRecord, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PollIntervals:
    """Seconds. `event_wait`: how long a thread that is no longer needed may go on waiting for an event."""

    rescan: float = 60.0
    retry: float = 5.0  # while the driver cannot be read
    read_timeout: float = 30.0
    event_wait: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The newest known state of the machine. `problem`: why the driver cannot be read now.

    `watched` are the GPUs whose events are received, `unwatched` those whose events could not be registered, and why.
    """

    is_pending: bool = True  # the driver has not been read yet
    snapshot: GpuSnapshot = field(default_factory=GpuSnapshot)
    health: Mapping[str, GpuHealth] = field(default_factory=dict, hash=False)
    xids: XidRecords = field(default_factory=dict, hash=False)
    watched: frozenset[str] = frozenset()
    unwatched: Mapping[str, str] = field(default_factory=dict, hash=False)
    selections: Mapping[str, Selection] = field(default_factory=dict, hash=False)  # by resource
    problem: str = ""


class GpuMonitor:
    """Reads the machine while at least one resource keeps it `running`; the view stays in between."""

    def __init__(
        self,
        driver: GpuDriver,
        intervals: PollIntervals | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.driver = driver
        self.intervals = intervals or PollIntervals()
        self.clock = clock
        self.views = Latest(View())
        self._users = 0
        self._task: asyncio.Task[None] | None = None
        self._read_requested = asyncio.Event()
        self._reading: asyncio.Future[ReadResult] | None = None
        self._threads: dict[EventThread, frozenset[str]] = {}
        self._restart_timer: asyncio.TimerHandle | None = None
        self._without_events: set[str] = set()  # GPUs that do not support events

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._users += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="watch NVIDIA GPUs")
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                await self._stop()

    @contextmanager
    def selecting(self, resource: str, selection: Selection) -> Iterator[None]:
        """Publishes which devices a resource selects, so that other resources find overlaps."""
        self._change(selections={**self.views.value.selections, resource: selection})
        try:
            yield
        finally:
            selections = dict(self.views.value.selections)
            if selections.get(resource) is selection:  # a newer plugin may have replaced it
                del selections[resource]
                self._change(selections=selections)

    def read_now(self) -> None:
        self._read_requested.set()

    def republish(self) -> None:
        """Makes every reader evaluate the view again."""
        self.views.publish(replace(self.views.value))

    def clear_xids(self, uuid: str) -> None:
        """Forgets the Xids that a GPU has reported."""
        self._change(xids={gpu: records for gpu, records in self.views.value.xids.items() if gpu != uuid})
        self.read_now()

    def on_registered(self, thread: EventThread, watched: frozenset[str], unwatched: Mapping[str, str]) -> None:
        if thread.stopped:
            return
        view = self.views.value
        self._without_events |= self._threads[thread] - watched - set(unwatched)
        self._threads[thread] = watched
        if not watched:
            self._threads.pop(thread)
        for uuid, reason in unwatched.items():
            if uuid not in view.unwatched:
                logger.error("cannot register events of a GPU", extra={"gpu": uuid, "error": reason})
        still_unwatched = {uuid: reason for uuid, reason in view.unwatched.items() if uuid not in watched}
        self._change(
            watched=(view.watched | watched) - set(unwatched),
            unwatched={**still_unwatched, **unwatched},
        )

    def on_event(self, thread: EventThread, event: GpuEvent) -> None:
        if thread.stopped:
            return
        if event.kind is EventKind.XID:
            logger.warning("Xid", extra={"gpu": event.gpu, "xid": event.xid, "gpu_instance": event.gpu_instance})
        if event.kind is EventKind.XID and event.gpu:  # a GPU without a name is found by the next read
            xids = self.views.value.xids
            records = health.record_xid(xids.get(event.gpu, ()), event.xid, self.clock())
            self._change(xids={**xids, event.gpu: records})
        self.read_now()

    def on_lost(self, thread: EventThread, reason: str) -> None:
        """Reads the driver: a new thread starts after a pause if the driver is still there."""
        uuids = self._threads.pop(thread, None)
        if uuids is not None and not thread.stopped:
            self._change(watched=self.views.value.watched - uuids)
            logger.info("no longer receiving events of GPUs", extra={"reason": reason})
            self._without_events.clear()
            if self._restart_timer is None:  # a registration that fails at once would fail again at once
                loop = asyncio.get_running_loop()
                self._restart_timer = loop.call_later(self.intervals.retry, self._allow_restart)
            self.read_now()

    def _allow_restart(self) -> None:
        self._restart_timer = None
        self.read_now()

    async def _run(self) -> None:
        while True:
            self._read_requested.clear()
            self._update(await self._read())
            pause = self.intervals.retry if self.views.value.problem else self.intervals.rescan
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._read_requested.wait()

    async def _read(self) -> ReadResult:
        """Waits for an earlier read that has not returned: another one would be another thread that hangs."""
        if self._reading is None or self._reading.done():
            self._reading = concurrency.begin_in_thread("nvidia read", self._read_driver)
        done, _ = await asyncio.wait((self._reading,), timeout=self.intervals.read_timeout)
        if not done:
            return DriverGone(f"the driver has not answered for {self.intervals.read_timeout:g} s")
        return self._reading.result()

    def _read_driver(self) -> ReadResult:
        try:
            snapshot = self.driver.read()
            return snapshot, {gpu.uuid: self.driver.health(gpu.uuid) for gpu in snapshot.gpus}
        except DriverGone as error:
            self.driver.close()  # the next read opens the driver that is there by then
            return error

    def _update(self, result: ReadResult) -> None:
        view = self.views.value
        if isinstance(result, DriverGone):
            gone = {uuid: GpuHealth(fault=str(result), away=result.unloaded) for uuid in view.health}
            self._change(is_pending=False, problem=str(result), xids=_updated(view.xids, gone))
            if result.unloaded:  # an event set ends with its driver, even if its thread notices that later
                self._stop_threads()
            return
        snapshot, values = result
        values = {
            gpu.uuid: replace(values[gpu.uuid], fault=values[gpu.uuid].fault or gpu.fault) for gpu in snapshot.gpus
        }
        absent = {uuid: GpuHealth(fault="absent", away=True) for uuid in view.xids if uuid not in values}
        _log_changes(view.snapshot, snapshot)
        self._change(
            is_pending=False,
            snapshot=snapshot,
            health=values,
            xids=_updated(view.xids, {**values, **absent}),
            unwatched={uuid: reason for uuid, reason in view.unwatched.items() if uuid in values},
            problem="",
        )
        self._watch_events(snapshot)

    def _change(self, **changes: object) -> None:
        before = self.views.value
        view = replace(before, **changes)  # type: ignore[arg-type]
        if not before.is_pending and before.problem != view.problem:
            if view.problem:
                logger.error("cannot read GPUs, they become Unhealthy", extra={"error": view.problem})
            else:
                logger.info("GPUs can be read again")
        self.views.publish_if_changed(view)

    def _watch_events(self, snapshot: GpuSnapshot) -> None:
        """One thread for all present GPUs, and one more for those that are added later."""
        covered = {uuid for thread, uuids in self._threads.items() if not thread.stopped for uuid in uuids}
        covered |= self._without_events
        uuids = tuple(gpu.uuid for gpu in snapshot.gpus if gpu.uuid not in covered)
        if uuids and self._restart_timer is None:
            thread = EventThread(self.driver, uuids, self, self.intervals.event_wait)
            self._threads[thread] = frozenset(uuids)
            thread.start()

    def _stop_threads(self) -> None:
        for thread in self._threads:
            thread.stopped = True
        self._threads.clear()
        self._without_events.clear()
        self._change(watched=frozenset())

    async def _stop(self) -> None:
        self._stop_threads()
        task, self._task = self._task, None
        if task is not None:
            await concurrency.cancel(task)
        if self._restart_timer is not None:
            self._restart_timer.cancel()
            self._restart_timer = None
        view = self.views.value
        if not view.snapshot.driver:  # never read: the next user waits for a new attempt
            self.views.publish(View(selections=view.selections))


def changes(before: GpuSnapshot, after: GpuSnapshot) -> Iterator[tuple[str, dict[str, object]]]:
    """GPUs that came or went and new MIG layouts, as log messages with their facts; none for the first snapshot."""
    if not before.driver:
        return
    old, new = {gpu.uuid: gpu for gpu in before.gpus}, {gpu.uuid: gpu for gpu in after.gpus}
    for uuid in sorted(old.keys() - new.keys()):
        yield "GPU is gone", {"gpu": uuid, "index": old[uuid].index}
    for uuid in sorted(new.keys() - old.keys()):
        yield "GPU is new", {"gpu": uuid, "index": new[uuid].index}
    for uuid in sorted(new.keys() & old.keys()):
        if _mig_layout(old[uuid]) != _mig_layout(new[uuid]):
            profiles = ",".join(device.profile for device in new[uuid].mig)
            yield "MIG layout has changed", {"gpu": uuid, "mig": new[uuid].mig_enabled, "profiles": profiles}


def _mig_layout(gpu: Gpu) -> object:
    return gpu.mig_enabled, [device.uuid for device in gpu.mig]


def _log_changes(before: GpuSnapshot, after: GpuSnapshot) -> None:
    if after.unread and after.unread != before.unread:
        logger.error("GPUs detected whose UUID cannot be read", extra={"count": after.unread})
    if after.driver != before.driver:
        logger.info("NVIDIA driver", extra={"version": after.driver, "gpus": len(after.gpus)})
    for message, facts in changes(before, after):
        logger.warning(message, extra=facts)


def _updated(xids: XidRecords, values: Mapping[str, GpuHealth]) -> XidRecords:
    return {
        uuid: health.update_records(records, values[uuid]) if uuid in values else records
        for uuid, records in xids.items()
    }
