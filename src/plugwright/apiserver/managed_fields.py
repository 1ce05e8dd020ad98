"""`managedFields`: which manager set which field, after an update and after an apply.

Pure. By an update a manager owns the fields whose value it has changed, and they belong to nobody else; by an apply
those that the applied object names. What server-side apply makes of the object is `server_side_apply`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from plugwright.apiserver import field_sets
from plugwright.apiserver.field_sets import FieldsV1, is_tree
from plugwright.apiserver.kubernetes_fields import ObjectType, inner_type
from plugwright.apiserver.store import Object

__all__ = ["APPLY", "UPDATE", "Author", "after_apply", "after_update", "before_first_apply", "entries_of", "ownable"]

APPLY, UPDATE = "Apply", "Update"
_ZEROS = {"bool": False, "int32": 0, "int64": 0, "string": ""}
_SYSTEM_METADATA = frozenset(
    {"creationTimestamp", "generation", "managedFields", "name", "namespace", "resourceVersion", "selfLink", "uid"}
)


@dataclass(frozen=True, slots=True)
class Author:
    """The manager that writes, the subresource it writes to, and the time."""

    manager: str
    subresource: str
    time: str
    operation: str = UPDATE

    def wrote(self, entry: Object) -> bool:
        return (entry.get("manager"), entry.get("subresource", ""), entry.get("operation")) == (
            self.manager,
            self.subresource,
            self.operation,
        )

    def entry(self, api_version: str, fields: FieldsV1) -> Object:
        entry = {
            "manager": self.manager,
            "operation": self.operation,
            "apiVersion": api_version,
            "time": self.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": fields,
        }
        return {**entry, "subresource": self.subresource} if self.subresource else entry


def after_update(of: ObjectType, before: Object | None, after: Object, author: Author) -> list[Object]:
    """The entries after a write: the fields that it changes belong to its author alone."""
    entries = _entries_of_update(before or {}, after)
    old = _zero(of) if before is None else before
    changed, gone = field_sets.changed(of, ownable(old, author), ownable(after, author))
    if not changed and not gone:
        return entries
    others, own = [], FieldsV1()
    for entry in entries:
        fields: FieldsV1 | None = field_sets.difference(entry["fieldsV1"], gone) if gone else entry["fieldsV1"]
        if author.wrote(entry):
            own = fields or {}
        elif fields and (rest := field_sets.difference(fields, changed) if changed else fields):
            others.append({**entry, "fieldsV1": rest})
    if changed and not (own and field_sets.contains(own, changed)):
        own = field_sets.union(own, changed) if own else changed
    return _in_order([*others, *([author.entry(str(after.get("apiVersion")), own)] if own else [])])


def before_first_apply(of: ObjectType, live: Object, time: str) -> list[Object]:
    """The entries of an object without any: who applies to it first shares its fields with nobody in particular."""
    return after_update(of, None, live, Author("before-first-apply", "", time))


def after_apply(entries: Sequence[Object], applied: Object, author: Author, fields: FieldsV1) -> list[Object]:
    """`entries` are those of the others; `fields` are those of the applied object."""
    own = [author.entry(str(applied.get("apiVersion")), fields)] if fields else []
    return _in_order([*entries, *own])


def _in_order(entries: Sequence[Object]) -> list[Object]:
    return sorted(
        entries, key=lambda entry: tuple(str(entry.get(name, "")) for name in ("operation", "time", "manager"))
    )


def entries_of(content: Object) -> list[Object]:
    return (content.get("metadata") or {}).get("managedFields") or []


def _entries_of_update(before: Object, after: Object) -> list[Object]:
    """A client may send other entries, as kubectl does when it goes from one kind of apply to the other."""
    stored, sent = entries_of(before), entries_of(after)
    if not sent or sent == stored:
        return stored
    if sent == [{}]:  # so all are forgotten
        return []
    return sent if all(map(_is_entry, sent)) else stored


def _is_entry(entry: Object) -> bool:
    return bool(entry.get("manager")) and entry.get("operation") in (APPLY, UPDATE) and is_tree(entry.get("fieldsV1"))


def ownable(content: Object, author: Author) -> Object:
    """What managers own: not what the server sets, and with a status either it or the rest."""
    if author.subresource == "status":
        return {"status": content["status"]} if "status" in content else {}
    metadata = {name: value for name, value in (content.get("metadata") or {}).items() if name not in _SYSTEM_METADATA}
    rest = {name: value for name, value in content.items() if name not in ("apiVersion", "kind", "metadata")}
    return {**rest, "metadata": metadata}


def _zero(of: ObjectType) -> Object:
    """What Go writes of a new object: members that it never leaves out are there before anybody sets them."""
    zeros: Object = {}
    for field in of.fields:
        if field.is_always_there and field.is_message and not field.is_list and not field.is_map:
            zeros[field.name] = _zero(inner_type(field))
        elif field.is_always_there:
            is_single = not field.is_list and not field.is_map
            zeros[field.name] = _ZEROS.get(field.type) if is_single else None
    return zeros
