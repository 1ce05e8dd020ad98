"""The objects of a workload controller: found by the uid of their owner, created from a template, deleted.

Each controller maintains an index of its objects from the changes it handles. New objects are added immediately, so a
second change of the owner does not create them twice.
"""

import hashlib
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

import msgspec

from plugwright.apiserver import clock
from plugwright.apiserver.kinds import PODS, Kind
from plugwright.apiserver.registry import DeleteOptions, ResourcePath
from plugwright.apiserver.store import Change, Object, ObjectKey
from plugwright.cluster.events import ClusterClient, EventRecord, EventRecorder, EventSource
from plugwright.errors import NotFound, StatusError

__all__ = ["FINISHED", "MANAGER", "OwnedObjects", "available_since", "condition", "is_active", "is_ready", "pod_hash"]

MANAGER = "kube-controller-manager"
FINISHED = ("Succeeded", "Failed")
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # as in generated names: no vowels, to avoid words
_HASH_LENGTH = 10
_encode = msgspec.json.Encoder(order="deterministic").encode


class OwnedObjects:
    """Objects of the kind `owned` whose controller is an object of the kind `owner`."""

    def __init__(self, client: ClusterClient, owner: Kind, component: str, owned: Kind = PODS) -> None:
        self._client = client
        self.kind = owned
        self._owner, self._owned = owner, owned
        self._keys: dict[str, set[ObjectKey]] = {}  # by the uid of the owner
        self._recorder = EventRecorder(client, EventSource(component, manager=MANAGER))

    def resync(self) -> None:
        self._keys.clear()
        for content in self._client.store.objects(self._owned.qualified):
            self._add(content)

    def owner_of(self, change: Change) -> ObjectKey | None:
        """Updates the index; returns the owner affected by a change of an owned object."""
        content = change.object
        reference = _controller(content, self._owner)
        if reference is None:
            return None
        if change.type == "DELETED":
            self._keys.get(reference["uid"], set()).discard(change.key)
        else:
            self._add(content)
        return ObjectKey(self._owner.qualified, change.key.namespace, str(reference["name"]))

    def of(self, owner: Object) -> list[Object]:
        """The objects of this owner, oldest first."""
        uid = owner["metadata"]["uid"]
        found = (self._client.store.get(key) for key in sorted(self._keys.get(uid, ())))
        own = [content for content in found if content and (_controller(content, self._owner) or {}).get("uid") == uid]
        return sorted(own, key=lambda content: str(content["metadata"]["creationTimestamp"]))

    def forget(self, owner: Object) -> None:
        """Forgets a deleted owner: the garbage collector deletes its objects."""
        self._keys.pop(owner["metadata"]["uid"], None)

    def create(self, owner: Object, content: Object, name: str = "") -> Object | None:
        """Creates an object with the owner's reference; None, with an event of the owner, if it is refused."""
        metadata, owner_metadata = content.get("metadata") or {}, owner["metadata"]
        reference = {"apiVersion": self._owner.api_version, "kind": self._owner.name, "name": owner_metadata["name"]}
        reference |= {"uid": owner_metadata["uid"], "controller": True, "blockOwnerDeletion": True}
        naming = {"name": name} if name else {"generateName": f"{owner_metadata['name']}-"}
        named = {**metadata, **naming, "ownerReferences": [reference]}
        path = ResourcePath(self._owned, owner_metadata["namespace"])
        try:
            created = self._client.writer.create(path, {**content, "metadata": named}, MANAGER)
        except StatusError as error:
            self.record(owner, EventRecord("FailedCreate", f"Error creating: {error}", "Warning"))
            return None
        self._add(created)
        kind = self._owned.name.lower() if self._owned is not PODS else "pod"
        self.record(owner, EventRecord("SuccessfulCreate", f"Created {kind}: {created['metadata']['name']}"))
        return created

    def delete(self, owner: Object, content: Object) -> None:
        metadata = content["metadata"]
        if metadata.get("deletionTimestamp"):
            return
        path = ResourcePath(self._owned, metadata["namespace"], metadata["name"])
        try:
            self._client.writer.delete(path, DeleteOptions(uid=metadata["uid"], propagation="Background"))
        except NotFound:
            return
        kind = self._owned.name.lower() if self._owned is not PODS else "pod"
        self.record(owner, EventRecord("SuccessfulDelete", f"Deleted {kind}: {metadata['name']}"))

    def record(self, owner: Object, event: EventRecord) -> None:
        self._recorder.record(owner, event)

    def write_status(self, owner: Object, status: Object) -> None:
        """Writes the status, unless it is unchanged or the owner was deleted."""
        if status == (owner.get("status") or {}):
            return
        metadata = owner["metadata"]
        path = ResourcePath(self._owner, metadata["namespace"], metadata["name"], "status")
        stored = self._client.store.get(path.key)
        if stored is not None and stored["metadata"]["uid"] == metadata["uid"]:
            self._client.writer.change(path, lambda content: {**content, "status": status}, MANAGER)

    def _add(self, content: Object) -> None:
        if reference := _controller(content, self._owner):
            metadata = content["metadata"]
            key = ObjectKey(self._owned.qualified, metadata["namespace"], metadata["name"])
            self._keys.setdefault(reference["uid"], set()).add(key)


def _controller(content: Object, kind: Kind) -> Object | None:
    for reference in content["metadata"].get("ownerReferences") or ():
        if reference.get("controller") and reference["kind"] == kind.name:
            return dict(reference) if reference["apiVersion"] == kind.api_version else None
    return None


def is_active(pod: Object) -> bool:
    return not pod["metadata"].get("deletionTimestamp") and (pod.get("status") or {}).get("phase") not in FINISHED


def is_ready(pod: Object) -> bool:
    return _ready_condition(pod).get("status") == "True" and not pod["metadata"].get("deletionTimestamp")


def available_since(pod: Object, seconds: int) -> datetime | None:
    """When a ready pod has been or will have been ready for this many seconds; None if it is not ready."""
    if not is_ready(pod):
        return None
    since = _ready_condition(pod).get("lastTransitionTime") or pod["metadata"]["creationTimestamp"]
    return clock.parse(str(since)) + timedelta(seconds=seconds)


def _ready_condition(pod: Object) -> Object:
    conditions: Iterable[Object] = (pod.get("status") or {}).get("conditions") or ()
    return next((found for found in conditions if found["type"] == "Ready"), {})


def condition(status: Object, new: Object, now: str) -> list[Object]:
    """The conditions including a new one, whose transition time stays if its status does."""
    conditions: list[Object] = list(status.get("conditions") or ())
    before: Object = next((found for found in conditions if found["type"] == new["type"]), {})
    is_same = before.get("status") == new["status"]
    if {**before, "lastTransitionTime": None} == {**new, "lastTransitionTime": None}:
        return conditions
    times = {"lastTransitionTime": before.get("lastTransitionTime", now) if is_same else now}
    return [*_others(conditions, new["type"]), {**new, **times}]


def _others(conditions: Iterable[Object], condition_type: str) -> Iterator[Object]:
    return (found for found in conditions if found["type"] != condition_type)


def pod_hash(template: Object) -> str:
    """A name for a template, equal for equal templates."""
    number = int.from_bytes(hashlib.sha256(_encode(template)).digest()[:8])
    letters = []
    for _ in range(_HASH_LENGTH):
        number, digit = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[digit])
    return "".join(letters)
