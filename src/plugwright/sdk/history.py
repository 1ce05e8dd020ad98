"""The history of a node's devices across restarts: allocations and releases, health, cordons.

Some seconds after the daemon has noticed a change, the history compares the devices and holdings with the last record,
but never while an Allocate is open: an Allocate costs one assignment here. Lists replaced within those seconds are
compared too, so a brief cordon or fault leaves events. A device is recorded as released when the ledger, at its next
read, no longer knows a holding. While a source of holdings cannot be read, nothing counts as released. A pod may leave
no event if it ends within seconds.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from plugwright.errors import CallUnfinished
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.history_events import DeviceFacts, FactKey, HistoryEvent, HolderFacts, changes, replayed
from plugwright.sdk.holdings.holding import Holding
from plugwright.sdk.inventory import Snapshot
from plugwright.system.blocking import BlockingCalls
from plugwright.system.concurrency import cancel
from plugwright.system.journal import Journal
from plugwright.system.latest import Signal
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["HISTORY_FILE", "History", "recording"]

logger = logging.getLogger(__name__)

HISTORY_FILE = "history.jsonl"
_LIMIT = 10 * 2**20  # bytes
_DELAY, _RETRY = 1.5, 5.0  # multiples of the delay of the audit, after which the pods of an allocation are known
_LEAST_RETRY = 1.0  # seconds; the ledger does not read more often
_MOST_LOOKS = 10  # reads in search of unnamed holders
_LATEST = 20  # events in a NodeReport
_MOST = 5000  # events in one answer
_ELSEWHERE = ("held", "holders-unknown")  # codes of devices whose hardware is or could be held under another name
_PENDING = 1000  # events that wait for a disk
_MOST_LISTS = 4  # replaced lists of devices between two comparisons, the latest ones


class _ReplacedList(msgspec.Struct, frozen=True):
    """A list of devices, to be replaced by a newer list."""

    time: float
    resource: str
    snapshot: Snapshot
    authors: Mapping[FactKey, str]  # of cordons


class History:
    """The history of one daemon, in `directory`."""

    def __init__(self, daemon: Daemon, directory: Path, limit: int = _LIMIT) -> None:
        self.latest: deque[HistoryEvent] = deque(maxlen=_LATEST)
        self.noticed, self.recorded = Signal(), Signal()  # events exist; events are written
        self._daemon, self._audit = daemon, daemon.settings.timeouts.audit
        self._journal = Journal(directory / HISTORY_FILE, HistoryEvent, limit)
        self._disk = BlockingCalls("history of devices", daemon.settings.limits.command, at_once=1)
        self._due = Signal()
        self._known: dict[FactKey, DeviceFacts] | None = None  # None: the journal has not been read yet
        self._pending: deque[HistoryEvent] = deque(maxlen=_PENDING)
        self._lists: deque[_ReplacedList] = deque(maxlen=_MOST_LISTS)
        self._seen: dict[str, Snapshot] = {}
        self._is_allocated, self._looks = False, 0
        self._problems = LogOnce(logger)

    async def run(self) -> None:
        """Records until cancelled."""
        loop, timer = asyncio.get_running_loop(), None

        def note() -> None:
            nonlocal timer
            if timer is None:
                timer = loop.call_later(_DELAY * self._audit, due)

        def due() -> None:
            nonlocal timer
            timer = None
            self._due.notify()

        def note_allocation() -> None:
            self._is_allocated = True
            note()

        def note_change() -> None:
            self._keep_lists()
            note()

        unsubscribes = [self._daemon.changed.subscribe(note_change)]
        unsubscribes.append(self._daemon.ledger.allocating.subscribe(note_allocation))
        unsubscribes.append(self._daemon.ledger.latest.subscribe(note))
        try:
            note()
            seen = self._due.count
            while True:
                seen = await self._due.wait(seen, max(_LEAST_RETRY, _RETRY * self._audit) if self._looks else None)
                try:
                    await self._record()
                except Exception:  # one comparison failed: the next change is compared again
                    logger.exception("changes of devices not recorded")
        finally:
            for unsubscribe in unsubscribes:
                unsubscribe()
            if timer is not None:
                timer.cancel()

    def _keep_lists(self) -> None:
        """Keeps new lists of devices for the next comparison; the first one after a start needs none."""
        if self._known is None or self._daemon.cordons.unreadable:
            return
        for name, runtime in self._daemon.resources.items():
            snapshot = runtime.inventory.latest.value
            if snapshot is not None and snapshot is not self._seen.get(name):
                self._seen[name] = snapshot
                authors = _cordon_authors(self._daemon) if snapshot.cordoned else {}
                self._lists.append(_ReplacedList(time.time(), name, snapshot, authors))

    async def events(self, since: float) -> list[HistoryEvent]:
        """The newest events since `since`, in seconds since the epoch."""
        return await self._disk.run(partial(self._read, since))

    def _read(self, since: float) -> list[HistoryEvent]:
        return list(deque((event for event in self._journal.records() if event.time.timestamp() >= since), _MOST))

    async def _record(self) -> None:
        if self._known is None:
            self._known = await self._remembered()
            self._is_allocated = self._is_allocated or any(facts.holders for facts in self._known.values())
        holdings = self._daemon.ledger.latest.value
        if self._is_allocated:
            self._is_allocated = False
            holdings = await self._daemon.ledger.refreshed()
        held: dict[FactKey, set[HolderFacts]] = {}
        has_unnamed = False
        for holding in holdings.holdings:
            facts = _holder(holding)
            has_unnamed = has_unnamed or not facts.is_named
            if facts.is_named:
                held.setdefault((holding.key.resource, holding.key.device_id), set()).add(facts)
        # Pod names disappear before their devices do when a pod ends; a new pod briefly has none.
        self._looks = self._looks + 1 if has_unnamed and self._looks < _MOST_LOOKS else 0
        self._is_allocated = self._is_allocated or self._looks > 0
        found = list(self._events_between(self._known))
        now = dict(_facts(self._daemon, held))
        found += changes(self._known, now, time.time(), is_complete=holdings.is_complete)
        # Keeps currently unknown holders, for the comparison when all are known again.
        if not holdings.is_complete:
            now = {key: _with_earlier(facts, self._known.get(key)) for key, facts in now.items()}
        self._known = {**self._known, **now}
        await self._append(found)

    def _events_between(self, known: dict[FactKey, DeviceFacts]) -> Iterator[HistoryEvent]:
        """The events of the lists kept since the last comparison; updates `known`. Holders do not change."""
        lists, self._lists = self._lists, deque(maxlen=_MOST_LISTS)
        self._seen = {name: snapshot for name, snapshot in self._seen.items() if name in self._daemon.resources}
        for entry in lists:
            if entry.snapshot is self._seen.get(entry.resource):
                continue  # still in force
            for key, facts in _facts_of(entry.resource, entry.snapshot, entry.authors, {}):
                earlier = known.get(key, DeviceFacts())
                now = replace(facts, holders=earlier.holders)
                if now == earlier:
                    continue
                yield from changes({key: earlier}, {key: now}, entry.time, is_complete=False)
                known[key] = now

    async def _remembered(self) -> dict[FactKey, DeviceFacts]:
        """The state after the last event of the journal; without a journal, the first state causes no events."""

        def read() -> tuple[dict[FactKey, DeviceFacts], list[HistoryEvent]]:
            latest: deque[HistoryEvent] = deque(maxlen=_LATEST)

            def noted() -> Iterator[HistoryEvent]:
                for event in self._journal.records():
                    latest.append(event)
                    yield event

            return replayed(noted()), list(latest)

        try:
            known, latest = await self._disk.run(read)
        except (OSError, CallUnfinished) as error:
            self._problems.warning("history of devices not readable", clean(error), extra={"error": clean(error)})
            return {}
        self.latest.extend(latest)
        return known

    async def _append(self, events: Iterable[HistoryEvent]) -> None:
        new = list(events)
        self.latest.extend(new)
        self._pending.extend(new)
        if new:
            self.noticed.notify()
        if not self._pending:
            return
        writing = list(self._pending)
        try:
            await self._disk.run(partial(self._journal.append, writing))
        except (OSError, CallUnfinished) as error:
            self._problems.warning("history of devices not written", clean(error), extra={"error": clean(error)})
            return
        self._problems.recovered()
        for _ in writing:
            self._pending.popleft()
        self.recorded.notify()


@asynccontextmanager
async def recording(daemon: Daemon, directory: Path) -> AsyncIterator[None]:
    """Keeps the history of a daemon's devices while inside."""
    history = History(daemon, directory)
    daemon.history = history
    task = asyncio.create_task(history.run(), name="history of devices")
    try:
        yield
    finally:
        await cancel(task)


