"""Placement of a pod: tolerations, affinity, spread over domains, node selector, and scheduling gates."""

from collections.abc import Callable, Iterator

from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import (
    FieldError,
    dns_label_errors,
    dns_subdomain_errors,
    duplicate,
    forbidden,
    invalid,
    invalid_for,
    label_value_errors,
    qualified_name_errors,
    required,
    unsupported,
    validate_labels,
)

__all__ = ["TAINT_EFFECTS", "placement_errors", "toleration_errors"]

TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_REQUIRED, _PREFERRED = (f"{word}DuringSchedulingIgnoredDuringExecution" for word in ("required", "preferred"))
_HEAVIEST = 100
_NO_KEY = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'


def placement_errors(spec: Object) -> Iterator[FieldError]:
    yield from validate_labels("spec.nodeSelector", spec.get("nodeSelector") or {})
    affinity = spec.get("affinity") or {}
    yield from _node_affinity_errors("spec.affinity.nodeAffinity", affinity.get("nodeAffinity") or {})
    for part in ("podAffinity", "podAntiAffinity"):
        yield from _pod_affinity_errors(f"spec.affinity.{part}", affinity.get(part) or {})
    yield from _gate_errors(spec.get("schedulingGates") or [])
    yield from _spread_errors("spec.topologySpreadConstraints", spec.get("topologySpreadConstraints") or [])
    yield from toleration_errors("spec.tolerations", spec.get("tolerations") or [])


