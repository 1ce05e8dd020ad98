"""Deletes events an hour after their last write, and the oldest events if there are too many.

A real API server gives each event a lease in etcd, which ends an hour after the last write. Here they are queued in the
order of their writes, without any sort or search. They are deleted a few at a time: watchers keep up with these
deletions as with the writes of components, and their resource versions never expire.
"""

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime

from plugwright.apiserver import clock
from plugwright.apiserver.clock import Clock
from plugwright.apiserver.kinds import EVENTS
from plugwright.apiserver.store import Change, Object, ObjectKey, Store
from plugwright.cluster.events import MALFORMED
from plugwright.errors import ClusterError, NotFound

__all__ = ["EventExpiry", "EventLimits"]

logger = logging.getLogger(__name__)

_PERIOD = 5.0  # seconds between two runs
_SLICE = 100  # events deleted before other tasks can run


@dataclass(frozen=True, slots=True)
class EventLimits:
    """`kept`: seconds for which an event is kept after its last write. `most`: maximum number of events."""

    kept: float = 3600.0
    most: int = 20_000


class EventExpiry:
    """Call `changed` after every change of an event."""

    def __init__(self, store: Store, now: Clock = clock.now, limits: EventLimits | None = None) -> None:
        self._store, self._now, self._limits = store, now, limits or EventLimits()
        self._written: OrderedDict[ObjectKey, datetime] = OrderedDict()  # oldest write first
        self.resync()

    def resync(self) -> None:
        """Reads all events again after missed changes; the events' own times show when they were written."""
        now = self._now()
        events = [(_last_observed(event, now), _key(event)) for event in self._store.objects(EVENTS.qualified)]
        self._written = OrderedDict((key, written) for written, key in sorted(events, key=lambda event: event[0]))

    def changed(self, change: Change) -> None:
        if change.type == "DELETED":
            self._written.pop(change.key, None)
        else:
            self._written[change.key] = self._now()
            self._written.move_to_end(change.key)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(_PERIOD)
            await self.delete_expired()

    async def delete_expired(self) -> None:
        deleted = 0
        while (key := self._next_expired()) is not None:
            try:
                self._store.delete(key)
            except NotFound:
                pass
            except ClusterError as error:  # the disk is full: retried in the next run
                logger.warning("events cannot be deleted", extra={"error": str(error)})
                return
            self._written.pop(key, None)
            deleted += 1
            if deleted % _SLICE == 0:
                await asyncio.sleep(0)

    def _next_expired(self) -> ObjectKey | None:
        if not self._written:
            return None
        key, written = next(iter(self._written.items()))
        is_old = (self._now() - written).total_seconds() > self._limits.kept
        return key if is_old or len(self._written) > self._limits.most else None


def _key(event: Object) -> ObjectKey:
    return ObjectKey(EVENTS.qualified, event["metadata"]["namespace"], event["metadata"]["name"])


def _last_observed(event: Object, now: datetime) -> datetime:
    """When the event was last written, according to the event."""
    try:
        series = (event.get("series") or {}).get("lastObservedTime")
        times = (event.get("lastTimestamp"), series, event.get("eventTime"), event["metadata"]["creationTimestamp"])
        return min(now, clock.parse(str(next(filter(None, times)))))
    except MALFORMED:
        return now