def _holder(holding: Holding) -> HolderFacts:
    return HolderFacts(
        api=holding.key.api.value,
        namespace=clean(holding.namespace),
        pod=clean(holding.pod),
        container=clean(holding.container),
        claim=clean(holding.claim or (holding.claim_uid and f"uid {holding.claim_uid}")),
    )


def _with_earlier(facts: DeviceFacts, earlier: DeviceFacts | None) -> DeviceFacts:
    return facts if earlier is None else replace(facts, holders=facts.holders | earlier.holders)


def _cordon_authors(daemon: Daemon) -> dict[FactKey, str]:
    return {(cordon["resource"], cordon["id"]): cordon["by"] for cordon in daemon.cordons.listed()}


def _facts(daemon: Daemon, held: Mapping[FactKey, set[HolderFacts]]) -> Iterator[tuple[FactKey, DeviceFacts]]:
    """The facts of all resources with a list; those of the others are unknown."""
    authors = _cordon_authors(daemon)
    for name, runtime in daemon.resources.items():
        if (snapshot := runtime.inventory.latest.value) is not None:
            yield from _facts_of(name, snapshot, authors, held)


def _facts_of(
    resource: str,
    snapshot: Snapshot,
    authors: Mapping[FactKey, str],
    held: Mapping[FactKey, set[HolderFacts]],
) -> Iterator[tuple[FactKey, DeviceFacts]]:
    for device_id, device in snapshot.devices.items():
        key = resource, device_id
        is_cordoned = device_id in snapshot.cordoned
        own = snapshot.cordoned.get(device_id, device)
        is_fit = own.healthy or own.code in _ELSEWHERE
        facts = DeviceFacts(
            health="Healthy" if is_fit else own.health.value,
            reason="" if is_fit else clean(own.reason),
            code="" if is_fit else own.code,
            cordon=clean(device.reason.removeprefix("cordoned: ")) if is_cordoned else "",
            cordoned_by=clean(authors.get(key, "")),
            since=snapshot.since[device_id],
            holders=frozenset(held.get(key, ())),
        )
        yield key, facts
