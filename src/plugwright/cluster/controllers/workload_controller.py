"""The common part of the workload controllers: updates the owner of a changed object, also when time passes."""

from collections.abc import Sequence
from datetime import datetime

from plugwright.apiserver.kinds import Kind
from plugwright.apiserver.store import Change, Object, ObjectKey
from plugwright.cluster.controllers.owned_objects import OwnedObjects
from plugwright.cluster.events import ClusterClient

__all__ = ["WorkloadController"]


class WorkloadController:
    """A controller of one kind. A subclass implements `sync`, which brings about the state required by one object."""

    def __init__(self, client: ClusterClient, kind: Kind, *owned: OwnedObjects) -> None:
        self._client, self._kind = client, kind
        self._owned: Sequence[OwnedObjects] = owned
        self._due: dict[ObjectKey, datetime] = {}

    def sync(self, key: ObjectKey, owner: Object) -> datetime | None:
        """Makes one step; returns when to check again without a change, or None."""
        raise NotImplementedError

    def resync(self) -> None:
        self._due.clear()
        for owned in self._owned:
            owned.resync()
        for key in self._client.store.keys(self._kind.qualified):
            self._sync(key)

    def handle(self, change: Change) -> None:
        if change.key.kind == self._kind.qualified:
            if change.type == "DELETED":
                self._due.pop(change.key, None)
                for owned in self._owned:
                    owned.forget(change.object)
            self._sync(change.key)
            return
        for owned in self._owned:
            if change.key.kind == owned.kind.qualified and (key := owned.owner_of(change)) is not None:
                self._sync(key)

    def next_due(self) -> datetime | None:
        return min(self._due.values(), default=None)

    def run_due(self) -> None:
        now = self._client.now()
        for key in [key for key, due in self._due.items() if due <= now]:
            del self._due[key]
            self._sync(key)

    def _sync(self, key: ObjectKey) -> None:
        """Syncs an owner, unless it is being deleted: the garbage collector then decides about its objects."""
        owner = self._client.store.get(key)
        self._due.pop(key, None)
        if owner is None or owner["metadata"].get("deletionTimestamp"):
            return
        due = self.sync(key, owner)
        if due is not None:
            self._due[key] = due
