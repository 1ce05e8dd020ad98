"""Server-side apply: merges an object that a manager specifies partially into the stored one.

Pure. Fields that the manager applied before and omits now are removed, unless another manager owns them; a value owned
by another manager is a conflict, unless it is forced. `field_sets` finds the fields, `managed_fields` their owners.
"""

import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from plugwright.apiserver import field_sets, managed_fields
from plugwright.apiserver.errors import bad_request
from plugwright.apiserver.field_sets import FieldsV1
from plugwright.apiserver.kinds import Kind
from plugwright.apiserver.kubernetes_fields import Field, ObjectType, inner_type
from plugwright.apiserver.managed_fields import UPDATE, Author
from plugwright.apiserver.store import Object
from plugwright.errors import StatusError

__all__ = ["Applied", "apply", "check_configuration"]

_KUBECTL, _LAST_APPLIED = "kubectl", "kubectl.kubernetes.io/last-applied-configuration"
_NAME: FieldsV1 = {"f:metadata": {"f:name": {}}}  # every applied object has it


@dataclass(frozen=True, slots=True)
class Applied:
    """The merged object, and the entries of its managed fields."""

    content: Object
    entries: list[Object]


def check_configuration(kind: Kind, content: Object) -> None:
    """Raises for objects that cannot be applied: with unknown fields, or items of a list twice."""
    metadata = content.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise bad_request("metadata must be an object")
    if metadata.get("managedFields") is not None:
        raise bad_request("metadata.managedFields must be nil")
    error = next(_errors(Field(0, "", kind.object_type.name), content, ""), None)
    if error:
        named = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
        described = f"{named}; {kind.group}/{kind.version}, Kind={kind.name}"
        raise StatusError(500, "", f"failed to create typed patch object ({described}): {error}")


def _errors(field: Field, value: object, path: str) -> Iterator[str]:
    if not field.is_message or field.is_map:
        return
    if isinstance(value, list):
        if field_sets.is_granular(field, value):
            yield from _duplicates(field, value, path)
        item_field = Field(0, "", field.type)
        for index, item in enumerate(value):
            yield from _errors(item_field, item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for name, inner in value.items():
            member = inner_type(field).member(name)
            if member:
                yield from _errors(member, inner, f"{path}.{name}")
            elif path or name not in ("apiVersion", "kind"):
                yield f"{path}.{name}: field not declared in schema"


def _duplicates(field: Field, items: Sequence[object], path: str) -> Iterator[str]:
    names = [field_sets.item_name(field, item) for item in items]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            (shown,) = field_sets.paths({name: {}})
            yield f"{path}: duplicate entries for key {shown}"


def apply(of: ObjectType, live: Object, applied: Object, author: Author, force: bool) -> Applied:
    """Applies; raises a conflict with the names of the fields and of their managers."""
    root = Field(0, "", of.name)
    ours = managed_fields.ownable(applied, author)
    fields = field_sets.present(of, {name: value for name, value in ours.items() if name != "metadata" or value})
    entries = managed_fields.entries_of(live)
    if not entries and live.get("metadata"):
        entries = managed_fields.before_first_apply(of, live, author.time)
    others = [entry for entry in entries if not author.wrote(entry)]
    last = next((entry["fieldsV1"] for entry in entries if author.wrote(entry)), None)
    merged: Object = _merged(root, live, ours)  # type: ignore[assignment]
    if last:
        managed = reduce(field_sets.union, [fields, _NAME, *(entry["fieldsV1"] for entry in others)])
        merged = _pruned(root, merged, last, managed)
    before, after = managed_fields.ownable(live, author), managed_fields.ownable(merged, author)
    changed, gone = field_sets.changed(of, before, after)
    if not force:
        _check_conflicts(others, _without(changed, _client_side_applied(of, live, author)) or {})
    kept = [
        {**entry, "fieldsV1": rest}
        for entry in others
        if (rest := _without(_without(entry["fieldsV1"], changed), gone)) is not None
    ]
    if not changed and not gone and fields == last:  # nothing has changed, so the entry keeps its time
        return Applied(merged, entries)
    return Applied(merged, managed_fields.after_apply(kept, live, author, fields))


def _without(fields: FieldsV1 | None, others: FieldsV1) -> FieldsV1 | None:
    return field_sets.difference(fields, others) if fields is not None and others else fields


def _client_side_applied(of: ObjectType, live: Object, author: Author) -> FieldsV1:
    """The fields of an earlier `kubectl apply`, with which a switch to server-side apply does not conflict."""
    text = (live.get("metadata") or {}).get("annotations", {}).get(_LAST_APPLIED)
    if author.manager != _KUBECTL or not text:
        return {"f:": {}}
    try:
        return field_sets.present(of, managed_fields.ownable(json.loads(text), author))
    except (ValueError, AttributeError, TypeError):  # clients write it
        return {"f:": {}}


def _check_conflicts(others: Sequence[Object], changed: FieldsV1) -> None:
    conflicts = []
    for entry in sorted(others, key=_described):
        both = field_sets.intersection(entry["fieldsV1"], changed) if changed else None
        conflicts += [(_described(entry), path) for path in field_sets.paths(both)] if both else []
    if not conflicts:
        return
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {manager}", "field": path}
        for manager, path in conflicts
    ]
    raise StatusError(409, "Conflict", _conflict_text(conflicts), {"causes": causes})


