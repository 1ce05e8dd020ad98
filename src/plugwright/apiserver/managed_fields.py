"""`managedFields`: which manager set which field, after an update and after an apply.

Pure. By an update a manager becomes the only owner of the fields whose value it has changed; by an apply it owns those
that the applied object names. `server_side_apply` computes the object.
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
    """The manager that writes, the subresource to which it writes, and the time."""

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
    """The entries after a write, whose author becomes the only owner of the changed fields."""
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
    """The entries of an object without any: its fields get a placeholder owner before the first apply."""
    return after_update(of, None, live, Author("before-first-apply", "", time))


def after_apply(entries: Sequence[Object], applied: Object, author: Author, fields: FieldsV1) -> list[Object]:
    """`entries` are those of other managers; `fields` are those of the applied object."""
    own = [author.entry(str(applied.get("apiVersion")), fields)] if fields else []
    return _in_order([*entries, *own])


def _in_order(entries: Sequence[Object]) -> list[Object]:
    return sorted(
        entries, key=lambda entry: tuple(str(entry.get(name, "")) for name in ("operation", "time", "manager"))
    )


def entries_of(content: Object) -> list[Object]:
    return (content.get("metadata") or {}).get("managedFields") or []


def _entries_of_update(before: Object, after: Object) -> list[Object]:
    """The client's entries if it sends others, as kubectl does when it switches between the kinds of apply."""
    stored, sent = entries_of(before), entries_of(after)
    if not sent or sent == stored:
        return stored
    if sent == [{}]:  # so all are discarded
        return []
    return sent if all(map(_is_entry, sent)) else stored


def _is_entry(entry: Object) -> bool:
    return bool(entry.get("manager")) and entry.get("operation") in (APPLY, UPDATE) and is_tree(entry.get("fieldsV1"))


def ownable(content: Object, author: Author) -> Object:
    """The part that managers own: not fields set by the server, and with a status either the status or the rest."""
    if author.subresource == "status":
        return {"status": content["status"]} if "status" in content else {}
    metadata = {name: value for name, value in (content.get("metadata") or {}).items() if name not in _SYSTEM_METADATA}
    rest = {name: value for name, value in content.items() if name not in ("apiVersion", "kind", "metadata")}
    return {**rest, "metadata": metadata}


def _zero(of: ObjectType) -> Object:
    """Go's encoding of a new object: members that are never omitted exist before they are set."""
    zeros: Object = {}
    for field in of.fields:
        if field.is_always_there and field.is_message and not field.is_list and not field.is_map:
            zeros[field.name] = _zero(inner_type(field))
        elif field.is_always_there:
            is_single = not field.is_list and not field.is_map
            zeros[field.name] = _ZEROS.get(field.type) if is_single else None
    return zeros
