"""Events that are deleted an hour after their last write, and the oldest of too many.

A real API server gives each event a lease in etcd, which ends an hour after the last write. Here they are queued in the
order of their writes, so that nothing is sorted or searched. They are deleted a few at a time: a watcher that keeps up
with what components write keeps up with that too, and is never told that its resource version has expired.
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

_PERIOD = 5.0  # seconds between two looks
_SLICE = 100  # events deleted before others have their turn on the loop


@dataclass(frozen=True, slots=True)
class EventLimits:
    """`kept`: seconds after its last write that an event is kept. `most`: the number of events that are."""

    kept: float = 3600.0
    most: int = 20_000


class EventExpiry:
    """`changed` has to be called with every change of an event after it was made."""

    def __init__(self, store: Store, now: Clock = clock.now, limits: EventLimits | None = None) -> None:
        self._store, self._now, self._limits = store, now, limits or EventLimits()
        self._written: OrderedDict[ObjectKey, datetime] = OrderedDict()  # the one whose last write is longest ago first
        self.resync()

    def resync(self) -> None:
        """Reads all events again, after changes were missed; their own times say when they were written."""
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
            except ClusterError as error:  # the disk is full: tried again at the next look
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
    """When the event was last written, as far as it says so."""
    try:
        series = (event.get("series") or {}).get("lastObservedTime")
        times = (event.get("lastTimestamp"), series, event.get("eventTime"), event["metadata"]["creationTimestamp"])
        return min(now, clock.parse(str(next(filter(None, times)))))
    except MALFORMED:
        return now
