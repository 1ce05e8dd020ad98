"""Events that are kept for an hour and no more than so many, and watchers that see them go."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from tests.cluster.pods_and_nodes import node_object

from plugwright.apiserver.kinds import EVENTS, NAMESPACES
from plugwright.apiserver.registry import ResourcePath, Writer
from plugwright.apiserver.store import ObjectKey, Store
from plugwright.cluster.controllers.event_expiry import EventExpiry, EventLimits
from plugwright.cluster.events import ClusterClient, EventRecord, EventRecorder, EventSource

MANY = 9_000  # more changes than the store's history has


class Lab:
    def __init__(self, limits: EventLimits | None = None) -> None:
        self.time = datetime(2026, 11, 15, 12, tzinfo=UTC)
        self.store = Store()
        writer = Writer(self.store, self.now)
        writer.create(ResourcePath(NAMESPACES, "", "default"), {"metadata": {"name": "default"}}, "test")
        self.recorder = EventRecorder(ClusterClient(self.store, writer, self.now), EventSource("kubelet", "n1"))
        self.expiry = EventExpiry(self.store, self.now, limits)
        self._seen = self.store.revision

    def now(self) -> datetime:
        return self.time

    def record(self, reason: str) -> None:
        self.recorder.record({"kind": "Node", **node_object("n1")}, EventRecord(reason, "text"))

    async def expire(self) -> list[str]:
        """The reasons of the events that are left."""
        if self.store.revision != self._seen:
            for change in await self.store.changes(self._seen):
                if change.key.kind == EVENTS.qualified:
                    self.expiry.changed(change)
        await self.expiry.delete_expired()
        self._seen = self.store.revision
        return sorted(event["reason"] for event in self.store.objects(EVENTS.qualified))


@pytest.mark.parametrize(("age", "left"), [(3599, ["First", "Second"]), (3601, ["Second"])])
async def test_events_are_kept_for_an_hour(age: float, left: list[str]) -> None:
    lab = Lab()
    lab.record("First")
    assert await lab.expire() == ["First"]
    lab.time += timedelta(seconds=age)
    lab.record("Second")
    assert await lab.expire() == left


async def test_an_event_that_is_counted_again_is_kept_for_another_hour() -> None:
    lab = Lab()
    for _ in range(2):
        lab.record("First")
        assert await lab.expire() == ["First"]
        lab.time += timedelta(minutes=50)
    assert await lab.expire() == ["First"]


async def test_the_newest_of_too_many_events_are_kept() -> None:
    lab = Lab(EventLimits(most=3))
    for number in range(5):
        lab.record(f"Number{number}")
    assert await lab.expire() == ["Number2", "Number3", "Number4"]


async def test_an_event_that_was_deleted_can_be_recorded_again() -> None:
    lab = Lab()
    lab.record("First")
    await lab.expire()
    lab.time += timedelta(hours=2)
    assert await lab.expire() == []
    lab.record("First")
    assert await lab.expire() == ["First"]


async def test_events_from_before_a_restart_expire_by_their_own_times() -> None:
    lab = Lab()
    lab.record("First")
    lab.time += timedelta(minutes=50)
    lab.record("Second")
    lab.time += timedelta(minutes=11)
    await EventExpiry(lab.store, lab.now).delete_expired()
    assert [event["reason"] for event in lab.store.objects(EVENTS.qualified)] == ["Second"]


async def test_a_watcher_that_keeps_up_survives_the_deletion_of_more_events_than_the_history_has() -> None:
    store = Store()
    for number in range(MANY):
        name = f"event-{number}"
        metadata = {"name": name, "namespace": "default", "creationTimestamp": "2026-11-15T12:00:00Z"}
        store.create(ObjectKey(EVENTS.qualified, "default", name), {"metadata": metadata})
    expiry = EventExpiry(store, lambda: datetime(2026, 11, 15, 14, tzinfo=UTC))
    revision, seen = store.revision, 0
    deleting = asyncio.create_task(expiry.delete_expired())
    while seen < MANY:
        changes = await store.changes(revision)
        revision, seen = changes[-1].revision, seen + len(changes)
    await deleting
    assert not store.objects(EVENTS.qualified)
