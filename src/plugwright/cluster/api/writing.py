"""Objects written: what a client may change, what is filled in, and what becomes of a deletion.

Every way to write ends here, whoever writes: a client by HTTP, the scheduler, a node.
"""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from plugwright.cluster import clock
from plugwright.cluster.api import managed, names, nodes, pods
from plugwright.cluster.api.errors import Cause, Refused, bad_request, invalid
from plugwright.cluster.api.kinds import NAMESPACES, NODES, PODS, Kind
from plugwright.cluster.clock import Clock
from plugwright.cluster.store import Key, Object, Store

__all__ = ["Deletion", "Place", "Writer"]


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


class Writer:
    def __init__(self, store: Store, now: Clock = clock.now) -> None:
        self._store = store
        self._now = now

    def create(self, place: Place, content: Object, manager: str) -> Object:
        metadata = _metadata(content)
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = names.generated(str(metadata["generateName"]))
        place = Place(place.kind, place.namespace, str(metadata.get("name") or ""))
        _check_place(place, content, metadata)
        made = _defaulted(place.kind, {**content, **_type(place.kind), "metadata": metadata})
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": clock.stamp(self._now())}
        metadata |= {"generation": 1} if place.kind is PODS else {}
        if place.kind.namespaced:
            metadata["namespace"] = place.namespace
            self._check_namespace(place)
        _raise(place, [*names.violations(metadata), *_violations(place.kind, made)])
        self._record(None, made, manager, "")
        return self._store.create(place.key, made)

    def update(self, place: Place, content: Object, manager: str) -> Object:
        """The whole object anew, or its status alone; what the writer saw must still be there."""
        before = self._store.take(place.key)
        metadata = _metadata(content)
        expected = str(metadata.get("resourceVersion") or "")
        _check_place(place, content, metadata)
        if metadata.get("uid") and metadata["uid"] != before["metadata"]["uid"]:
            raise Refused(409, "Conflict", _uid_text(place, str(metadata["uid"]), before))
        return self._store.update(place.key, self._merged(place, before, content, manager), expected)

    def change(self, place: Place, change: Callable[[Object], Object], manager: str) -> Object:
        """What `change` makes of the object that is there now: how patches are written."""
        before = self._store.take(place.key)
        after = change(before)
        if not isinstance(after, dict) or not isinstance(after.get("metadata"), dict):
            raise bad_request("the patch leaves no object")
        if after["metadata"].get("name") != place.name:
            raise bad_request(f"the name of the object ({after['metadata'].get('name')}) may not be changed")
        version = str(after["metadata"].get("resourceVersion") or "")
        expected = version if version != before["metadata"]["resourceVersion"] else ""
        return self._store.update(place.key, self._merged(place, before, after, manager), expected)

    def delete(self, place: Place, deletion: Deletion) -> tuple[Object, bool]:
        """The object, and whether it is gone; a pod on a node goes when its node has ended it."""
        before = self._store.take(place.key)
        _check_preconditions(place, before, deletion)
        if place.kind is NAMESPACES:
            self._empty(place.name)
        grace = _grace(place, before, deletion)
        if not grace:
            return self._store.delete(place.key), True
        metadata = before["metadata"]
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
        if before["spec"].get("nodeName"):
            text = f'pod {place.name} is already assigned to node "{before["spec"]["nodeName"]}"'
            raise Refused(409, "Conflict", f'Operation cannot be fulfilled on pods/binding "{place.name}": {text}')
        scheduled = {
            "type": "PodScheduled",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": clock.stamp(self._now()),
        }
        status = {**(before.get("status") or {}), "conditions": [scheduled]}
        return self._store.update(place.key, {**before, "spec": {**before["spec"], "nodeName": node}, "status": status})

    def _merged(self, place: Place, before: Object, content: Object, manager: str) -> Object:
        """Only the part that is being written is taken from `content`."""
        if place.subresource == "status":
            after = {**before, "status": content.get("status") or {}}
        else:
            status = {"status": before["status"]} if "status" in before else {}
            own = content if place.kind.status else {**before, **content}
            after = {**own, **_type(place.kind), "metadata": _kept(before["metadata"], _metadata(content)), **status}
            if place.kind is PODS:
                _raise(place, list(pods.violations_of_change(before, after)))
            _raise(place, [*names.violations(after["metadata"]), *_violations(place.kind, after)])
        if place.kind is NODES:
            _raise(place, list(nodes.violations(after)))
        after["metadata"] = dict(after["metadata"])
        self._record(before, after, manager, place.subresource)
        return after

    def _record(self, before: Object | None, after: Object, manager: str, subresource: str) -> None:
        entries = managed.recorded(before, after, manager, subresource, clock.stamp(self._now()))
        after["metadata"]["managedFields"] = entries

    def _check_namespace(self, place: Place) -> None:
        if self._store.get(Key(NAMESPACES.qualified, "", place.namespace)) is None:
            text = f'namespaces "{place.namespace}" not found'
            raise Refused(404, "NotFound", text, {"name": place.namespace, "kind": "namespaces"})

    def _empty(self, namespace: str) -> None:
        for kind in ("configmaps", "events", "leases.coordination.k8s.io", "pods", "serviceaccounts"):
            for found in self._store.every(kind, namespace):
                self._store.delete(Key(kind, namespace, found["metadata"]["name"]))


