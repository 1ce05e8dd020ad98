"""Writes that are only computed: a store that answers as the real one would, and keeps nothing (dryRun=All)."""

from typing import Protocol

from plugwright.cluster.store import Conflict, Exists, Key, Object, Store

__all__ = ["Objects", "Rehearsal"]


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
