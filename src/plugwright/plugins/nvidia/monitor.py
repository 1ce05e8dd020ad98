"""The monitor of one machine's GPUs, shared by all of its resources.

It reads the driver in a thread, receives events from another, and publishes the newest `View`. Without events, a
machine is read once a minute. Other modules interpret a view: `selection` decides which devices a resource offers, and
`health` which of them are healthy.

Health does not fail open: every failure here makes the GPUs Unhealthy with its reason, and is retried.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from plugwright.errors import CallTimedOut, DriverGone, PluginError
from plugwright.plugins.nvidia import health
from plugwright.plugins.nvidia.driver import (
    SWITCH,
    DriverLoad,
    EventKind,
    Gpu,
    GpuDriver,
    GpuEvent,
    GpuHealth,
    GpuSnapshot,
)
from plugwright.plugins.nvidia.event_watch import EventWatch, in_one_line
from plugwright.plugins.nvidia.incidents import Incidents, XidRecords
from plugwright.plugins.nvidia.selection import Selection
from plugwright.plugins.nvidia.switch_log import SwitchLog
from plugwright.system import concurrency
from plugwright.system.blocking import BlockingCalls
from plugwright.system.concurrency import Backoff
from plugwright.system.latest import Latest
from plugwright.system.log_once import LogOnce

__all__ = ["GpuMonitor", "PollIntervals", "View", "changes"]

logger = logging.getLogger(__name__)

_LONGEST_RETRY = 12  # multiple of the first retry
_MOST_COUNTS = 1024  # of errors by GPU and code


class PollIntervals(msgspec.Struct, frozen=True, kw_only=True):
    """Settings in seconds.

    `event_wait`: how long a superfluous thread can still wait for an event; after this wait, a thread counts as
    receiving events.

    `list_timeout` and `allocate_timeout`: limits for a plugin, which reads and writes the host's files.
    """

    rescan: float = 60.0
    retry: float = 5.0  # while the driver cannot be read; doubled after each unexpected error
    read_timeout: float = 30.0
    event_wait: float = 60.0
    list_timeout: float = 30.0
    allocate_timeout: float = 8.0


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The newest known state of the machine. `problem`: why the driver cannot be read at present.

    `watched` are the GPUs whose events are received, `unwatched` those whose events could not be registered, with the
    reasons.
    """

    is_pending: bool = True  # the driver has not been read yet
    snapshot: GpuSnapshot = msgspec.field(default_factory=GpuSnapshot)
    health: Mapping[str, GpuHealth] = {}
    xids: XidRecords = {}
    watched: frozenset[str] = frozenset()
    unwatched: Mapping[str, str] = {}
    selections: Mapping[str, Selection] = {}  # by resource
    problem: str = ""
    is_unloaded: bool = False  # the problem is that no driver is loaded
    unknown_xids: str = ""  # why the Xids of an earlier run are unknown


class _Reading(msgspec.Struct, frozen=True):
    snapshot: GpuSnapshot
    health: Mapping[str, GpuHealth]
    load: DriverLoad
    recalled: XidRecords  # of an earlier run
    switch_log: Path | None


