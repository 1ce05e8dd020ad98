"""The embedded cluster's objects: versions, optimistic concurrency, and a history that watchers read.

One writer, many readers: a watcher is a place in the history and a bell, never a queue. Stored objects are values:
whoever wants another one stores it. What may be written is `api`'s to decide; the disk is `database`'s.

Writes that are only computed: a store that answers as the real one would, and keeps nothing (dryRun=All).
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from plugwright.errors import ClusterError

__all__ = [
    "Change",
    "Conflict",
    "Disk",
    "Exists",
    "Expired",
    "Key",
    "Missing",
    "Object",
    "Objects",
    "Rehearsal",
    "Store",
]

Object = dict[str, Any]  # type: ignore[explicit-any,unused-ignore]  # JSON, as clients send it
_KEPT = 8_000  # changes a watcher may be behind


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Where an object is: `kind` is the plural in the URL, `namespace` is empty for what has none."""

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Change:
    """`type` is the watch's word; `before` is the object as it was, for watchers that select."""

    revision: int
    type: str
    key: Key
    object: Object
    before: Object | None


class Missing(ClusterError):
    def __init__(self, key: Key) -> None:
        super().__init__(f'{key.kind} "{key.name}" not found')
        self.key = key


class Exists(ClusterError):
    def __init__(self, key: Key) -> None:
        super().__init__(f'{key.kind} "{key.name}" already exists')
        self.key = key


class Conflict(ClusterError):
    """The object has changed since the version that the writer saw."""

    def __init__(self, key: Key) -> None:
        super().__init__(
            f'Operation cannot be fulfilled on {key.kind} "{key.name}": the object has been modified; '
            "please apply your changes to the latest version and try again"
        )
        self.key = key


class Expired(ClusterError):
    """The history does not go back that far: the reader has to list again."""

    def __init__(self, revision: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {revision} ({oldest})")


class Disk(Protocol):
    """What must outlive the process, written before the writer is answered."""

    def load(self) -> tuple[int, Iterable[tuple[Key, Object]]]: ...

    def save(self, change: Change) -> None: ...


class Store:
    def __init__(self, disk: Disk | None = None, kept: int = _KEPT) -> None:
        self._disk = disk
        self._objects: dict[str, dict[Key, Object]] = {}
        self._history: deque[Change] = deque(maxlen=kept)
        self._bell = asyncio.Event()
        self._revision, found = disk.load() if disk else (1, [])
        for key, stored in found:
            self._objects.setdefault(key.kind, {})[key] = stored
        self._first = self._revision  # the history begins after it

    @property
    def revision(self) -> int:
        return self._revision

    def get(self, key: Key) -> Object | None:
        return self._objects.get(key.kind, {}).get(key)

    def take(self, key: Key) -> Object:
        found = self.get(key)
        if found is None:
            raise Missing(key)
        return found

    def every(self, kind: str, namespace: str = "") -> list[Object]:
        """Sorted by namespace and name; every namespace unless one is given."""
        found = self._objects.get(kind, {})
        keys = sorted(found) if not namespace else sorted(key for key in found if key.namespace == namespace)
        return [found[key] for key in keys]

    def at(self, revision: int, kind: str, namespace: str = "") -> list[Object]:
        """As `every`, at an earlier revision: what happened since is taken back."""
        found = dict(self._objects.get(kind, {}))
        for change in reversed(self._after(revision)):
            if change.key.kind != kind:
                continue
            if change.before is None:
                del found[change.key]
            else:
                found[change.key] = change.before
        return [found[key] for key in sorted(found) if not namespace or key.namespace == namespace]

    def create(self, key: Key, content: Object) -> Object:
        if self.get(key) is not None:
            raise Exists(key)
        return self._write("ADDED", key, content, None)

    def update(self, key: Key, content: Object, expected: str = "") -> Object:
        """`expected` is the version that the writer started from, empty for whatever is there."""
        before = self.take(key)
        if expected and expected != before["metadata"]["resourceVersion"]:
            raise Conflict(key)
        if _same(before, content):
            return before
        return self._write("MODIFIED", key, content, before)

    def delete(self, key: Key) -> Object:
        before = self.take(key)
        return self._write("DELETED", key, before, before)

    async def changes(self, since: int, timeout: float | None = None) -> list[Change]:
        """Everything after a revision, in order, once there is something; nothing after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while not (found := self._after(since)):
                    await self._bell.wait()
        except TimeoutError:
            return []
        return found

    def _after(self, since: int) -> list[Change]:
        if since == self._revision:
            return []
        if since > self._revision:  # from before the server was started anew, with nothing kept
            raise Expired(since, self._revision)
        if since < self._first:
            raise Expired(since, self._first)
        behind = self._revision - since  # every revision is one change
        return list(islice(self._history, max(0, len(self._history) - behind), None))

    def _write(self, kind: str, key: Key, content: Object, before: Object | None) -> Object:
        revision = self._revision + 1
        stored = {**content, "metadata": {**content["metadata"], "resourceVersion": str(revision)}}
        change = Change(revision, kind, key, stored, before)
        if self._disk:
            self._disk.save(change)
        self._revision = revision
        objects = self._objects.setdefault(key.kind, {})
        if kind == "DELETED":
            del objects[key]
        else:
            objects[key] = stored
        if len(self._history) == self._history.maxlen:
            self._first = self._history[0].revision
        self._history.append(change)
        self._bell.set()
        self._bell = asyncio.Event()
        return stored


def _same(before: Object, content: Object) -> bool:
    """Whether nothing would change but the version."""
    if {**before, "metadata": None} != {**content, "metadata": None}:
        return False
    version = {"resourceVersion": None}
    return bool({**before["metadata"], **version} == {**content["metadata"], **version})


class Objects(Protocol):
    """What a writer needs of a store."""

    def get(self, key: Key) -> Object | None: ...

    def take(self, key: Key) -> Object: ...

    def every(self, kind: str, namespace: str = "") -> list[Object]: ...

    def create(self, key: Key, content: Object) -> Object: ...

    def update(self, key: Key, content: Object, expected: str = "") -> Object: ...

    def delete(self, key: Key) -> Object: ...


class Rehearsal:
    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, key: Key) -> Object | None:
        return self._store.get(key)

    def take(self, key: Key) -> Object:
        return self._store.take(key)

    def every(self, kind: str, namespace: str = "") -> list[Object]:
        return self._store.every(kind, namespace)

    def create(self, key: Key, content: Object) -> Object:
        """Without a version: it never had one."""
        if self._store.get(key) is not None:
            raise Exists(key)
        return content

    def update(self, key: Key, content: Object, expected: str = "") -> Object:
        """With the version that is there."""
        version = self._store.take(key)["metadata"]["resourceVersion"]
        if expected and expected != version:
            raise Conflict(key)
        return {**content, "metadata": {**content["metadata"], "resourceVersion": version}}

    def delete(self, key: Key) -> Object:
        return self._store.take(key)
