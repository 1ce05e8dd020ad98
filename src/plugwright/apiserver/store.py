"""The embedded cluster's objects: resource versions, optimistic concurrency, and the history for watches.

One writer, many readers: a watcher remembers a revision and reads the changes after it, so it needs no queue. Stored
objects are values and never change in place; most are packed after a while, by `stored_objects`. `api` decides which
writes are allowed; `database` writes them to disk.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Protocol

from plugwright.apiserver.stored_objects import Object, StoredObject, StoredObjects
from plugwright.errors import AlreadyExists, Expired, NotFound, VersionConflict
from plugwright.system.latest import Latest

__all__ = [
    "Change",
    "DryRun",
    "Object",
    "ObjectKey",
    "ObjectLookup",
    "ObjectReader",
    "Persistence",
    "Store",
]

_HISTORY = 8_000  # changes by which a watcher can lag behind
_UNPACKED = 3_000  # newest versions of a kind, which are likely to be read soon
_FEW_UNPACKED = 200  # of a kind with few readers: enough for its watchers
_FEW_READ = ("events", "leases.coordination.k8s.io", "nodes")
_RENEWED = "leases.coordination.k8s.io"  # in every heartbeat: packed only after the next version
_PODS = "pods"
_in_order = attrgetter("namespace", "name")


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """`kind` is the plural with its group (`leases.coordination.k8s.io`); `namespace` can be empty."""

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Change:
    """`type` is the watch event's; `before` is the previous object, with which selectors are compared.

    Read each of them only once: a packed one is unpacked every time.
    """

    revision: int
    type: str
    key: ObjectKey
    _after: StoredObject = field(repr=False)
    _before: StoredObject | None = field(repr=False)

    @property
    def object(self) -> Object:
        return self._after.content

    @property
    def before(self) -> Object | None:
        return self._before.content if self._before is not None else None

    def undo(self, objects: "dict[ObjectKey, StoredObject]") -> None:
        """Restores the objects as of before this change."""
        if self._before is None:
            del objects[self.key]
        else:
            objects[self.key] = self._before


class ObjectLookup(Protocol):
    """Objects by their keys and kinds."""

    def get(self, key: ObjectKey) -> Object | None: ...

    def objects(self, kind: str, namespace: str = "") -> Sequence[Object]: ...


class ObjectReader(ObjectLookup, Protocol):
    """The objects that a node reads: from this store, or the mirror of another API server."""

    def version(self, key: ObjectKey) -> str | None: ...

    def require(self, key: ObjectKey) -> Object: ...

    def bound_pods(self, node: str) -> Sequence[Object]: ...


class Persistence(Protocol):
    """Storage that survives the process; `save` returns when the change is durable."""

    def load(self) -> tuple[int, Iterable[tuple[ObjectKey, Object]]]: ...

    def save(self, change: Change) -> None: ...


class Store:
    def __init__(
        self, persistence: Persistence | None = None, history: int = _HISTORY, unpacked: int = _UNPACKED
    ) -> None:
        self._persistence = persistence
        self._objects: dict[str, dict[ObjectKey, StoredObject]] = {}
        self._bound: dict[str, dict[ObjectKey, StoredObject]] = {}  # the pods of every node
        self._history: deque[Change] = deque(maxlen=history)
        self._newest: dict[str, deque[StoredObject]] = {}  # of every kind; packed when there are enough newer ones
        self._unpacked = unpacked
        self._packed: dict[str, bytes] = {}  # the first packed object of every kind
        revision, saved = persistence.load() if persistence else (1, [])
        for key, content in saved:
            self._replace(key, None, StoredObject(content, content["metadata"]["resourceVersion"]))
        self._revision = Latest(revision)
        self._oldest = revision  # start of the history

    @property
    def revision(self) -> int:
        return self._revision.value

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._objects.get(key.kind, {})

    def get(self, key: ObjectKey) -> Object | None:
        stored = self._objects.get(key.kind, {}).get(key)
        return None if stored is None else stored.content

    def version(self, key: ObjectKey) -> str | None:
        """The resource version of the object, without unpacking it."""
        stored = self._objects.get(key.kind, {}).get(key)
        return None if stored is None else stored.version

    def keys(self, kind: str) -> Sequence[ObjectKey]:
        """The keys of all objects of a kind, in the order of their creation."""
        return tuple(self._objects.get(kind, ()))

    def require(self, key: ObjectKey) -> Object:
        """Like `get`, but raises NotFound."""
        return self._require(key).content

    def _require(self, key: ObjectKey) -> StoredObject:
        stored = self._objects.get(key.kind, {}).get(key)
        if stored is None:
            raise NotFound(key.kind, key.name)
        return stored

    def objects(self, kind: str, namespace: str = "") -> Sequence[Object]:
        """The objects sorted by namespace and name; of all namespaces unless one is given."""
        return _sorted(self._objects.get(kind, {}), namespace)

    def bound_pods(self, node: str) -> Sequence[Object]:
        """The pods bound to a node, sorted as `objects`; the cost depends only on the number of these pods."""
        return _sorted(self._bound.get(node, {}), "")

    def objects_at(self, revision: int, kind: str, namespace: str = "") -> Sequence[Object]:
        """Like `objects`, at an earlier revision: later changes are undone."""
        objects = dict(self._objects.get(kind, {}))
        for change in reversed(self._after(revision)):
            if change.key.kind == kind:
                change.undo(objects)
        return _sorted(objects, namespace)

    def create(self, key: ObjectKey, content: Object) -> Object:
        if key in self:
            raise AlreadyExists(key.kind, key.name)
        return self._write("ADDED", key, content, None)

    def update(self, key: ObjectKey, content: Object, expected: str = "") -> Object:
        """Updates; `expected` is the resource version that the writer read; empty overwrites any."""
        stored = self._require(key)
        if expected and expected != stored.version:
            raise VersionConflict(key.kind, key.name)
        before = stored.content
        if _differ_by_version_alone(before, content):
            return before
        return self._write("MODIFIED", key, content, stored)

    def delete(self, key: ObjectKey) -> Object:
        before = self._require(key)
        return self._write("DELETED", key, before.content, before)

    async def changes(self, since: int, timeout: float | None = None) -> list[Change]:
        """All changes after a revision, in order, once there are any; an empty list after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._revision.until(lambda revision: revision != since)
        except TimeoutError:
            return []
        return self._after(since)

    def _after(self, since: int) -> list[Change]:
        if since == self.revision:
            return []
        if since > self.revision:  # from before a restart without persistence
            raise Expired(since, self.revision)
        if since < self._oldest:
            raise Expired(since, self._oldest)
        behind = self.revision - since  # every revision is one change
        newest_first = list(islice(reversed(self._history), behind))
        return newest_first[::-1]

    def _write(self, event: str, key: ObjectKey, content: Object, before: StoredObject | None) -> Object:
        revision = self.revision + 1
        version = str(revision)
        written = {**content, "metadata": {**content["metadata"], "resourceVersion": version}}
        stored = StoredObject(written, version)
        change = Change(revision, event, key, stored, before)
        if self._persistence:
            self._persistence.save(change)
        self._replace(key, before, None if event == "DELETED" else stored)
        if len(self._history) == self._history.maxlen:
            self._oldest = self._history[0].revision
        self._history.append(change)
        self._pack_later(key.kind, before if key.kind == _RENEWED else stored)
        self._revision.publish(revision)
        return written

    def _pack_later(self, kind: str, version: StoredObject | None) -> None:
        """Packs the version once there are enough newer ones of its kind."""
        if version is None:
            return
        newest = self._newest.setdefault(kind, deque())
        newest.append(version)
        if len(newest) > (min(_FEW_UNPACKED, self._unpacked) if kind in _FEW_READ else self._unpacked):
            oldest = newest.popleft()
            if kind not in self._packed:
                self._packed[kind] = oldest.json
            oldest.pack(self._packed[kind])

    def _replace(self, key: ObjectKey, before: StoredObject | None, after: StoredObject | None) -> None:
        if after is None:
            del self._objects[key.kind][key]
        else:
            self._objects.setdefault(key.kind, {})[key] = after
        if key.kind != _PODS:
            return
        old, new = _node_name(before), _node_name(after)
        if old and old != new:
            del self._bound[old][key]
            if not self._bound[old]:
                del self._bound[old]
        if new and after is not None:
            self._bound.setdefault(new, {})[key] = after


