"""Objects written: created, replaced, changed, bound to a node, deleted.

Every way to write ends here, whoever writes: a client by HTTP, the scheduler, a node. What holds for objects is
`rules`' to say.

What holds for objects that are written: where they belong, what is filled in, what stays, what is refused. Pure.
"""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from plugwright.cluster import clock
from plugwright.cluster.api import managed_fields, validation
from plugwright.cluster.api.errors import Cause, Refused, bad_request, invalid
from plugwright.cluster.api.kinds import KINDS, NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS, Kind
from plugwright.cluster.clock import Clock
from plugwright.cluster.store import Key, Object, Objects

__all__ = [
    "Deletion",
    "Place",
    "Writer",
    "check",
    "check_place",
    "check_preconditions",
    "check_preconditions_of_update",
    "completed",
    "defaulted",
    "defaulted_status",
    "grace_of",
    "kept",
    "metadata_of",
]

_ETERNAL = frozenset({"default", "kube-system", "kube-public"})
_LONGEST_GRACE = 10 * 365 * 86_400  # beyond it the end has no date
_FIXED = ("uid", "creationTimestamp", "generation", "namespace", "deletionTimestamp", "deletionGracePeriodSeconds")


@dataclass(frozen=True, slots=True)
class Place:
    """Which object, and which part of it: `subresource` is empty or `status`."""

    kind: Kind
    namespace: str
    name: str
    subresource: str = ""

    @property
    def key(self) -> Key:
        return Key(self.kind.qualified, self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class Deletion:
    """How an object is to go: at once, or after its grace period; `uid` and `version` if it must be this very one."""

    grace: int | None = None
    uid: str = ""
    version: str = ""


def metadata_of(content: Object) -> Object:
    found = content.get("metadata") or {}
    if not isinstance(found, dict):
        raise bad_request("metadata is an object")
    return {name: value for name, value in found.items() if value not in ({}, [])}  # empty is as good as absent


def check_place(place: Place, content: Object, given: Object) -> None:
    """The object is of this kind and belongs here; `given` is its metadata."""
    kind = place.kind
    said = (content.get("apiVersion") or kind.api_version, content.get("kind") or kind.name)
    if said != (kind.api_version, kind.name):
        raise bad_request(
            f"{said[1]} in version {_version(said[0])} cannot be handled as a {kind.name}: "
            f"the API version in the data ({said[0]}, Kind={said[1]}) does not match "
            f"the expected API version ({kind.api_version}, Kind={kind.name})"
        )
    if place.name and given.get("name") != place.name:
        raise bad_request(
            f"the name of the object ({given.get('name', '')}) does not match the name on the URL ({place.name})"
        )
    if kind.namespaced and given.get("namespace", place.namespace) != place.namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")


def _version(api_version: object) -> str:
    return f'"{str(api_version).rpartition("/")[2]}"'


def defaulted(kind: Kind, content: Object) -> Object:
    if kind is PODS:
        return validation.defaulted_pod({**content, "spec": content.get("spec") or {}})
    if kind is NAMESPACES:
        named = {"kubernetes.io/metadata.name": content["metadata"].get("name", "")}
        labels = {**(content["metadata"].get("labels") or {}), **named}
        content["metadata"]["labels"] = dict(sorted(labels.items()))
        return {**content, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
    if kind is NODES:
        return validation.defaulted_node({"spec": {}, **content})
    return content


def defaulted_status(kind: Kind, content: Object) -> Object:
    return validation.defaulted_node(content) if kind is NODES else dict(content)


def completed(kind: Kind, before: Object, content: Object) -> Object:
    """An object that replaces another: with its status, and a generation that counts what is asked of it."""
    status = {"status": before["status"]} if kind.status and "status" in before else {}
    if kind is PODS:
        content = validation.defaulted_pod({**content, "spec": content.get("spec") or {}})
        changed = content["spec"] != before["spec"]
        content["metadata"]["generation"] = before["metadata"].get("generation", 1) + changed
    if kind in (NAMESPACES, NODES):
        content = {**content, "spec": content.get("spec") or before.get("spec") or {}}
    if kind.status:
        content = {name: value for name, value in content.items() if name != "status"}
    return {**content, **status}


def kept(before: Object, given: Object) -> Object:
    """What nobody can change stays."""
    return {**given, **{name: before[name] for name in _FIXED if name in before}}


def check(place: Place, before: Object | None, after: Object) -> None:
    causes = list(_violations(place, before, after))
    if causes:
        raise invalid(place.kind, place.name, causes)


def _violations(place: Place, before: Object | None, after: Object) -> Iterator[Cause]:
    if place.subresource != "status":
        yield from validation.metadata_violations(place.kind, after["metadata"])
        if place.kind is PODS:
            yield from validation.pod_violations(after)
            if before is not None:
                yield from validation.violations_of_change(before, after)
    if place.kind is NODES:
        yield from validation.node_violations(after)


def grace_of(place: Place, before: Object, deletion: Deletion) -> int:
    """Seconds that a pod has to end; what is on no node, or is over, has nothing to end."""
    if place.kind is not PODS or not before["spec"].get("nodeName"):
        return 0
    if (before.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    given = before["spec"].get("terminationGracePeriodSeconds", 30) if deletion.grace is None else deletion.grace
    return min(max(0, int(given)), _LONGEST_GRACE)


def check_preconditions_of_update(place: Place, before: Object, given: Object) -> None:
    uid = before["metadata"]["uid"]
    if given.get("uid") and given["uid"] != uid:
        raise _conflict(place, f"Precondition failed: UID in precondition: {given['uid']}, UID in object meta: {uid}")


def check_preconditions(place: Place, before: Object, deletion: Deletion) -> None:
    if place.kind is NAMESPACES and place.name in _ETERNAL:
        text = f'namespaces "{place.name}" is forbidden: this namespace may not be deleted'
        raise Refused(403, "Forbidden", text, {"name": place.name, "kind": "namespaces"})
    given = before["metadata"]
    if deletion.uid and deletion.uid != given["uid"]:
        text = f"Precondition failed: UID in precondition: {deletion.uid}, UID in object meta: {given['uid']}"
        raise _conflict(place, text)
    if deletion.version and deletion.version != given["resourceVersion"]:
        text = f"Precondition failed: ResourceVersion in precondition: {deletion.version}, "
        raise _conflict(place, f"{text}ResourceVersion in object meta: {given['resourceVersion']}")


def _conflict(place: Place, text: str) -> Refused:
    details = {"name": place.name, "kind": place.kind.plural}
    said = f'Operation cannot be fulfilled on {place.kind.qualified} "{place.name}": {text}'
    return Refused(409, "Conflict", said, details)


_TRIES = 8  # for a name that is still free


class Writer:
    def __init__(self, store: Objects, now: Clock = clock.now) -> None:
        self._store = store
        self._now = now

    def create(self, place: Place, content: Object, manager: str) -> Object:
        metadata = metadata_of(content)
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = self._free_name(place, str(metadata["generateName"]))
        place = Place(place.kind, place.namespace, str(metadata.get("name") or ""))
        check_place(place, content, metadata)
        for member in ("deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion"):
            metadata.pop(member, None)
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": clock.stamp(self._now())}
        if place.kind.namespaced:
            metadata["namespace"] = place.namespace
            self._check_namespace(place)
        metadata |= {"generation": 1} if place.kind is PODS else {}
        made = defaulted(place.kind, {**content, **_type(place.kind), "metadata": metadata})
        check(place, None, made)
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
        metadata = metadata_of(content)
        check_place(place, content, metadata)
        check_preconditions_of_update(place, before, metadata)
        expected = str(metadata.get("resourceVersion") or "")
        return self._store_change(place, self._merged(place, before, content, manager), expected)

    def change(self, place: Place, change: Callable[[Object], Object], manager: str) -> Object:
        """What `change` makes of the object that is there now: how patches are written."""
        before = self._store.take(place.key)
        after = change(before)
        if not isinstance(after, dict) or not isinstance(after.get("metadata"), dict):
            raise bad_request("the patch leaves no object")
        check_place(place, after, after["metadata"])
        version = str(after["metadata"].get("resourceVersion") or "")
        expected = version if version != before["metadata"]["resourceVersion"] else ""
        return self._store_change(place, self._merged(place, before, after, manager), expected)

    def delete(self, place: Place, deletion: Deletion) -> tuple[Object, bool]:
        """The object, and whether it is gone; a pod on a node goes when its node has ended it."""
        before = self._store.take(place.key)
        check_preconditions(place, before, deletion)
        if place.kind is NAMESPACES:
            self._empty(place.name)
        grace = grace_of(place, before, deletion)
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
            after = defaulted_status(place.kind, {**before, "status": content.get("status") or {}})
            after["metadata"] = dict(before["metadata"])
        else:
            metadata = kept(before["metadata"], metadata_of(content))
            after = completed(place.kind, before, {**content, **_type(place.kind), "metadata": metadata})
        check(place, before, after)
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
        author = managed_fields.Author(manager, subresource, clock.stamp(self._now()))
        after["metadata"]["managedFields"] = managed_fields.recorded(before, after, author)

    def _free_name(self, place: Place, prefix: str) -> str:
        for _ in range(_TRIES):
            name = validation.generated(prefix)
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
