"""The embedded cluster's objects: resource versions, optimistic concurrency, and the history that watches read.

One writer, many readers: a watcher remembers a revision and reads the changes after it, so it needs no queue. Stored
objects are values and never change in place. `api` decides what may be written; `database` writes it to disk.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any, Protocol

import msgspec

from plugwright.errors import ClusterError
from plugwright.system.concurrency import Latest

__all__ = [
    "AlreadyExists",
    "Change",
    "DryRun",
    "Expired",
    "NotFound",
    "Object",
    "ObjectKey",
    "ObjectLookup",
    "ObjectReader",
    "Persistence",
    "Store",
    "VersionConflict",
]

Object = dict[str, Any]  # type: ignore[explicit-any,unused-ignore]  # JSON, as clients send it
_HISTORY = 8_000  # changes that a watcher may lag behind
_PODS = "pods"
_PACKED = (
    "events"  # kept as JSON: there are four for each pod, as objects half as large as it, and they are rarely read
)
_Stored = Object | bytes
_in_order = attrgetter("namespace", "name")


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """`kind` is the plural with its group (`leases.coordination.k8s.io`); `namespace` may be empty."""

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Change:
    """`type` is the watch event's; `before` is the previous object, which selectors are compared with."""

    revision: int
    type: str
    key: ObjectKey
    object: Object
    before: Object | None


class NotFound(ClusterError):
    def __init__(self, key: ObjectKey) -> None:
        super().__init__(f'{key.kind} "{key.name}" not found')
        self.key = key


class AlreadyExists(ClusterError):
    def __init__(self, key: ObjectKey) -> None:
        super().__init__(f'{key.kind} "{key.name}" already exists')
        self.key = key


class VersionConflict(ClusterError):
    """The object has changed since the resource version that the writer read."""

    def __init__(self, key: ObjectKey) -> None:
        super().__init__(
            f'Operation cannot be fulfilled on {key.kind} "{key.name}": the object has been modified; '
            "please apply your changes to the latest version and try again"
        )
        self.key = key


