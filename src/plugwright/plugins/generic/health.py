"""Health checks of ordinary devices: their configuration, their schedule, and when a device counts as broken.

A single failure does not make a device Unhealthy, and a single success does not make it Healthy again. The probes are
in `checks`, which is loaded only for resources with health checks.

Health does not fail open: it is a fault if a probe raises, hangs or cannot be started. A hanging probe is not started
again until it has ended, and nothing waits for it: neither the next check nor the end of the plugin. If its file is
replaced meanwhile, it is abandoned and the new file is probed, because no driver responds for the old file any more.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Protocol, runtime_checkable

import msgspec

from plugwright.errors import CallUnfinished
from plugwright.plugins.generic.hardware import Unit
from plugwright.sdk.device_family import FamilySettings, Texts
from plugwright.sdk.sysfs import Host
from plugwright.system.blocking import BlockingCalls
from plugwright.system.concurrency import cancel, in_thread
from plugwright.system.latest import Latest
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["CheckState", "FileBasedProbe", "HealthCheck", "HealthMonitor", "Probe"]

logger = logging.getLogger(__name__)

_FIRST_RESULTS = 1.0  # seconds that a list waits for the first results of new devices
_KILLED = 0.5  # seconds in which a killed command ends, unless it cannot be killed
_AT_ONCE = 8
_MOST_STUCK = 64  # each can be a thread, and the process has a limited number of them
_LOOK = 1.0  # seconds to find out whether the file of a hanging probe was replaced
_UNKNOWN = "not checked yet"

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
Times = Annotated[int, msgspec.Meta(ge=1, le=100)]
CheckKey = tuple[str, int]  # the id of a unit, and the index of a check
_Identity = tuple[int, int] | None  # device and inode; None: missing or unknown


class CheckState(msgspec.Struct, frozen=True):
    """The state of one check of one device. `reason` is empty while it succeeds, None while it is unknown."""

    reason: str | None = None
    opposite: int = 0  # consecutive results that contradict the reason


class HealthCheck(FamilySettings, frozen=True):
    """One check of every device, in both directions: `failures` in a row make it Unhealthy, `successes` Healthy again.

    Exactly one of: `link: up` (network, RDMA) · `driver` (bound to this driver, or to any: `"*"`) · `file` with one of
    `equals`, `not`, `below`, `above` (a path, also relative to the device's directory in /sys) · `http` (any status
    below 400 succeeds) · `command` (exit status 0 succeeds). Templates are filled in.
    """

    link: Literal["up"] | None = None
    driver: str | None = None
    file: str | None = None
    equals: Texts | None = None
    not_: Texts | None = msgspec.field(name="not", default=None)
    below: float | None = None
    above: float | None = None
    http: str | None = None
    command: list[str] | None = None
    every: Seconds = 10.0
    timeout: Seconds = 5.0
    failures: Times = 2
    successes: Times = 2

    def next_state(self, before: CheckState, fault: str) -> CheckState:
        """The state after a result, which is empty for a success. The first result decides alone."""
        if before.reason is None or bool(fault) == bool(before.reason):
            return CheckState(fault)  # the newest reason is shown
        needed = self.failures if fault else self.successes
        enough = before.opposite + 1 >= needed
        return CheckState(fault) if enough else CheckState(before.reason, before.opposite + 1)


class Probe(Protocol):
    """One kind of check. `stoppable`: cancelling ends it, unlike a thread waiting for a driver."""

    @property
    def kind(self) -> str: ...

    @property
    def stoppable(self) -> bool: ...

    async def fault(self, host: Host, unit: Unit) -> str | None:
        """The fault of a unit; empty without a fault, None if unknown. It can hang, and raise anything."""
        ...


@runtime_checkable
class FileBasedProbe(Protocol):
    """A probe of a file, or of files in a directory."""

    def watched(self, host: Host, unit: Unit) -> Path | None:
        """The file or directory whose replacement makes a hanging probe pointless. Blocks; can raise OSError."""
        ...


class HealthMonitor:
    """Runs the checks of a resource's units, each at its own interval.

    `reasons` contains the broken units by id, with the reasons; published after every change.
    """

    def __init__(self, host: Host, checks: Sequence[tuple[HealthCheck, Probe]]) -> None:
        self.reasons: Latest[Mapping[str, str]] = Latest({})
        self._host, self._checks = host, checks
        self._units: dict[str, Unit] = {}
        self._states: dict[CheckKey, CheckState] = {}
        self._running: dict[CheckKey, asyncio.Task[None]] = {}
        self._stuck: dict[CheckKey, asyncio.Task[str | None]] = {}
        self._abandoned: set[asyncio.Task[str | None]] = set()  # stuck on a file that was replaced
        self._identities: dict[CheckKey, _Identity] = {}  # of the files that probes have started to read
        self._looks = BlockingCalls("look at a checked file", _LOOK, most_hung=4)
        self._problems = LogOnce(logger)
        self._failure = ""  # why checks have stopped
        self._slots = asyncio.Semaphore(_AT_ONCE)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        repeating = [asyncio.create_task(self._repeat(index)) for index in range(len(self._checks))]
        for task in repeating:
            task.add_done_callback(self._ended)
        try:
            yield
        finally:
            await cancel(*repeating, *self._running.values())
            await _stop([*self._stuck.values(), *self._abandoned])

    async def follow(self, units: Sequence[Unit]) -> None:
        """Checks these units from now on; returns when new units have been checked once, or after a short time."""
        self._units = {unit.id: unit for unit in units}
        self._states = {key: state for key, state in self._states.items() if key[0] in self._units}
        self._identities = {key: seen for key, seen in self._identities.items() if key[0] in self._units}
        keys = [(unit_id, index) for unit_id in self._units for index in range(len(self._checks))]
        tasks = [self._start(key) for key in keys if key not in self._states]
        if tasks:
            await asyncio.wait(tasks, timeout=_FIRST_RESULTS)
        self._publish()

    async def _repeat(self, index: int) -> None:
        while True:
            await asyncio.sleep(self._checks[index][0].every)
            for unit_id in list(self._units):
                self._start((unit_id, index))

    def _start(self, key: CheckKey) -> "asyncio.Task[None]":
        if key not in self._running:
            task = asyncio.create_task(self._check(key))
            self._running[key] = task
            task.add_done_callback(lambda _: self._running.pop(key, None))
            task.add_done_callback(self._ended)
        return self._running[key]

    async def _check(self, key: CheckKey) -> None:
        unit_id, index = key
        async with self._slots:
            fault = await self._fault(key, self._units[unit_id]) if unit_id in self._units else None
        if unit_id not in self._units:
            return
        before = self._states.get(key, CheckState())
        if fault is None and before.reason is not None:
            return
        # An unknown first result is not a fault: a pod could have had the device since before the daemon started.
        self._states[key] = self._checks[index][0].next_state(before, fault or "")
        self._publish()

    async def _fault(self, key: CheckKey, unit: Unit) -> str | None:
        check, probe = self._checks[key[1]]
        overdue = f"check {probe.kind} did not answer within {check.timeout:g} s"
        if key in self._stuck:
            if not await self._has_moved(key, unit):
                return overdue
            self._abandon(key)
        if len(self._stuck) + len(self._abandoned) >= _MOST_STUCK:
            return f"check {probe.kind} not begun: too many checks of other devices have not ended"
        task = asyncio.create_task(self._probe_result(key, unit))
        try:
            done, _ = await asyncio.wait([task], timeout=check.timeout)
        finally:
            if not task.done():
                # The fault is reported first; the end of the stopped probe is awaited in the background.
                self._stuck[key] = task
                task.add_done_callback(partial(self._forget_stuck, key))
                if probe.stoppable:
                    task.cancel()
        return task.result() if done else overdue

    def _forget_stuck(self, key: CheckKey, task: "asyncio.Task[str | None]") -> None:
        self._abandoned.discard(task)
        if self._stuck.get(key) is task:
            del self._stuck[key]

    def _abandon(self, key: CheckKey) -> None:
        self._abandoned.add(self._stuck.pop(key))
        logger.info("hanging health check abandoned: its file was replaced", extra={"device": key[0]})

    async def _has_moved(self, key: CheckKey, unit: Unit) -> bool:
        """Whether the file of a hanging probe was replaced; False if unknown."""
        probe = self._checks[key[1]][1]
        if key not in self._stuck or not isinstance(probe, FileBasedProbe):
            return False
        try:
            return await self._looks.run(partial(_identity, probe, self._host, unit)) != self._identities.get(key)
        except CallUnfinished:
            return False

    async def _probe_result(self, key: CheckKey, unit: Unit) -> str | None:
        probe = self._checks[key[1]][1]
        try:
            if isinstance(probe, FileBasedProbe):
                self._identities.pop(key, None)
                look = partial(_identity, probe, self._host, unit)
                self._identities[key] = await in_thread(f"look at {unit.id}", look)
            fault = await _fault_of_parts(probe, self._host, unit)
        except Exception as error:  # one check of one device: every exception is a fault
            fault = f"check {probe.kind} failed: {type(error).__name__}: {error}"
            if self._problems.is_news(fault, key):
                logger.warning("health check failed", extra={"device": unit.id, "error": clean(fault)}, exc_info=error)
        return fault and clean(fault)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Reports all devices of the resource as broken, because nothing checks them any more."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("health checks have ended", exc_info=error)
            self._failure = clean(f"health checks have ended: {type(error).__name__}: {error}")
            self._publish()

    def _publish(self) -> None:
        reasons = dict.fromkeys(self._units, self._failure) if self._failure else {}
        for unit_id in self._units:
            for index in range(len(self._checks)):
                reason = self._states.get((unit_id, index), CheckState()).reason
                if reason != "":
                    reasons.setdefault(unit_id, _UNKNOWN if reason is None else reason)
        self.reasons.publish_if_changed(reasons)


def _identity(probe: FileBasedProbe, host: Host, unit: Unit) -> _Identity:
    try:
        path = probe.watched(host, unit)
        status = path.stat() if path is not None else None
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if status is not None else None


async def _stop(probes: "Sequence[asyncio.Task[str | None]]") -> None:
    """Waits a moment for killed commands; an unkillable command is left alone."""
    for times in range(2):
        for probe in probes:
            if probe.cancelling() <= times:
                probe.cancel()
        if probes:
            await asyncio.wait(probes, timeout=_KILLED)


async def _fault_of_parts(probe: Probe, host: Host, unit: Unit) -> str | None:
    """The fault of a unit or its parts: one broken part breaks the whole, unless one working part is enough."""
    results = [await probe.fault(host, part) for part in unit.parts or (unit,)]
    known = [fault for fault in results if fault is not None]
    faults = [fault for fault in known if fault]
    if not known:
        return None
    return faults[0] if faults and not (unit.one_is_enough and len(faults) < len(known)) else ""
