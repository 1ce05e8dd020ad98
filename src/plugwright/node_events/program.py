"""`plugwright node-events`: follows the daemon of this node, and writes Events and Node conditions until SIGTERM.

The daemon sends its NodeReport after each change, and additionally every minute on request: a daemon that hangs must
not leave conditions that show its devices as healthy.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import msgspec

from plugwright.errors import PeerGone, PeerRefused, PlugwrightError
from plugwright.kube.access import ClusterAccess
from plugwright.kube.api_client import ApiClient, BlockingClient
from plugwright.node_events.device_changes import DeviceChanges, Notice
from plugwright.node_events.event_recorder import NodeEventRecorder
from plugwright.node_events.node_conditions import (
    NodeCondition,
    NodeConditions,
    applied,
    condition_type,
    conditions,
    field_manager,
    managed,
    unknown,
)
from plugwright.sdk.node_report import NodeReport
from plugwright.sdk.status import NOT_SERVING
from plugwright.system import json_lines
from plugwright.system.concurrency import Backoff, in_thread, iterate_in_thread, single_error
from plugwright.system.latest import Latest
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["NodeEventsSettings", "clear_conditions", "report_node", "run_node_events"]

logger = logging.getLogger(__name__)

_FIRST_RETRY, _LONGEST_RETRY = 1.0, 60.0  # seconds
_MOST_WAITING = 256  # notices, while the API server does not respond


class NodeEventsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds."""

    node: str
    socket: Path
    release: str = ""  # NAMESPACE/NAME that owns the conditions
    pause: float = 1.0  # least time between two reports, so that a flapping device is written only once
    patience: float = 30.0  # for a daemon that does not respond; a restart takes less
    ask: float = 60.0  # between two requests for a report without changes
    heartbeat: float = 300.0  # between two writes of unchanged conditions


class Reading(msgspec.Struct, frozen=True):
    """The daemon's latest report, or why and since when there is none."""

    report: NodeReport | None
    since: float
    problem: str = ""


def run_node_events(settings: NodeEventsSettings, kubeconfig: Path | None) -> None:
    """Reports until SIGTERM or SIGINT."""
    access = ClusterAccess.choose(kubeconfig) if kubeconfig is not None else ClusterAccess.find()
    asyncio.run(_until_signal(settings, ApiClient(access, at_once=1)))


async def _until_signal(settings: NodeEventsSettings, client: ApiClient) -> None:
    reporting = asyncio.create_task(report_node(settings, client))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, reporting.cancel)
    try:
        with suppress(asyncio.CancelledError):
            await reporting
    finally:
        client.close()


async def report_node(
    settings: NodeEventsSettings, client: ApiClient, clock: Callable[[], float] = time.monotonic
) -> None:
    """Runs until cancelled."""
    readings = Latest(Reading(None, clock(), "the daemon has not answered yet"))
    reader = _ReportReader(settings, readings, clock)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(reader.follow())
            group.create_task(reader.ask())
            group.create_task(_ConditionWriter(settings, client, readings, clock).run())
    except ExceptionGroup as errors:
        raise single_error(errors) from None


class _ReportReader:
    def __init__(self, settings: NodeEventsSettings, readings: Latest[Reading], clock: Callable[[], float]) -> None:
        self._settings, self._readings, self._clock = settings, readings, clock
        self._problems = LogOnce(logger)

    async def follow(self) -> None:
        path, backoff = self._settings.socket, Backoff(_FIRST_RETRY / 4, 5.0)
        while True:
            try:
                reports = iterate_in_thread("reports", lambda: json_lines.follow(path, {"do": "watch reports"}))
                async with aclosing(reports):
                    async for report in reports:
                        self._take_or_fail(report)
                        backoff.reset()
            except (OSError, ValueError, PlugwrightError) as error:
                self._fail(error)
            await asyncio.sleep(backoff.delay())

    async def ask(self) -> None:
        while True:
            await asyncio.sleep(self._settings.ask)
            try:
                report = await in_thread("report", lambda: json_lines.ask(self._settings.socket, {"do": "report"}))
                self._take_or_fail(report)
            except (OSError, ValueError, PlugwrightError) as error:
                self._fail(error)

    def _take_or_fail(self, document: object) -> None:
        try:
            report = msgspec.convert(document, NodeReport)
        except msgspec.ValidationError as error:
            self._fail(error)
            return
        if NOT_SERVING in report.daemon.waiting_for:
            self._fail(PeerGone(f"the daemon is {NOT_SERVING}"))
            return
        if self._problems.recovered():
            logger.info("the daemon answers")
        self._readings.publish(Reading(report, self._clock()))

    def _fail(self, error: Exception) -> None:
        reason = clean(error) or type(error).__name__
        self._problems.warning("the daemon does not answer", reason, extra={"error": reason})
        before = self._readings.value
        since = before.since if before.report is None else self._clock()
        self._readings.publish(Reading(None, since, reason))


