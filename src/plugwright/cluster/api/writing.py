"""Objects written: created, replaced, changed, bound to a node, deleted.

Every way to write ends here, whoever writes: a client by HTTP, the scheduler, a node. What holds for objects is
`rules`' to say.
"""

import uuid
from collections.abc import Callable
from datetime import timedelta

from plugwright.cluster import clock
from plugwright.cluster.api import managed, names, rules
from plugwright.cluster.api.errors import Refused, bad_request
from plugwright.cluster.api.kinds import KINDS, NAMESPACES, PODS, SERVICE_ACCOUNTS, Kind
from plugwright.cluster.api.rules import Deletion, Place
from plugwright.cluster.clock import Clock
from plugwright.cluster.rehearsal import Objects
from plugwright.cluster.store import Key, Object

__all__ = ["Deletion", "Place", "Writer"]

_TRIES = 8  # for a name that is still free


class Writer:
    def __init__(self, store: Objects, now: Clock = clock.now) -> None:
        self._store = store
        self._now = now

    def create(self, place: Place, content: Object, manager: str) -> Object:
        metadata = rules.metadata(content)
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = self._free_name(place, str(metadata["generateName"]))
        place = Place(place.kind, place.namespace, str(metadata.get("name") or ""))
        rules.check_place(place, content, metadata)
        for member in ("deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion"):
            metadata.pop(member, None)
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": clock.stamp(self._now())}
        if place.kind.namespaced:
            metadata["namespace"] = place.namespace
            self._check_namespace(place)
        metadata |= {"generation": 1} if place.kind is PODS else {}
        made = rules.defaulted(place.kind, {**content, **_type(place.kind), "metadata": metadata})
        rules.check(place, None, made)
        self._record(None, made, manager, "")
        stored = self._store.create(place.key, made)
        if place.kind is NAMESPACES and self._store.get(place.key) is not None:
            self._furnish(place.name)
        return stored

    def _furnish(self, namespace: str) -> None:
        """What a controller makes in every new namespace."""
        account = Place(SERVICE_ACCOUNTS, namespace, "default")
        if self._store.get(account.key) is None:
            self.create(account, {"metadata": {"name": account.name}}, "kube-controller-manager")

    def update(self, place: Place, content: Object, manager: str) -> Object:
        """The whole object anew, or its status alone; what the writer saw must still be there."""
        before = self._store.take(place.key)
        metadata = rules.metadata(content)
        rules.check_place(place, content, metadata)
        rules.check_preconditions_of_update(place, before, metadata)
        expected = str(metadata.get("resourceVersion") or "")
        return self._store_change(place, self._merged(place, before, content, manager), expected)

    def change(self, place: Place, change: Callable[[Object], Object], manager: str) -> Object:
        """What `change` makes of the object that is there now: how patches are written."""
        before = self._store.take(place.key)
        after = change(before)
        if not isinstance(after, dict) or not isinstance(after.get("metadata"), dict):
            raise bad_request("the patch leaves no object")
        rules.check_place(place, after, after["metadata"])
        version = str(after["metadata"].get("resourceVersion") or "")
        expected = version if version != before["metadata"]["resourceVersion"] else ""
        return self._store_change(place, self._merged(place, before, after, manager), expected)

    def delete(self, place: Place, deletion: Deletion) -> tuple[Object, bool]:
        """The object, and whether it is gone; a pod on a node goes when its node has ended it."""
        before = self._store.take(place.key)
        rules.check_preconditions(place, before, deletion)
        if place.kind is NAMESPACES:
            self._empty(place.name)
        grace = rules.grace(place, before, deletion)
        metadata = before["metadata"]
        if not grace and not metadata.get("finalizers"):
            return self._store.delete(place.key), True
        if metadata.get("deletionTimestamp") and grace >= metadata.get("deletionGracePeriodSeconds", grace):
            return before, False
        marks = {
            "deletionTimestamp": clock.stamp(self._now() + timedelta(seconds=grace)),
            "deletionGracePeriodSeconds": grace,
        }
        return self._store.update(place.key, {**before, "metadata": {**metadata, **marks}}), False

    def bind(self, place: Place, node: str) -> Object:
        """The scheduler's decision: it is made once."""
        before = self._store.take(place.key)
        spec, metadata, status = before["spec"], before["metadata"], before.get("status") or {}
        if metadata.get("deletionTimestamp"):
            raise _unbindable(place, f"pod {place.name} is being deleted, cannot be assigned to a host")
        if spec.get("nodeName"):
            raise _unbindable(place, f'pod {place.name} is already assigned to node "{spec["nodeName"]}"')
        scheduled = {
            "type": "PodScheduled",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": clock.stamp(self._now()),
            "observedGeneration": metadata.get("generation", 1),
        }
        others = [each for each in status.get("conditions") or [] if each["type"] != scheduled["type"]]
        return self._store.update(
            place.key,
            {**before, "spec": {**spec, "nodeName": node}, "status": {**status, "conditions": [*others, scheduled]}},
        )

    def _merged(self, place: Place, before: Object, content: Object, manager: str) -> Object:
        """Only the part that is being written is taken from `content`."""
        if place.subresource == "status":
            after = rules.defaulted_status(place.kind, {**before, "status": content.get("status") or {}})
            after["metadata"] = dict(before["metadata"])
        else:
            metadata = rules.kept(before["metadata"], rules.metadata(content))
            after = rules.completed(place.kind, before, {**content, **_type(place.kind), "metadata": metadata})
        rules.check(place, before, after)
        self._record(before, after, manager, place.subresource)
        return after

    def _store_change(self, place: Place, after: Object, expected: str) -> Object:
        """What was only waiting for its finalizers to end is gone with the last of them."""
        stored = self._store.update(place.key, after, expected)
        metadata = stored["metadata"]
        waits = metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds")
        if metadata.get("deletionTimestamp") and not waits:
            self._store.delete(place.key)
        return stored

    def _record(self, before: Object | None, after: Object, manager: str, subresource: str) -> None:
        author = managed.Author(manager, subresource, clock.stamp(self._now()))
        after["metadata"]["managedFields"] = managed.recorded(before, after, author)

    def _free_name(self, place: Place, prefix: str) -> str:
        for _ in range(_TRIES):
            name = names.generated(prefix)
            if self._store.get(Place(place.kind, place.namespace, name).key) is None:
                break
        return name

    def _check_namespace(self, place: Place) -> None:
        if self._store.get(Key(NAMESPACES.qualified, "", place.namespace)) is None:
            text = f'namespaces "{place.namespace}" not found'
            raise Refused(404, "NotFound", text, {"name": place.namespace, "kind": "namespaces"})

    def _empty(self, namespace: str) -> None:
        for kind in (each.qualified for each in KINDS if each.namespaced):
            for found in self._store.every(kind, namespace):
                self._store.delete(Key(kind, namespace, found["metadata"]["name"]))


def _type(kind: Kind) -> Object:
    return {"kind": kind.name, "apiVersion": kind.api_version}


def _unbindable(place: Place, text: str) -> Refused:
    details = {"name": place.name, "kind": "pods/binding"}
    said = f'Operation cannot be fulfilled on pods/binding "{place.name}": {text}'
    return Refused(409, "Conflict", said, details)