class DryRun:
    """A store that answers writes like the real one but keeps nothing (dryRun=All)."""

    def __init__(self, store: Store) -> None:
        self.get, self.require, self.objects = store.get, store.require, store.objects

    def create(self, key: ObjectKey, content: Object) -> Object:
        """The object without a resource version, because it was never stored."""
        if self.get(key) is not None:
            raise AlreadyExists(key.kind, key.name)
        return content

    def update(self, key: ObjectKey, content: Object, expected: str = "") -> Object:
        """The object with the stored resource version."""
        version = self.require(key)["metadata"]["resourceVersion"]
        if expected and expected != version:
            raise VersionConflict(key.kind, key.name)
        return {**content, "metadata": {**content["metadata"], "resourceVersion": version}}

    def delete(self, key: ObjectKey) -> Object:
        return self.require(key)


def _sorted(objects: Mapping[ObjectKey, StoredObject], namespace: str) -> StoredObjects:
    keys = objects if not namespace else (key for key in objects if key.namespace == namespace)
    return StoredObjects(objects[key] for key in sorted(keys, key=_in_order))


def _node_name(pod: StoredObject | None) -> str:
    spec = pod.content.get("spec") if pod is not None else None
    return str(spec.get("nodeName") or "") if isinstance(spec, dict) else ""


def _differ_by_version_alone(before: Object, content: Object) -> bool:
    if {**before, "metadata": None} != {**content, "metadata": None}:
        return False
    version = {"resourceVersion": None}
    return bool({**before["metadata"], **version} == {**content["metadata"], **version})