class Expired(ClusterError):
    """The history does not go back to that revision: the reader has to list again."""

    def __init__(self, revision: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {revision} ({oldest})")


class ObjectLookup(Protocol):
    """Objects by their keys and kinds."""

    def get(self, key: ObjectKey) -> Object | None: ...

    def objects(self, kind: str, namespace: str = "") -> list[Object]: ...


class ObjectReader(ObjectLookup, Protocol):
    """The objects that a node reads: those of this store, or the mirror of another API server."""

    def require(self, key: ObjectKey) -> Object: ...

    def bound_pods(self, node: str) -> list[Object]: ...


class Persistence(Protocol):
    """Storage that outlives the process; `save` returns when the change is durable."""

    def load(self) -> tuple[int, Iterable[tuple[ObjectKey, Object]]]: ...

    def save(self, change: Change) -> None: ...


class Store:
    def __init__(self, persistence: Persistence | None = None, history: int = _HISTORY) -> None:
        self._persistence = persistence
        self._objects: dict[str, dict[ObjectKey, _Stored]] = {}
        self._bound: dict[str, dict[ObjectKey, Object]] = {}  # the pods of every node
        self._history: deque[Change] = deque(maxlen=history)
        revision, saved = persistence.load() if persistence else (1, [])
        for key, content in saved:
            self._objects.setdefault(key.kind, {})[key] = _packed(key, content)
            self._index(key, None, content)
        self._revision = Latest(revision)
        self._oldest = revision  # the history begins after it

    @property
    def revision(self) -> int:
        return self._revision.value

    def get(self, key: ObjectKey) -> Object | None:
        stored = self._objects.get(key.kind, {}).get(key)
        return None if stored is None else _unpacked(stored)

    def require(self, key: ObjectKey) -> Object:
        """As `get`, and raises NotFound."""
        stored = self.get(key)
        if stored is None:
            raise NotFound(key)
        return stored

    def objects(self, kind: str, namespace: str = "") -> list[Object]:
        """Sorted by namespace and name; of all namespaces unless one is given."""
        return _sorted(self._objects.get(kind, {}), namespace)

    def bound_pods(self, node: str) -> list[Object]:
        """The pods that are bound to a node, sorted as `objects`; the cost is that of these pods alone."""
        return _sorted(self._bound.get(node, {}), "")

    def objects_at(self, revision: int, kind: str, namespace: str = "") -> list[Object]:
        """As `objects`, at an earlier revision: later changes are undone."""
        objects = dict(self._objects.get(kind, {}))
        for change in reversed(self._after(revision)):
            if change.key.kind != kind:
                continue
            if change.before is None:
                del objects[change.key]
            else:
                objects[change.key] = change.before
        return _sorted(objects, namespace)

    def create(self, key: ObjectKey, content: Object) -> Object:
        if self.get(key) is not None:
            raise AlreadyExists(key)
        return self._write("ADDED", key, content, None)

    def update(self, key: ObjectKey, content: Object, expected: str = "") -> Object:
        """`expected` is the resource version that the writer read; empty overwrites any."""
        before = self.require(key)
        if expected and expected != before["metadata"]["resourceVersion"]:
            raise VersionConflict(key)
        if _differ_by_version_alone(before, content):
            return before
        return self._write("MODIFIED", key, content, before)

    def delete(self, key: ObjectKey) -> Object:
        before = self.require(key)
        return self._write("DELETED", key, before, before)

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

    def _write(self, event: str, key: ObjectKey, content: Object, before: Object | None) -> Object:
        revision = self.revision + 1
        stored = {**content, "metadata": {**content["metadata"], "resourceVersion": str(revision)}}
        change = Change(revision, event, key, stored, before)
        if self._persistence:
            self._persistence.save(change)
        objects = self._objects.setdefault(key.kind, {})
        if event == "DELETED":
            del objects[key]
        else:
            objects[key] = _packed(key, stored)
        self._index(key, before, None if event == "DELETED" else stored)
        if len(self._history) == self._history.maxlen:
            self._oldest = self._history[0].revision
        self._history.append(change)
        self._revision.publish(revision)
        return stored

    def _index(self, key: ObjectKey, before: Object | None, after: Object | None) -> None:
        if key.kind != _PODS:
            return
        old, new = _node_name(before), _node_name(after)
        if old and old != new and (pods := self._bound.get(old)) is not None:
            pods.pop(key, None)
            if not pods:
                del self._bound[old]
        if new and after is not None:
            self._bound.setdefault(new, {})[key] = after


class DryRun:
    """A store that answers writes as the real one would and keeps nothing (dryRun=All)."""

    def __init__(self, store: Store) -> None:
        self.get, self.require, self.objects = store.get, store.require, store.objects

    def create(self, key: ObjectKey, content: Object) -> Object:
        """Without a resource version, as it was never stored."""
        if self.get(key) is not None:
            raise AlreadyExists(key)
        return content

    def update(self, key: ObjectKey, content: Object, expected: str = "") -> Object:
        """With the resource version that is stored."""
        version = self.require(key)["metadata"]["resourceVersion"]
        if expected and expected != version:
            raise VersionConflict(key)
        return {**content, "metadata": {**content["metadata"], "resourceVersion": version}}

    def delete(self, key: ObjectKey) -> Object:
        return self.require(key)


def _packed(key: ObjectKey, content: Object) -> _Stored:
    return msgspec.json.encode(content) if key.kind == _PACKED else content


def _unpacked(stored: _Stored) -> Object:
    return msgspec.json.decode(stored, type=Object) if isinstance(stored, bytes) else stored


def _sorted(objects: Mapping[ObjectKey, _Stored], namespace: str) -> list[Object]:
    keys = objects if not namespace else (key for key in objects if key.namespace == namespace)
    return [_unpacked(objects[key]) for key in sorted(keys, key=_in_order)]


def _node_name(pod: Object | None) -> str:
    spec = (pod or {}).get("spec")
    return str(spec.get("nodeName") or "") if isinstance(spec, dict) else ""


def _differ_by_version_alone(before: Object, content: Object) -> bool:
    if {**before, "metadata": None} != {**content, "metadata": None}:
        return False
    version = {"resourceVersion": None}
    return bool({**before["metadata"], **version} == {**content["metadata"], **version})