class GpuMonitor:
    """Reads the machine while at least one resource keeps it `running`; otherwise the view stays."""

    def __init__(
        self,
        driver: GpuDriver,
        intervals: PollIntervals | None = None,
        clock: Callable[[], float] = time.monotonic,
        incidents: Incidents | None = None,
    ) -> None:
        self.driver = driver
        self._incidents = incidents or Incidents(None, driver.name)
        self._load = DriverLoad()
        self._saved: object = None  # the records in the file
        self._saving: asyncio.Future[None] | None = None
        self.intervals = intervals or PollIntervals()
        self.clock = clock
        self.views = Latest(View())
        self._problems = LogOnce(logger)
        self.counted: Counter[tuple[str, str]] = Counter()  # reported errors by UUID and code, including ignored ones
        self._users = 0
        self._task: asyncio.Task[None] | None = None
        self._read_requested = asyncio.Event()
        self._reads = BlockingCalls("read of the GPUs", self.intervals.read_timeout)
        self.events = EventWatch(self)
        self._switches = SwitchLog(lambda event: self.on_event(event, self.clock()))
        self._read_at = 0.0  # start of the last read
        self._impaired_at: dict[str, float] = {}  # start of the last read that found a GPU impaired
        self._backoff = Backoff(self.intervals.retry, _LONGEST_RETRY * self.intervals.retry)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._users += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="watch NVIDIA GPUs")
            self._task.add_done_callback(self._ended)
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                await self._stop()

    @contextmanager
    def selecting(self, resource: str, selection: Selection) -> Iterator[None]:
        """Publishes a resource's selection, in which other resources find overlaps."""
        self._change(selections={**self.views.value.selections, resource: selection})
        try:
            yield
        finally:
            selections = dict(self.views.value.selections)
            if selections.get(resource) is selection:  # a newer plugin can have replaced it
                del selections[resource]
                self._change(selections=selections)

    def keep_xids(self, directory: Path | None) -> None:
        """Keeps Xids over restarts in a file in `directory`; until it has been read, no GPU counts as healthy."""
        if directory is not None and self._incidents.path is None:
            self._incidents = Incidents(directory, self.driver.name)
            if not self.views.value.is_pending:
                self._change(unknown_xids="the Xids of an earlier run have not been read yet")
            self.read_now()

    def check_running(self) -> None:
        """PluginError if the GPUs are no longer read; the next caller of `running` starts reading again."""
        if self._task is None:
            raise PluginError(self.views.value.problem or "GPUs are not being read")

    def read_now(self) -> None:
        self._read_requested.set()

    def republish(self) -> None:
        """Makes every reader evaluate the view again."""
        self.views.publish(replace(self.views.value))

    def clear_xids(self, uuid: str) -> bool:
        """Forgets the Xids of a GPU and of NVSwitches, which are reset with the GPUs. Returns if there were any."""
        recorded = self.views.value.xids
        kept = {gpu: xids for gpu, xids in recorded.items() if gpu != uuid and not gpu.startswith(SWITCH)}
        self._change(xids=kept)
        self._save_xids()
        self.read_now()
        return len(kept) < len(recorded)

    def counted_of(self, uuids: Collection[str]) -> dict[tuple[str, str], int]:
        """The errors of these GPUs, and of the switches common to all GPUs."""
        counted = dict(self.counted).items()
        return {key: count for key, count in counted if key[0] in uuids or key[0].startswith(SWITCH)}

    def on_watched(self, watched: frozenset[str], unwatched: Mapping[str, str]) -> None:
        self._change(watched=watched, unwatched=unwatched)

    def on_event(self, event: GpuEvent, at: float) -> None:
        if event.kind is EventKind.XID:
            logger.warning("Xid", extra={"gpu": event.gpu, "xid": event.xid, "gpu_instance": event.gpu_instance})
        if event.kind in (EventKind.XID, EventKind.SXID) and event.gpu:  # the next read finds a GPU without a name
            self._count(event)
            xids = self.views.value.xids
            # NVML's events have no timestamp. An event from before the GPU was found impaired belongs to that fault:
            # its reset has ended the Xid too, even if the event is handled only now.
            impaired = at < self._impaired_at.get(event.gpu, at)
            records = health.record_xid(xids.get(event.gpu, ()), event.xid, at, impaired)
            self._change(xids={**xids, event.gpu: records})
            self._save_xids()
        self.read_now()

    def _count(self, event: GpuEvent) -> None:
        key = event.gpu, f"{'xid' if event.kind is EventKind.XID else 'sxid'}-{event.xid}"
        if key in self.counted or len(self.counted) < _MOST_COUNTS:
            self.counted[key] += 1

    async def _run(self) -> None:
        while True:
            self._read_requested.clear()
            try:
                self._update(await self._read())
                self._problems.recovered()
                pause = self.intervals.retry if self.views.value.problem else self.intervals.rescan
                self._backoff.reset()
            except Exception as error:  # noqa: BLE001  an error of the driver's library, or no thread available
                self._failed(error)
                pause = self._backoff.delay()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._read_requested.wait()

    def _failed(self, error: BaseException) -> None:
        problem = f"reading GPUs failed: {in_one_line(error)}"
        if self._problems.is_news(problem):
            logger.error("reading GPUs failed", extra={"error": in_one_line(error)}, exc_info=error)
        self._change(is_pending=False, problem=problem, is_unloaded=False)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Handles an unexpected end: each resource's discovery fails, and its next attempt starts the task again."""
        if task is self._task:
            self._task = None
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            self._failed(error or RuntimeError("the task has ended"))

    async def _read(self) -> _Reading | DriverGone:
        """Reads the driver, or waits for an earlier hanging read: another read would be another hanging thread."""
        try:
            return await self._reads.join(self._read_driver)
        except CallTimedOut as error:
            return DriverGone(f"the driver has not answered for {error.limit:g} s")

    def _read_driver(self) -> _Reading | DriverGone:
        self._read_at = self.clock()
        try:
            snapshot = self.driver.read()
            values = {gpu.uuid: self.driver.health(gpu.uuid) for gpu in snapshot.gpus}
            load = self.driver.load()
            return _Reading(snapshot, values, load, self._incidents.recall(load), self.driver.switch_log())
        except DriverGone as error:
            self.driver.close()  # the next read opens the driver that is then installed
            return error

    def _update(self, result: _Reading | DriverGone) -> None:
        view = self.views.value
        if isinstance(result, DriverGone):
            gone = {uuid: GpuHealth(fault=str(result), away=result.unloaded) for uuid in view.health}
            self._note_impaired(gone)
            xids = _updated(view.xids, gone)
            self._change(is_pending=False, problem=str(result), is_unloaded=result.unloaded, xids=xids)
            self.events.on_driver_gone(result)
            return
        snapshot, values = result.snapshot, dict(result.health)
        values = {
            gpu.uuid: replace(values[gpu.uuid], fault=values[gpu.uuid].fault or gpu.fault) for gpu in snapshot.gpus
        }
        xids = self._known_xids(result)
        known = {**view.health, **xids}
        absent = {uuid: GpuHealth(fault="absent", away=True) for uuid in known if uuid not in values}
        self._note_impaired({**values, **absent})
        _log_changes(view.snapshot, snapshot)
        self._change(
            is_pending=False,
            snapshot=snapshot,
            health=values,
            xids=_updated(xids, {**values, **absent}),
            problem="",
            is_unloaded=False,
            unknown_xids=self._incidents.unreadable,
        )
        self._save_xids()
        self.events.follow([gpu.uuid for gpu in snapshot.gpus])
        self._switches.follow(result.switch_log)

    def _known_xids(self, reading: _Reading) -> XidRecords:
        """The Xids with those of an earlier run, but not of an earlier driver load, because loading resets GPUs."""
        same_load, self._load = reading.load.may_be(self._load), reading.load
        now = self.clock()
        recalled = {
            uuid: tuple(replace(record, at=min(record.at, now)) for record in records)
            for uuid, records in reading.recalled.items()
        }
        return {**recalled, **self.views.value.xids} if same_load else recalled

    def _save_xids(self) -> None:
        """Writes the file in at most one thread. A changed count of an Xid alone is not worth a write."""
        xids = self.views.value.xids
        key = {(uuid, record.xid, record.impaired, record.reset) for uuid in xids for record in xids[uuid]}
        if (self._saving is None or self._saving.done()) and key != self._saved and (key or self._saved):
            try:
                save = partial(self._incidents.save, self._load, xids)
                self._saving = concurrency.begin_in_thread("nvidia incidents", save)
            except RuntimeError:  # no thread available: retried with the next read
                return
            self._saved = key
            self._saving.add_done_callback(lambda _: self._save_xids())

    def _note_impaired(self, values: Mapping[str, GpuHealth]) -> None:
        self._impaired_at |= {uuid: self._read_at for uuid, value in values.items() if health.is_impaired(value)}

    def _change(self, **changes: object) -> None:
        before = self.views.value
        view = replace(before, **changes)
        if not before.is_pending and before.problem != view.problem:
            if view.problem:
                logger.error("cannot read GPUs, they become Unhealthy", extra={"error": view.problem})
            else:
                logger.info("GPUs can be read again")
        self.views.publish_if_changed(view)

    async def _stop(self) -> None:
        self.events.stop()
        self._switches.stop()
        task, self._task = self._task, None
        self._backoff.reset()
        if task is not None:
            await concurrency.cancel(task)
        view = self.views.value
        if not view.snapshot.driver:  # never read: the next user waits for a new attempt
            self.views.publish(View(selections=view.selections))


def changes(before: GpuSnapshot, after: GpuSnapshot) -> Iterator[tuple[str, dict[str, object]]]:
    """Added and removed GPUs and new MIG layouts, as log messages with their facts; none for the first snapshot."""
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
    for uuid in sorted(_without_mig_devices(after) - _without_mig_devices(before)):
        logger.warning("GPU in MIG mode has no MIG devices", extra={"gpu": uuid})


def _without_mig_devices(snapshot: GpuSnapshot) -> set[str]:
    return {gpu.uuid for gpu in snapshot.gpus if gpu.mig_enabled and not gpu.mig}


def _updated(xids: XidRecords, values: Mapping[str, GpuHealth]) -> XidRecords:
    return {
        uuid: health.update_records(records, values[uuid]) if uuid in values else records
        for uuid, records in xids.items()
    }
