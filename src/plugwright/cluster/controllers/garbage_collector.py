"""The garbage collector: deletes objects whose owners are gone; deleted owners wait for dependents or orphan them.

A finalizer in a deleted owner determines what happens to dependents: `foregroundDeletion` keeps the owner until
blocking dependents are gone, `orphan` until no dependent refers to it; without either they are deleted after it. Owners
of unserved kinds are assumed to exist.
"""

from collections.abc import Iterable
from datetime import datetime

from plugwright.apiserver.kinds import KINDS
from plugwright.apiserver.registry import DeleteOptions, ResourcePath
from plugwright.apiserver.store import Change, Object, ObjectKey
from plugwright.cluster.events import ClusterClient, EventRecord, EventRecorder, EventSource

__all__ = ["GarbageCollector"]

_MANAGER = "kube-controller-manager"
_FOREGROUND, _ORPHAN = "foregroundDeletion", "orphan"
_KINDS = {kind.qualified: kind for kind in KINDS}


class GarbageCollector:
    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._recorder = EventRecorder(client, EventSource("garbage-collector-controller", manager=_MANAGER))
        self._dependents: dict[str, set[ObjectKey]] = {}  # by the uid of their owner

    def resync(self) -> None:
        self._dependents.clear()
        relevant = []  # of all objects, which are decoded one by one
        for key, content in (stored for kind in KINDS for stored in self._objects(kind.qualified)):
            self._index(key, content, None)
            if any(_relevant(content)):
                relevant.append((key, content))
        for key, content in relevant:
            self._changed(key, content)

    def handle(self, change: Change) -> None:
        key, content, before = change.key, change.object, change.before
        if change.type == "DELETED":
            self._index(key, None, content)
            for dependent in sorted(self._dependents.pop(content["metadata"]["uid"], ())):
                self._collect(dependent)
            for reference in _references(content):
                self._finish_owner(_owner_key(reference, key.namespace))
        elif before is None or _relevant(before) != _relevant(content):
            self._index(key, content, before)
            self._changed(key, content)

    def next_due(self) -> datetime | None:
        return None

    def run_due(self) -> None:
        """Does nothing: nothing here waits for a time."""

    def _objects(self, kind: str) -> Iterable[tuple[ObjectKey, Object]]:
        for content in self._client.store.objects(kind):
            metadata = content["metadata"]
            yield ObjectKey(kind, metadata.get("namespace") or "", metadata["name"]), content

    def _index(self, key: ObjectKey, content: Object | None, before: Object | None) -> None:
        for reference in _references(before):
            if key in (dependents := self._dependents.get(reference["uid"], set())):
                dependents.remove(key)
        for reference in _references(content):
            self._dependents.setdefault(reference["uid"], set()).add(key)

    def _changed(self, key: ObjectKey, content: Object) -> None:
        if content["metadata"].get("deletionTimestamp"):
            self._finish_owner(key)
        if _references(content):
            self._collect(key)

    def _collect(self, key: ObjectKey) -> None:
        """Deletes an object whose owners are all gone; if only some are gone, removes the references to them."""
        content = self._client.store.get(key)
        if content is None or content["metadata"].get("deletionTimestamp"):
            return
        references = _references(content)
        absent = [reference for reference in references if not self._is_present(reference, key, content)]
        waiting = [reference for reference in references if self._is_waiting(reference, key)]
        gone = {reference["uid"] for reference in (*absent, *waiting)}
        if not gone:
            return
        if len(gone) < len({reference["uid"] for reference in references}):
            self._release(key, gone)
            return
        has_dependents = bool(self._dependents.get(content["metadata"]["uid"]))
        policy = "Foreground" if waiting and has_dependents else _policy(content)
        options = DeleteOptions(uid=content["metadata"]["uid"], propagation=policy)
        self._client.writer.delete(_path(key), options)

    def _is_present(self, reference: Object, key: ObjectKey, dependent: Object) -> bool:
        owner_key = _owner_key(reference, key.namespace)
        if owner_key is None:
            return True
        owner = self._client.store.get(owner_key)
        if owner is not None and owner["metadata"]["uid"] == reference["uid"]:
            return True
        if _KINDS[owner_key.kind].namespaced and self._is_elsewhere(reference, owner_key):
            self._report_namespace(reference, key, dependent)
        return False

    def _is_elsewhere(self, reference: Object, key: ObjectKey) -> bool:
        others = self._client.store.objects(key.kind)
        return any(other["metadata"]["uid"] == reference["uid"] for other in others)

    def _report_namespace(self, reference: Object, key: ObjectKey, dependent: Object) -> None:
        parts = f"{reference['apiVersion']}/{reference['kind']}, namespace: {key.namespace}, name: {reference['name']}"
        text = f'ownerRef [{parts}, uid: {reference["uid"]}] does not exist in namespace "{key.namespace}"'
        self._recorder.record(dependent, EventRecord("OwnerRefInvalidNamespace", text, "Warning"))

    def _is_waiting(self, reference: Object, key: ObjectKey) -> bool:
        owner_key = _owner_key(reference, key.namespace)
        owner = self._client.store.get(owner_key) if owner_key else None
        return (
            owner is not None
            and owner["metadata"]["uid"] == reference["uid"]
            and bool(owner["metadata"].get("deletionTimestamp"))
            and _FOREGROUND in (owner["metadata"].get("finalizers") or ())
        )

    def _finish_owner(self, key: ObjectKey | None) -> None:
        """Deletes or orphans the dependents of a terminating owner, and then removes its finalizer."""
        owner = self._client.store.get(key) if key else None
        if key is None or owner is None or not owner["metadata"].get("deletionTimestamp"):
            return
        finalizers, uid = owner["metadata"].get("finalizers") or (), owner["metadata"]["uid"]
        dependents = sorted(self._dependents.get(uid, ()))
        if _ORPHAN in finalizers:
            for dependent in dependents:
                self._release(dependent, {uid})
            self._remove_finalizer(key, _ORPHAN)
        elif _FOREGROUND in finalizers:
            if not any(self._blocks(dependent, uid) for dependent in dependents):
                self._remove_finalizer(key, _FOREGROUND)
                return
            for dependent in dependents:
                self._collect(dependent)

    def _blocks(self, key: ObjectKey, uid: str) -> bool:
        references = _references(self._client.store.get(key))
        return any(reference["uid"] == uid and reference.get("blockOwnerDeletion") for reference in references)

    def _release(self, key: ObjectKey, owners: set[str]) -> None:
        def released(content: Object) -> Object:
            left = [reference for reference in _references(content) if reference["uid"] not in owners]
            return {**content, "metadata": {**content["metadata"], "ownerReferences": left}}

        if self._client.store.get(key) is not None:
            self._client.writer.change(_path(key), released, _MANAGER)

    def _remove_finalizer(self, key: ObjectKey, finalizer: str) -> None:
        def without(content: Object) -> Object:
            left = [name for name in content["metadata"].get("finalizers") or () if name != finalizer]
            return {**content, "metadata": {**content["metadata"], "finalizers": left}}

        self._client.writer.change(_path(key), without, _MANAGER)


def _references(content: Object | None) -> list[Object]:
    return ((content or {}).get("metadata") or {}).get("ownerReferences") or []


def _relevant(content: Object) -> tuple[object, ...]:
    metadata = content["metadata"]
    return metadata.get("ownerReferences"), metadata.get("deletionTimestamp"), metadata.get("finalizers")


def _policy(content: Object) -> str:
    finalizers = content["metadata"].get("finalizers") or ()
    return "Orphan" if _ORPHAN in finalizers else "Foreground" if _FOREGROUND in finalizers else "Background"


def _owner_key(reference: Object, namespace: str) -> ObjectKey | None:
    """The key of an owner; None for an unserved kind."""
    group, _, version = str(reference["apiVersion"]).rpartition("/")
    named = (group, version, reference["kind"])
    kind = next((kind for kind in KINDS if (kind.group, kind.version, kind.name) == named), None)
    return ObjectKey(kind.qualified, namespace if kind.namespaced else "", str(reference["name"])) if kind else None


def _path(key: ObjectKey) -> ResourcePath:
    return ResourcePath(_KINDS[key.kind], key.namespace, key.name)
