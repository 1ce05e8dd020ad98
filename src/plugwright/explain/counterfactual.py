"""Changes to a pod or its cluster, as values: the effect of a relaxation, and its application to plain objects."""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from plugwright.explain.world import ApiObject, ClaimOrigin, ObjectId

__all__ = ["REMOVED", "Edit", "FieldPath", "Relaxation", "Situation", "edited", "relaxed"]

REMOVED = "\0removed"  # the value of an edit that removes a field or a list entry
FieldPath = tuple[str | int, ...]


class Edit(Struct, frozen=True):
    """A change of the pod, or of one of its claims (`claim` is its index). `path` starts at the object."""

    path: FieldPath
    value: Any = REMOVED
    claim: int | None = None


class Relaxation(Struct, frozen=True, kw_only=True):
    """One change that could let the pod run. `cost` orders relaxations by their cost for the user.

    Relaxations of the pod and its claims apply to every node; the others only to `nodes`. `text` continues "runs …".
    """

    kind: str
    cost: float
    text: str
    edits: tuple[Edit, ...] = ()
    ended: frozenset[ObjectId] = frozenset()  # pods
    freed: frozenset[ObjectId] = frozenset()  # claims
    slices: tuple[ApiObject, ...] = ()  # replace the slices of the same names
    tainted: tuple[tuple[str, str], ...] = ()  # slice and device that lose their taints
    classes: tuple[ApiObject, ...] = ()  # replace the DeviceClasses of the same names
    changed_nodes: tuple[ApiObject, ...] = ()  # replace the nodes of the same names
    reports: tuple[tuple[str, ApiObject], ...] = ()  # node and its NodeReport after the change
    policies: tuple[tuple[str, str], ...] = ()  # node and its Topology Manager policy
    quotas: frozenset[tuple[str, str, str]] = frozenset()  # quotas and their keys with a sufficient value
    nodes: frozenset[str] | None = None
    commands: tuple[str, ...] = ()
    subject: str = ""  # of equal kinds, only the cheapest for each subject is printed


class Situation(Struct, frozen=True):
    """A pod with its claims, and the assumed relaxations."""

    pod: ApiObject
    sources: tuple[ClaimOrigin, ...] = ()
    assumed: tuple[Relaxation, ...] = ()

    @property
    def claims(self) -> tuple[ApiObject, ...]:
        return tuple(source.claim for source in self.sources if source.claim is not None)


def relaxed(situation: Situation, relaxations: Sequence[Relaxation]) -> Situation:
    """The situation after the relaxations: applies their edits, and assumes their other changes."""
    edits = [edit for relaxation in relaxations for edit in relaxation.edits]
    pod = _edited_all(situation.pod, (edit for edit in edits if edit.claim is None))
    sources = []
    for number, source in enumerate(situation.sources):
        own = [edit for edit in edits if edit.claim == number]
        sources.append(_edited_source(source, own) if own else source)
    return Situation(pod, tuple(sources), (*situation.assumed, *relaxations))


def _edited_source(source: ClaimOrigin, edits: Iterable[Edit]) -> ClaimOrigin:
    claim = {**_edited_all(source.claim or {}, edits), "status": {}}
    return ClaimOrigin(source.entry, source.kind, source.namespace, source.name, claim, source.exists)


def _edited_all(entry: ApiObject, edits: Iterable[Edit]) -> ApiObject:
    """Applies edits; removes later entries of a list first, so that the paths of the others stay valid."""
    ordered = sorted(edits, key=lambda edit: tuple((isinstance(part, int), part) for part in edit.path), reverse=True)
    for edit in ordered:
        entry = edited(entry, edit.path, edit.value)
    return entry


def edited(entry: Any, path: FieldPath, value: Any) -> Any:
    """A copy of the object with one field set, added to a list (index -1) or removed."""
    first, *rest = path
    if isinstance(first, int):
        items = list(entry or ())
        if first < 0:
            return [*items, value if not rest else edited({}, tuple(rest), value)]
        if not rest and value == REMOVED:
            del items[first]
            return items
        items[first] = value if not rest else edited(items[first], tuple(rest), value)
        return items
    fields = dict(entry or {})
    if rest:
        fields[first] = edited(fields.get(first, [] if isinstance(rest[0], int) else {}), tuple(rest), value)
    elif value == REMOVED:
        fields.pop(first, None)
    else:
        fields[first] = value
    return fields