def _conflict_text(conflicts: Sequence[tuple[str, str]]) -> str:
    if len(conflicts) == 1:
        ((manager, path),) = conflicts
        return f"Apply failed with 1 conflict: conflict with {manager}: {path}"
    lines = []
    for manager in dict.fromkeys(manager for manager, _ in conflicts):
        lines += [f"conflicts with {manager}:", *(f"- {path}" for other, path in conflicts if other == manager)]
    return f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)


def _described(entry: Object) -> str:
    text = f'"{entry["manager"]}"'
    if entry.get("subresource"):
        text += f' with subresource "{entry["subresource"]}"'
    if entry.get("operation") == UPDATE:
        text += f" using {entry.get('apiVersion')}"
    return text


def _merged(field: Field | None, live: object, applied: object) -> object:
    """The live value, overlaid by the applied one."""
    if field is None or not (field_sets.is_granular(field, live) and field_sets.is_granular(field, applied)):
        return applied
    if isinstance(live, dict) and isinstance(applied, dict):
        inner = None if field.is_map else inner_type(field)
        item_field = Field(0, "", field.type) if field.is_map and field.is_message else None
        merged = dict(live)
        for name, value in applied.items():
            member = inner.member(name) if inner else item_field
            merged[name] = _merged(member, live[name], value) if name in live else value
        return merged
    assert isinstance(live, list)
    assert isinstance(applied, list)
    return _merged_items(field, live, applied)


def _merged_items(field: Field, live: list[object], applied: list[object]) -> list[object]:
    """Items in the applied order; items only in the live list keep their position among the others."""
    item_field = Field(0, "", field.type) if field.is_message else None
    old = {field_sets.item_name(field, item): item for item in live}
    new = {field_sets.item_name(field, item): item for item in applied}
    left, right, merged = deque(old), deque(new), list[object]()
    shared = deque(name for name in new if name in old)
    while left or right:
        if left and left[0] not in new:
            merged.append(old[left.popleft()])
            continue
        if left and (not shared or left[0] != shared[0]):  # its turn comes with the applied one
            left.popleft()
            continue
        name = right.popleft()
        merged.append(_merged(item_field, old[name], new[name]) if name in old else new[name])
        if shared and shared[0] == name:
            shared.popleft()
    return merged


def _pruned(root: Field, merged: Object, last: FieldsV1, managed: FieldsV1) -> Object:
    """Without fields applied last that have no owner any more; fields that never had an owner go with their parent."""
    everything = _named(root, field_sets.present(inner_type(root), merged))
    without_last = _removed(root, merged, _named(root, last))
    owned = field_sets.union(_present_in(root, without_last), _named(root, managed))
    without_unowned = _removed(root, merged, field_sets.difference(everything, owned))
    candidates = field_sets.difference(everything, _present_in(root, without_unowned))
    both = field_sets.intersection(candidates, _named(root, last)) if candidates is not None else None
    return _removed(root, merged, both)  # type: ignore[return-value]


def _present_in(root: Field, content: object) -> FieldsV1:
    return _named(root, field_sets.present(inner_type(root), content if isinstance(content, dict) else {}))


def _named(field: Field | None, fields: FieldsV1) -> FieldsV1:
    """The set with every member of an object that contains something in the set."""
    inner = inner_type(field) if field and field.is_message else None
    named = FieldsV1()
    for name, children in fields.items():
        if name == ".":
            named[name] = children
            continue
        member, is_field = _step_into(field, inner, name)
        within = _named(member, children)
        named[name] = {".": {}, **within} if is_field and within else within
    return named


def _step_into(field: Field | None, inner: ObjectType | None, name: str) -> tuple[Field | None, bool]:
    """The field of a step in a set, and whether it is a member of an object, not of a map or list."""
    if field is None:
        return None, False
    if name.startswith("f:") and inner and not field.is_map and not field.is_list:
        member = inner.member(name[2:])
        return member, member is not None
    return Field(0, "", field.type) if field.is_message else None, False


def _removed(field: Field | None, value: object, fields: FieldsV1 | None) -> object:
    """The value without the fields in the set; None if nothing is left."""
    if field is None or not fields or not field_sets.is_granular(field, value):
        return value
    inner = inner_type(field) if field.is_message else None
    if isinstance(value, list):
        names = ((field_sets.item_name(field, item), item) for item in value)
        kept = [(name, item) for name, item in names if name not in fields or not field_sets.is_member(fields[name])]
        return [_removed(_step_into(field, inner, name)[0], item, fields.get(name)) for name, item in kept] or None
    assert isinstance(value, dict)
    remaining = {}
    for name, member in value.items():
        step = f"f:{name}"
        if step in fields and field_sets.is_member(fields[step]):
            continue
        remaining[name] = _removed(_step_into(field, inner, step)[0], member, fields.get(step))
    return {name: member for name, member in remaining.items() if member is not None} or None