def toleration_errors(field: str, tolerations: list[Object]) -> Iterator[FieldError]:
    for number, toleration in enumerate(tolerations):
        place = f"{field}[{number}]"
        key, operator, value, effect = (
            str(toleration.get(name) or "") for name in ("key", "operator", "value", "effect")
        )
        if key:
            yield from invalid_for(f"{place}.key", key, qualified_name_errors(key))
        elif operator != "Exists":
            yield invalid(f"{place}.operator", operator, _NO_KEY)
        if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
            yield invalid(f"{place}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
        yield from _operator_errors(place, operator, value)
        if effect:
            yield from unsupported(f"{place}.effect", effect, TAINT_EFFECTS)


def _operator_errors(field: str, operator: str, value: str) -> Iterator[FieldError]:
    if operator in ("", "Equal"):
        if errors := list(label_value_errors(value)):
            yield invalid(f"{field}.operator", value, ";".join(errors))
    elif operator == "Exists":
        if value:
            yield invalid(f"{field}.operator", value, "value must be empty when `operator` is 'Exists'")
    else:
        # The numeric operators are behind a disabled gate, but the message lists them.
        numeric = ("Lt", "Gt") if operator in ("Lt", "Gt") else ()
        values = ", ".join(f'"{one}"' for one in ("Equal", "Exists", *numeric))
        text = f'Unsupported value: "{operator}": supported values: {values}'
        yield FieldError(f"{field}.operator", text, "FieldValueNotSupported")


def _node_affinity_errors(field: str, affinity: Object) -> Iterator[FieldError]:
    selector = affinity.get(_REQUIRED)
    if selector is not None:
        place, terms = f"{field}.{_REQUIRED}.nodeSelectorTerms", selector.get("nodeSelectorTerms") or []
        if not terms:
            yield required(place, "must have at least one node selector term")
        for number, term in enumerate(terms):
            yield from _term_errors(f"{place}[{number}]", term, checks_values=True)
    for number, preferred in enumerate(affinity.get(_PREFERRED) or []):
        place = f"{field}.{_PREFERRED}[{number}]"
        yield from _weight_errors(place, preferred)
        yield from _term_errors(f"{place}.preference", preferred.get("preference") or {}, checks_values=False)


def _weight_errors(field: str, term: Object) -> Iterator[FieldError]:
    weight = int(term.get("weight") or 0)
    if not 1 <= weight <= _HEAVIEST:
        yield invalid(f"{field}.weight", weight, f"must be in the range 1-{_HEAVIEST}")


def _term_errors(field: str, term: Object, *, checks_values: bool) -> Iterator[FieldError]:
    for number, requirement in enumerate(term.get("matchExpressions") or []):
        place = f"{field}.matchExpressions[{number}]"
        yield from _requirement_errors(place, requirement, compares=True)
        if checks_values:
            yield from _value_errors(place, requirement, label_value_errors)
    for number, requirement in enumerate(term.get("matchFields") or []):
        yield from _field_errors(f"{field}.matchFields[{number}]", requirement)


def _requirement_errors(field: str, requirement: Object, *, compares: bool) -> Iterator[FieldError]:
    """Errors of requirements on labels; the selectors of nodes can also compare numbers."""
    operator, values = str(requirement.get("operator") or ""), requirement.get("values") or []
    if operator in ("In", "NotIn"):
        if not values:
            yield required(f"{field}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            yield forbidden(f"{field}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
    elif compares and operator in ("Gt", "Lt"):
        if len(values) != 1:
            yield required(f"{field}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
    else:
        yield invalid(f"{field}.operator", operator, "not a valid selector operator")
    key = str(requirement.get("key") or "")
    yield from invalid_for(f"{field}.key", key, qualified_name_errors(key))


def _value_errors(field: str, requirement: Object, errors: Callable[[str], Iterator[str]]) -> Iterator[FieldError]:
    for number, value in enumerate(requirement.get("values") or []):
        yield from invalid_for(f"{field}.values[{number}]", value, errors(value))


def _field_errors(field: str, requirement: Object) -> Iterator[FieldError]:
    operator, key = str(requirement.get("operator") or ""), str(requirement.get("key") or "")
    if operator not in ("In", "NotIn"):
        yield invalid(f"{field}.operator", operator, "not a valid selector operator")
    elif len(requirement.get("values") or []) != 1:
        text = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        yield required(f"{field}.values", text)
    if key != "metadata.name":
        yield invalid(f"{field}.key", key, "not a valid field selector key")
    else:
        yield from _value_errors(field, requirement, dns_subdomain_errors)


def _pod_affinity_errors(field: str, affinity: Object) -> Iterator[FieldError]:
    for number, term in enumerate(affinity.get(_REQUIRED) or []):
        yield from _pod_term_errors(f"{field}.{_REQUIRED}[{number}]", term)
    for number, preferred in enumerate(affinity.get(_PREFERRED) or []):
        place = f"{field}.{_PREFERRED}[{number}]"
        yield from _weight_errors(place, preferred)
        yield from _pod_term_errors(f"{place}.podAffinityTerm", preferred.get("podAffinityTerm") or {})


def _pod_term_errors(field: str, term: Object) -> Iterator[FieldError]:
    for part in ("labelSelector", "namespaceSelector"):
        yield from _selector_errors(f"{field}.{part}", term.get(part) or {})
    for namespace in term.get("namespaces") or []:
        yield from invalid_for(f"{field}.namespace", namespace, dns_label_errors(namespace))
    yield from _label_key_errors(field, term)
    key = str(term.get("topologyKey") or "")
    if not key:
        yield required(f"{field}.topologyKey", "can not be empty")
    yield from invalid_for(f"{field}.topologyKey", key, qualified_name_errors(key))


def _label_key_errors(field: str, term: Object) -> Iterator[FieldError]:
    for part in ("matchLabelKeys", "mismatchLabelKeys"):
        keys = term.get(part) or []
        if keys and term.get("labelSelector") is None:
            yield forbidden(f"{field}.{part}", "must not be specified when labelSelector is not set")
            continue
        for number, key in enumerate(keys):
            yield from invalid_for(f"{field}.{part}[{number}]", key, qualified_name_errors(key))
    excluded = term.get("mismatchLabelKeys") or []
    for number, key in enumerate(term.get("matchLabelKeys") or []):
        if key in excluded:
            text = "exists in both matchLabelKeys and mismatchLabelKeys"
            yield invalid(f"{field}.matchLabelKeys[{number}]", key, text)


def _selector_errors(field: str, selector: Object) -> Iterator[FieldError]:
    yield from validate_labels(f"{field}.matchLabels", selector.get("matchLabels") or {})
    for number, requirement in enumerate(selector.get("matchExpressions") or []):
        place = f"{field}.matchExpressions[{number}]"
        yield from _requirement_errors(place, requirement, compares=False)
        yield from _value_errors(place, requirement, label_value_errors)


def _gate_errors(gates: list[Object]) -> Iterator[FieldError]:
    seen: set[str] = set()
    for number, gate in enumerate(gates):
        field, name = f"spec.schedulingGates[{number}]", str(gate.get("name") or "")
        yield from invalid_for(field, name, qualified_name_errors(name))
        if name in seen:
            yield duplicate(field, name)
        seen.add(name)


def _spread_errors(field: str, constraints: list[Object]) -> Iterator[FieldError]:
    for number, constraint in enumerate(constraints):
        place = f"{field}[{number}]"
        skew, key, action = (constraint.get(name) for name in ("maxSkew", "topologyKey", "whenUnsatisfiable"))
        if (skew or 0) <= 0:
            yield invalid(f"{place}.maxSkew", skew or 0, "must be greater than zero")
        if not key:
            yield required(f"{place}.topologyKey", "can not be empty")
        yield from unsupported(f"{place}.whenUnsatisfiable", action or "", ("DoNotSchedule", "ScheduleAnyway"))
        later = ((other.get("topologyKey"), other.get("whenUnsatisfiable")) for other in constraints[number + 1 :])
        if (key, action) in later:
            yield duplicate(f"{place}.{{topologyKey, whenUnsatisfiable}}", f"{{{key}, {action}}}")
        yield from _domain_errors(f"{place}.minDomains", constraint.get("minDomains"), str(action or ""))
        for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            if constraint.get(policy) is not None:
                yield from unsupported(f"{place}.{policy}", constraint[policy], ("Honor", "Ignore"))
        yield from _label_key_errors(place, constraint)
        yield from _selector_errors(f"{place}.labelSelector", constraint.get("labelSelector") or {})


def _domain_errors(field: str, domains: int | None, action: str) -> Iterator[FieldError]:
    if domains is None:
        return
    if domains <= 0:
        yield invalid(field, domains, "must be greater than zero")
    if action != "DoNotSchedule":
        text = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
        yield invalid(field, domains, text)
