"""The mutable fields of a pod: images, deadlines, tolerations, gates, and a gated pod's placement."""

from collections.abc import Iterator
from typing import Any

from plugwright.apiserver.kinds.pod_validation import placement
from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import FieldError, forbidden, invalid, required

__all__ = ["validate_update"]

_CONTAINER_LISTS = ("containers", "initContainers")
_LONGEST_DEADLINE = 2**31 - 1
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_TERMS = f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"
_MUTABLE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def validate_update(before: Object, after: Object) -> Iterator[FieldError]:
    old, new = before["spec"], after.get("spec") or {}
    for part in _CONTAINER_LISTS:
        if len(old.get(part) or []) != len(new.get(part) or []):
            yield forbidden(f"spec.{part}", "pod updates may not add or remove containers")
            return
        yield from _image_errors(part, new.get(part) or [])
    deadline_errors = list(_deadline_errors(old.get("activeDeadlineSeconds"), new.get("activeDeadlineSeconds")))
    yield from deadline_errors
    if deadline_errors and new.get("activeDeadlineSeconds") is not None:
        return
    yield from _toleration_errors(old.get("tolerations") or [], new.get("tolerations") or [])
    yield from _gate_errors(old.get("schedulingGates") or [], new.get("schedulingGates") or [])
    unchanged = _with_mutable_fields_of(old, new)
    if old.get("schedulingGates"):  # the scheduler has not examined it yet, so its placement can be narrowed
        yield from _selector_errors(old.get("nodeSelector") or {}, new.get("nodeSelector") or {})
        yield from _affinity_errors(old, new)
        unchanged = _with_placement_of(old, unchanged)
    if unchanged != old:
        yield forbidden("spec", _MUTABLE)


def _image_errors(part: str, containers: list[Object]) -> Iterator[FieldError]:
    for number, container in enumerate(containers):
        image = str(container.get("image") or "")
        if not image:
            yield required(f"spec.{part}[{number}].image")
        elif image != image.strip():
            text = "must not have leading or trailing whitespace"
            yield invalid(f"spec.{part}[{number}].image", image, text)


def _deadline_errors(old: int | None, new: int | None) -> Iterator[FieldError]:
    field = "spec.activeDeadlineSeconds"
    if new is None:
        if old is not None:
            yield invalid(field, None, "must not update from a positive integer to nil value")
    elif not 0 <= new <= _LONGEST_DEADLINE:
        yield invalid(field, new, f"must be between 0 and {_LONGEST_DEADLINE}, inclusive")
    elif old is not None and old < new:
        yield invalid(field, new, "must be less than or equal to previous value")


def _toleration_errors(old: list[Object], new: list[Object]) -> Iterator[FieldError]:
    def without_seconds(toleration: Object) -> Object:
        return {name: value for name, value in toleration.items() if name != "tolerationSeconds"}

    kept = [without_seconds(toleration) for toleration in new]
    if any(without_seconds(toleration) not in kept for toleration in old):
        text = "existing toleration can not be modified except its tolerationSeconds"
        yield forbidden("spec.tolerations", text)
    else:
        yield from placement.toleration_errors("spec.tolerations", new)


def _gate_errors(old: list[Object], new: list[Object]) -> Iterator[FieldError]:
    names = {gate.get("name") for gate in old}
    for number, gate in enumerate(new):
        if gate.get("name") not in names:
            text = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            yield forbidden(f"spec.schedulingGates[{number}].name", text)


def _selector_errors(old: Object, new: Object) -> Iterator[FieldError]:
    if any(new.get(key) != value for key, value in old.items()):
        text = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        yield invalid("spec.nodeSelector", new or None, text)


def _affinity_errors(old: Object, new: Object) -> Iterator[FieldError]:
    old_terms, new_terms = _node_terms(old), _node_terms(new)
    if old_terms and len(old_terms) != len(new_terms):
        text = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        yield invalid(_TERMS, [_printed_term(term) for term in new_terms] or None, text)
        return
    for number, (old_term, new_term) in enumerate(zip(old_terms, new_terms, strict=False)):
        if not _has_only_additions(old_term, new_term):
            text = "only additions are allowed (no mutations or deletions)"
            yield invalid(f"{_TERMS}[{number}]", _printed_term(new_term), text)


def _node_terms(spec: Object) -> list[Object]:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return (affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms") or []


def _printed_term(term: Object) -> Object:
    """The term as printed by the API server: with the names of its own structures."""

    def printed(part: str) -> list[Object] | None:
        rows = [
            {"Key": row.get("key", ""), "Operator": row.get("operator", ""), "Values": row.get("values")}
            for row in term.get(part) or []
        ]
        return rows or None

    return {"MatchExpressions": printed("matchExpressions"), "MatchFields": printed("matchFields")}


def _has_only_additions(old: Object, new: Object) -> bool:
    parts = ("matchExpressions", "matchFields")
    if not any(old.get(part) for part in parts):  # it matches nothing, and more would make it match
        return not any(new.get(part) for part in parts)
    rows = ((old.get(part) or [], new.get(part) or []) for part in parts)
    return all(more[: len(fewer)] == fewer for fewer, more in rows)


def _with_mutable_fields_of(old: Object, new: Object) -> Object:
    """The new spec with the old values of all mutable fields."""
    spec: dict[str, Any] = {**new}  # type: ignore[explicit-any,unused-ignore]
    for name in ("activeDeadlineSeconds", "schedulingGates", "tolerations"):
        _restore(spec, old, name)
    grace = "terminationGracePeriodSeconds"
    if old.get(grace, 0) < 0 and spec.get(grace) == 1:
        _restore(spec, old, grace)
    for part in _CONTAINER_LISTS:
        if part in spec:
            pairs = zip(spec[part], old.get(part) or [], strict=False)
            spec[part] = [{**container, "image": was.get("image")} for container, was in pairs]
    return spec


def _with_placement_of(old: Object, spec: Object) -> Object:
    restored = {**spec}
    _restore(restored, old, "nodeSelector")
    affinity, was = {**(spec.get("affinity") or {})}, old.get("affinity") or {}
    _restore(affinity, was, "nodeAffinity")
    restored["affinity"] = affinity
    if not affinity and "affinity" not in old:
        del restored["affinity"]
    return restored


def _restore(spec: dict[str, Any], old: Object, name: str) -> None:  # type: ignore[explicit-any,unused-ignore]
    if name in old:
        spec[name] = old[name]
    else:
        spec.pop(name, None)