def _metadata(content: Object) -> Object:
    metadata = content.get("metadata")
    if not isinstance(metadata, dict):
        raise bad_request("metadata is an object")
    return dict(metadata)


def _type(kind: Kind) -> Object:
    return {"kind": kind.name, "apiVersion": kind.api_version}


def _check_place(place: Place, content: Object, metadata: Object) -> None:
    given = (content.get("kind", place.kind.name), content.get("apiVersion", place.kind.api_version))
    if given != (place.kind.name, place.kind.api_version):
        raise bad_request(
            f"the API version in the data ({given[1]}, Kind={given[0]}) does not match "
            f"the expected API version ({place.kind.api_version}, Kind={place.kind.name})"
        )
    if place.name and metadata.get("name") != place.name:
        raise bad_request(
            f"the name of the object ({metadata.get('name')}) does not match the name on the URL ({place.name})"
        )
    if place.kind.namespaced and metadata.get("namespace", place.namespace) != place.namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")


def _defaulted(kind: Kind, content: Object) -> Object:
    if kind is PODS:
        if not isinstance(content.get("spec"), dict):
            content = {**content, "spec": {}}
        return pods.defaulted(content)
    if kind is NAMESPACES:
        return {**content, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
    return content


def _violations(kind: Kind, content: Object) -> Iterator[Cause]:
    if kind is PODS:
        yield from pods.violations(content)


def _raise(place: Place, causes: list[Cause]) -> None:
    if causes:
        raise invalid(place.kind.name, place.name, causes)


def _kept(before: Object, given: Object) -> Object:
    """What nobody can change stays."""
    fixed = ("uid", "creationTimestamp", "generation", "namespace", "deletionTimestamp", "deletionGracePeriodSeconds")
    return {**given, **{name: before[name] for name in fixed if name in before}}


def _grace(place: Place, before: Object, deletion: Deletion) -> int:
    """Seconds that a pod has to end; what is on no node, or is over, has nothing to end."""
    if place.kind is not PODS or not before["spec"].get("nodeName"):
        return 0
    if before.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    given = before["spec"].get("terminationGracePeriodSeconds", 30) if deletion.grace is None else deletion.grace
    return max(0, int(given))


def _check_preconditions(place: Place, before: Object, deletion: Deletion) -> None:
    metadata = before["metadata"]
    if deletion.uid and deletion.uid != metadata["uid"]:
        raise Refused(409, "Conflict", _uid_text(place, deletion.uid, before))
    if deletion.version and deletion.version != metadata["resourceVersion"]:
        text = f"the ResourceVersion in the precondition ({deletion.version}) does not match the ResourceVersion in "
        text += f"record ({metadata['resourceVersion']}). The object might have been modified"
        raise Refused(409, "Conflict", text)


def _uid_text(place: Place, uid: str, before: Object) -> str:
    return (
        f'Operation cannot be fulfilled on {place.kind.qualified} "{place.name}": Precondition failed: '
        f"UID in precondition: {uid}, UID in object meta: {before['metadata']['uid']}"
    )
