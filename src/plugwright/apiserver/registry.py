"""Writes of API objects: create, update, patch, bind to a node, delete.

Every write ends here, whether it comes by HTTP, from the scheduler or from a node. The kind defines specific behaviour
(defaults, validation, grace periods); the store handles conflicts and history.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

from plugwright.apiserver import clock, managed_fields, pod_fields, server_side_apply, validation
from plugwright.apiserver.clock import Clock
from plugwright.apiserver.errors import bad_request, invalid
from plugwright.apiserver.kinds import NAMESPACES, Kind
from plugwright.apiserver.store import DryRun, Object, ObjectKey, Store
from plugwright.apiserver.validation import FieldError
from plugwright.errors import StatusError, VersionConflict

__all__ = ["DeleteOptions", "ObjectWriter", "ResourcePath", "Writer", "check_identity"]

_SYSTEM_METADATA = (
    "uid", "creationTimestamp", "generation", "namespace", "deletionTimestamp", "deletionGracePeriodSeconds",
)  # fmt: skip
_PROPAGATION_FINALIZERS = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}
_NAME_ATTEMPTS = 8  # attempts to generate an unused name


@dataclass(frozen=True, slots=True)
class ResourcePath:
    """One object or, without a name, a collection; `subresource` is the part of the object, empty for all of it."""

    kind: Kind
    namespace: str
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(self.kind.storage.qualified, self.namespace, self.name)

    @property
    def stored(self) -> "ResourcePath":
        """The same object under the kind that stores it."""
        return replace(self, kind=self.kind.storage)


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """`grace` is in seconds, None for the object's own; `uid` and `version` are preconditions unless empty.

    `propagation` is the treatment of dependents: `Background`, `Foreground`, `Orphan`, or empty for the kind's default.
    """

    grace: int | None = None
    uid: str = ""
    version: str = ""
    propagation: str = ""


class ObjectWriter(Protocol):
    """The writes of a node, immediately visible to its reader."""

    def create(self, path: ResourcePath, content: Object, manager: str) -> Object: ...

    def change(self, path: ResourcePath, change: Callable[[Object], Object], manager: str) -> Object: ...

    def delete(self, path: ResourcePath, options: DeleteOptions) -> tuple[Object, bool]: ...


class Writer:
    def __init__(self, store: Store | DryRun, now: Clock = clock.now) -> None:
        self._store = store
        self._now = now

    def create(self, path: ResourcePath, content: Object, manager: str, applied: Object | None = None) -> Object:
        """Creates an object; if server-side apply creates it from `applied`, the manager owns only that part."""
        kind, metadata = path.kind, _metadata(content)
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = self._unused_name(path, str(metadata["generateName"]))
        path = ResourcePath(kind, path.namespace, str(metadata.get("name") or ""))
        check_identity(path, content, metadata)
        if metadata.get("resourceVersion"):
            raise StatusError(500, "", "resourceVersion should not be set on objects to be created")
        for name in ("deletionTimestamp", "deletionGracePeriodSeconds"):
            metadata.pop(name, None)
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": clock.timestamp(self._now())}
        if kind.namespaced:
            metadata["namespace"] = path.namespace
            self._check_namespace(path)
        else:
            metadata.pop("namespace", None)
        created = kind.prepare_for_create({**content, **_type_meta(kind), "metadata": metadata})
        if refusal := kind.admit(created, self._store):
            raise _forbidden(path, refusal)
        _validate(path, None, created, kind.validate_among(created, self._store))
        if applied is None:
            entries = self._entries(path, None, kind.without_admitted(created, content), manager)
        else:
            author, new = self._author(path, manager, managed_fields.APPLY), {"apiVersion": kind.api_version}
            configuration = kind.without_status(applied)
            entries = server_side_apply.apply(kind.object_type, new, configuration, author, force=False).entries
        created["metadata"]["managedFields"] = entries
        stored = self._store.create(path.key, created)
        if self._store.get(path.key) is not None:  # not a dry run
            self._create_default_objects(path)
        return stored

    def _create_default_objects(self, path: ResourcePath) -> None:
        """Creates default objects, as the controller manager does in every new namespace."""
        for kind, name in path.kind.default_objects:
            default = ResourcePath(kind, path.name, name)
            if self._store.get(default.key) is None:
                self.create(default, {"metadata": {"name": name}}, "kube-controller-manager")

    def update(self, path: ResourcePath, content: Object, manager: str) -> Object:
        """Replaces the whole object, or its status, unless it has changed since the version that the writer read."""
        before = self._store.require(path.key)
        metadata = _metadata(content)
        check_identity(path, content, metadata)
        _check_uid(path, before, str(metadata.get("uid") or ""))
        expected = str(metadata.get("resourceVersion") or "")
        if expected not in ("", before["metadata"]["resourceVersion"]):
            raise VersionConflict(path.key.kind, path.key.name)
        if not expected and not path.kind.allow_unconditional_update:
            error = validation.invalid("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid(path.kind, path.name, [error])
        return self._update(path, self._prepared(path, before, content, manager), expected)

    def change(self, path: ResourcePath, change: Callable[[Object], Object], manager: str) -> Object:
        """Stores the result of `change` on the stored object, as for a patch."""
        before = self._store.require(path.key)
        after = change(before)
        if not isinstance(after, dict) or not isinstance(after.get("metadata"), dict):
            raise bad_request("a patched object must be an object with metadata")
        check_identity(path, after, after["metadata"])
        uid = str(after["metadata"].get("uid") or before["metadata"]["uid"])
        if uid != before["metadata"]["uid"]:
            raise invalid(path.kind, path.name, [validation.invalid("metadata.uid", uid, "field is immutable")])
        version = str(after["metadata"].get("resourceVersion") or "")
        expected = version if version != before["metadata"]["resourceVersion"] else ""
        return self._update(path, self._prepared(path, before, after, manager), expected)

    def apply(self, path: ResourcePath, applied: Object, manager: str, force: bool) -> tuple[Object, bool]:
        """Merges an object that a manager specifies partially; also returns whether it has been created."""
        check_identity(path, applied, _metadata(applied))
        if not path.subresource and self._store.get(path.key) is None:
            return self.create(replace(path, name=""), applied, manager, applied), True
        before = self._store.require(path.key)
        _check_uid(path, before, str(_metadata(applied).get("uid") or ""))
        expected = str(_metadata(applied).get("resourceVersion") or "")
        config = applied if path.subresource else path.kind.without_status(applied)
        author = self._author(path, manager, managed_fields.APPLY)
        result = server_side_apply.apply(path.kind.object_type, before, config, author, force)
        after = self._prepared(path, before, result.content, None)
        after["metadata"]["managedFields"] = result.entries
        return self._update(path, after, expected), False

    def delete(self, path: ResourcePath, options: DeleteOptions) -> tuple[Object, bool]:
        """Deletes an object; returns it, and whether it is removed: a pod on a node stays until the node ends it."""
        before = self._store.require(path.key)
        _check_deletable(path, before, options)
        grace = path.kind.grace_period(before, options.grace)
        metadata = {**before["metadata"], "finalizers": _finalizers(before, options.propagation)}
        if not grace and not metadata["finalizers"] and not _has_contents(path, before):
            return self._store.delete(path.key), True
        known = before["metadata"].get("deletionGracePeriodSeconds", grace)
        if not metadata.get("deletionTimestamp") and metadata.get("generation"):
            metadata["generation"] += 1
        if not metadata.get("deletionTimestamp") or grace < known:
            metadata |= {
                "deletionTimestamp": clock.timestamp(self._now() + timedelta(seconds=grace)),
                "deletionGracePeriodSeconds": grace,
            }
        after = {**before, "metadata": {name: value for name, value in metadata.items() if value != []}}
        if path.kind.deletes_contents:
            after["metadata"].pop("deletionGracePeriodSeconds", None)
            after["status"] = {**(before.get("status") or {}), "phase": "Terminating"}
        return self._store.update(path.key, after), False

    def finalize(self, path: ResourcePath) -> None:
        """Removes a namespace whose contents are gone, unless it has finalizers of its own."""
        before = self._store.require(path.key)
        self._update(path, {**before, "spec": {**(before.get("spec") or {}), "finalizers": []}}, "")

    def bind(self, path: ResourcePath, node: str) -> Object:
        """Assigns a pod to a node, which is possible only once."""
        before = self._store.require(path.key)
        spec, metadata, status = before["spec"], before["metadata"], before.get("status") or {}
        if metadata.get("deletionTimestamp"):
            raise _binding_conflict(path, f"pod {path.name} is being deleted, cannot be assigned to a host")
        if spec.get("nodeName"):
            raise _binding_conflict(path, f'pod {path.name} is already assigned to node "{spec["nodeName"]}"')
        if spec.get("schedulingGates"):
            raise _binding_conflict(path, f"pod {path.name} has non-empty .spec.schedulingGates")
        if problem := pod_fields.not_emulated(spec):
            raise _forbidden(path, problem)
        scheduled = {
            "type": "PodScheduled",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": clock.timestamp(self._now()),
            "observedGeneration": metadata.get("generation", 1),
        }
        others = [condition for condition in status.get("conditions") or [] if condition["type"] != scheduled["type"]]
        return self._store.update(
            path.key,
            {**before, "spec": {**spec, "nodeName": node}, "status": {**status, "conditions": [*others, scheduled]}},
        )

    def _prepared(self, path: ResourcePath, before: Object, content: Object, manager: str | None) -> Object:
        """The object to store: only the part that `path` names is taken from `content`; None records no manager."""
        kind = path.kind
        if path.subresource == "status":
            after = kind.prepare_status({**before, "status": content.get("status") or {}})
            after["metadata"] = dict(before["metadata"])
        else:
            system = {name: before["metadata"][name] for name in _SYSTEM_METADATA if name in before["metadata"]}
            metadata = {**_metadata(content), **system}
            after = kind.prepare_for_update(before, {**content, **_type_meta(kind), "metadata": metadata})
            if kind.has_status:
                status = {"status": before["status"]} if "status" in before else {}
                after = {**{name: value for name, value in after.items() if name != "status"}, **status}
        _validate(path, before, after)
        if manager is not None:
            after["metadata"]["managedFields"] = self._entries(path, before, after, manager)
        return after

    def _update(self, path: ResourcePath, after: Object, expected: str) -> Object:
        """Updates an object; one being deleted is removed with its last finalizer."""
        stored = self._store.update(path.key, after, expected)
        metadata = stored["metadata"]
        has_finalizers = metadata.get("finalizers") or _has_contents(path, stored)
        is_waiting = has_finalizers or metadata.get("deletionGracePeriodSeconds")
        if metadata.get("deletionTimestamp") and not is_waiting:
            self._store.delete(path.key)
        return stored

    def _entries(self, path: ResourcePath, before: Object | None, after: Object, manager: str) -> list[Object]:
        kind, author = path.kind, self._author(path, manager, managed_fields.UPDATE)
        if not path.subresource:
            before, after = kind.without_status(before) if before else None, kind.without_status(after)
        return managed_fields.after_update(kind.object_type, before, after, author)

    def _author(self, path: ResourcePath, manager: str, operation: str) -> managed_fields.Author:
        return managed_fields.Author(manager, path.subresource, clock.timestamp(self._now()), operation)

    def _unused_name(self, path: ResourcePath, prefix: str) -> str:
        for _ in range(_NAME_ATTEMPTS):
            name = validation.generate_name(prefix)
            if self._store.get(replace(path, name=name).key) is None:
                break
        return name

    def _check_namespace(self, path: ResourcePath) -> None:
        namespace = self._store.get(ResourcePath(NAMESPACES, "", path.namespace).key)
        if namespace is None:
            text = f'namespaces "{path.namespace}" not found'
            raise StatusError(404, "NotFound", text, {"name": path.namespace, "kind": "namespaces"})
        if namespace["metadata"].get("deletionTimestamp"):
            text = f"unable to create new content in namespace {path.namespace} because it is being terminated"
            error = _forbidden(path, text)
            cause = {"reason": "NamespaceTerminating", "field": "metadata.namespace"}
            error.details["causes"] = [{**cause, "message": f"namespace {path.namespace} is being terminated"}]
            raise error


def _type_meta(kind: Kind) -> Object:
    return {"kind": kind.name, "apiVersion": kind.api_version}


def _metadata(content: Object) -> Object:
    """A copy without empty lists and maps, which mean the same as none."""
    metadata = content.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise bad_request("metadata must be an object")
    return {name: value for name, value in metadata.items() if value not in ({}, [])}


def check_identity(path: ResourcePath, content: Object, metadata: Object) -> None:
    """Checks that type, name and namespace of the object match the path."""
    kind = path.kind
    api_version, kind_name = content.get("apiVersion") or kind.api_version, content.get("kind") or kind.name
    if (api_version, kind_name) != (kind.api_version, kind.name):
        version = str(api_version).rpartition("/")[2]
        raise bad_request(
            f'{kind_name} in version "{version}" cannot be handled as a {kind.name}: '
            f"the API version in the data ({api_version}, Kind={kind_name}) does not match "
            f"the expected API version ({kind.api_version}, Kind={kind.name})"
        )
    if path.name and metadata.get("name") != path.name:
        raise bad_request(
            f"the name of the object ({metadata.get('name', '')}) does not match the name on the URL ({path.name})"
        )
    if kind.namespaced and metadata.get("namespace", path.namespace) != path.namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")


def _validate(path: ResourcePath, before: Object | None, after: Object, further: Iterable[FieldError] = ()) -> None:
    errors = [*further, *_field_errors(path, before, after)]
    if errors:
        raise invalid(path.kind, path.name, errors)


def _field_errors(path: ResourcePath, before: Object | None, after: Object) -> Iterator[FieldError]:
    kind = path.kind
    if path.subresource == "status":
        yield from kind.validate_status(after)
        return
    metadata = after["metadata"]
    if before is None or metadata != before["metadata"]:
        yield from validation.validate_metadata(metadata, kind.name_errors)
    yield from kind.validate(after)
    if before is None:
        yield from kind.validate_create(after)
    else:
        yield from validation.validate_metadata_update(before["metadata"], metadata)
        yield from kind.validate_update(before, after)


def _check_deletable(path: ResourcePath, before: Object, options: DeleteOptions) -> None:
    if path.name in path.kind.protected_names:
        raise _forbidden(path, path.kind.protection)
    _check_uid(path, before, options.uid)
    version = before["metadata"]["resourceVersion"]
    if options.version and options.version != version:
        text = f"Precondition failed: ResourceVersion in precondition: {options.version}, "
        raise _conflict(path, f"{text}ResourceVersion in object meta: {version}")


def _check_uid(path: ResourcePath, before: Object, expected: str) -> None:
    uid = before["metadata"]["uid"]
    if expected and expected != uid:
        raise _conflict(path, f"Precondition failed: UID in precondition: {expected}, UID in object meta: {uid}")


def _finalizers(before: Object, propagation: str) -> list[str]:
    """The object's finalizers, and the garbage collector's for the treatment of its dependents."""
    finalizers = before["metadata"].get("finalizers") or []
    wanted = _PROPAGATION_FINALIZERS.get(propagation)
    if propagation:
        finalizers = [name for name in finalizers if name not in _PROPAGATION_FINALIZERS.values() or name == wanted]
    return [*finalizers, *([wanted] if wanted and wanted not in finalizers else [])]


def _has_contents(path: ResourcePath, stored: Object) -> bool:
    return path.kind.deletes_contents and bool((stored.get("spec") or {}).get("finalizers"))


def _forbidden(path: ResourcePath, reason: str) -> StatusError:
    text = f'{path.kind.qualified} "{path.name}" is forbidden: {reason}'
    group = {"group": path.kind.group} if path.kind.group else {}
    return StatusError(403, "Forbidden", text, {"name": path.name, **group, "kind": path.kind.plural})


def _conflict(path: ResourcePath, text: str) -> StatusError:
    message = f'Operation cannot be fulfilled on {path.kind.qualified} "{path.name}": {text}'
    return StatusError(409, "Conflict", message, {"name": path.name, "kind": path.kind.plural})


def _binding_conflict(path: ResourcePath, text: str) -> StatusError:
    message = f'Operation cannot be fulfilled on pods/binding "{path.name}": {text}'
    return StatusError(409, "Conflict", message, {"name": path.name, "kind": "pods/binding"})
