"""What holds for objects that are written: where they belong, what is filled in, what stays, what is refused. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from plugwright.cluster.api import names, nodes, pods
from plugwright.cluster.api.errors import Cause, Refused, bad_request, invalid
from plugwright.cluster.api.kinds import NAMESPACES, NODES, PODS, Kind
from plugwright.cluster.store import Key, Object

__all__ = [
    "Deletion",
    "Place",
    "check",
    "check_place",
    "check_preconditions",
    "check_preconditions_of_update",
    "completed",
    "defaulted",
    "defaulted_status",
    "grace",
    "kept",
    "metadata",
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


def metadata(content: Object) -> Object:
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
        return pods.defaulted({**content, "spec": content.get("spec") or {}})
    if kind is NAMESPACES:
        named = {"kubernetes.io/metadata.name": content["metadata"].get("name", "")}
        labels = {**(content["metadata"].get("labels") or {}), **named}
        content["metadata"]["labels"] = dict(sorted(labels.items()))
        return {**content, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
    if kind is NODES:
        return nodes.defaulted({"spec": {}, **content})
    return content


def defaulted_status(kind: Kind, content: Object) -> Object:
    return nodes.defaulted(content) if kind is NODES else dict(content)


def completed(kind: Kind, before: Object, content: Object) -> Object:
    """An object that replaces another: with its status, and a generation that counts what is asked of it."""
    status = {"status": before["status"]} if kind.status and "status" in before else {}
    if kind is PODS:
        content = pods.defaulted({**content, "spec": content.get("spec") or {}})
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
        yield from names.violations(place.kind, after["metadata"])
        if place.kind is PODS:
            yield from pods.violations(after)
            if before is not None:
                yield from pods.violations_of_change(before, after)
    if place.kind is NODES:
        yield from nodes.violations(after)


def grace(place: Place, before: Object, deletion: Deletion) -> int:
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