class _ConditionWriter:
    """Writes after each change. Events that could not be written are retried with the next write."""

    def __init__(
        self, settings: NodeEventsSettings, client: ApiClient, readings: Latest[Reading], clock: Callable[[], float]
    ) -> None:
        self._settings, self._readings, self._clock = settings, readings, clock
        self._conditions = NodeConditions(client, settings.node, settings.release)
        self._recorder = NodeEventRecorder(client, settings.node, clock)
        self._changes = DeviceChanges()
        self._first: dict[str, NodeCondition] | None = None  # of an earlier run, until the daemon has responded
        self._waiting: list[Notice] = []
        self._beat = 0.0

    async def run(self) -> None:
        problems, backoff = LogOnce(logger), Backoff(_FIRST_RETRY, _LONGEST_RETRY)
        while True:
            reading = self._readings.value
            try:
                due = await self._write(reading)
                if problems.recovered():
                    logger.info("events and conditions are written again")
                backoff.reset()
            except (OSError, PlugwrightError) as error:
                problems.warning("cannot write events and conditions", clean(error), extra={"error": clean(error)})
                due = backoff.delay()
            await asyncio.sleep(min(self._settings.pause, due))
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due - self._settings.pause)):
                    await self._readings.until(lambda latest, seen=reading: latest is not seen)  # type: ignore[misc]

    async def _write(self, reading: Reading) -> float:
        """Writes what is due; returns the seconds until more is due without a change."""
        if not self._recorder.node_uid:
            self._recorder.node_uid = await self._conditions.read()
            self._first = dict(self._conditions.written)
        wanted = self._wanted(reading)
        while self._waiting:
            notice = self._waiting[0]
            try:
                await self._recorder.record(notice)
            except PeerRefused as error:  # for example because the pod's namespace is being deleted
                logger.warning("event refused", extra={"event": notice.reason, "error": clean(error)})
            del self._waiting[0]
        heartbeat, now = self._settings.heartbeat, self._clock()
        if wanted is not None and (wanted != self._conditions.written or now - self._beat >= heartbeat):
            await self._conditions.write(wanted)
            self._beat = now
        if reading.report is None and wanted is None:
            return max(0.0, self._settings.patience - (now - reading.since))
        return max(0.0, heartbeat - (now - self._beat))

    def _wanted(self, reading: Reading) -> dict[str, NodeCondition] | None:
        """The conditions to write; None while a daemon that does not respond could still return."""
        report = reading.report
        if report is None:
            if self._clock() - reading.since < self._settings.patience:
                return None
            return unknown(self._conditions.written, f"the daemon does not answer: {reading.problem}")
        wanted = conditions(report)
        if not report.daemon.stalled:
            before = self._first or {}
            announced = [each.name for each in report.resources if _is_same(each.name, before, wanted)]
            self._waiting += self._changes.compare(report, announced)
            self._waiting += _recovered(before, wanted)
            del self._waiting[:-_MOST_WAITING]
            self._first = None
        return wanted


def _is_same(resource: str, before: dict[str, NodeCondition], wanted: dict[str, NodeCondition]) -> bool:
    kind = condition_type(resource)
    return kind in before and before[kind] == wanted.get(kind)


def _recovered(before: dict[str, NodeCondition], wanted: dict[str, NodeCondition]) -> list[Notice]:
    """Notices about problems that ended while this program was stopped."""
    ended = [kind for kind, each in before.items() if each.status == "True" and kind in wanted]
    return [
        Notice("DeviceRecovered", f"{kind}: {wanted[kind].message}") for kind in ended if wanted[kind].status == "False"
    ]


def clear_conditions(access: ClusterAccess, release: str, node: str) -> list[str]:
    """Removes the conditions of a release from `node`, or from all nodes; returns the nodes that had some."""
    manager, cleared = field_manager(release), []
    with BlockingClient(access) as client:
        nodes: list[dict[str, Any]] = [client.get(f"/api/v1/nodes/{node}")] if node else client.list("/api/v1/nodes")
        for found in nodes:
            name = str(found["metadata"]["name"])
            if managed(found, manager):
                client.patch(
                    f"/api/v1/nodes/{name}/status", applied(name, []), "apply-patch", fieldManager=manager, force="true"
                )
                cleared.append(name)
    return cleared
