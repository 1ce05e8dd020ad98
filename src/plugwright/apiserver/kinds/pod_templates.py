"""The common part of kinds that create pods: selectors, the template of their pods, generations, and columns.

The rules of a template are those of a pod, with the template's paths.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from plugwright.apiserver.kinds import pod_defaults, pod_validation
from plugwright.apiserver.printers import Column, none_if_empty
from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import FieldError, invalid, required, unsupported, validate_labels

__all__ = [
    "TEMPLATE_COLUMNS",
    "count_errors",
    "immutable_errors",
    "selector_errors",
    "selector_text",
    "template_errors",
    "with_generation",
    "with_template_defaults",
]

_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


def with_generation(before: Object | None, after: Object) -> Object:
    """The generation counts the changes of the spec."""
    if before is None:
        generation = 1
    else:
        is_changed = (before.get("spec") or {}) != (after.get("spec") or {})
        generation = int(before["metadata"].get("generation", 1)) + is_changed
    return {**after, "metadata": {**after["metadata"], "generation": generation}}


def with_template_defaults(spec: Object) -> Object:
    return {**spec, "template": pod_defaults.template_with_defaults(spec.get("template") or {})}


def template_errors(template: Object, field: str, restart_policies: tuple[str, ...]) -> Iterator[FieldError]:
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    yield from validate_labels(f"{field}.metadata.labels", metadata.get("labels") or {})
    for error in (*pod_validation.validate({"spec": spec}), *pod_validation.validate_create({"spec": spec})):
        yield replace(error, field=f"{field}.{error.field}")
    yield from unsupported(f"{field}.spec.restartPolicy", spec.get("restartPolicy"), restart_policies)


def selector_errors(spec: Object) -> Iterator[FieldError]:
    """Errors of `matchLabels` and `matchExpressions`, which must select the pods of the template."""
    selector, labels = spec.get("selector"), (spec["template"].get("metadata") or {}).get("labels") or {}
    if not selector:
        yield required("spec.selector")
        return
    matched = selector.get("matchLabels") or {}
    yield from validate_labels("spec.selector.matchLabels", matched)
    for number, expression in enumerate(selector.get("matchExpressions") or []):
        field = f"spec.selector.matchExpressions[{number}].operator"
        yield from unsupported(field, expression.get("operator") or "", _OPERATORS)
    if any(labels.get(key) != value for key, value in matched.items()):
        yield invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")


def immutable_errors(before: Object, after: Object, *names: str) -> Iterator[FieldError]:
    for name in names:
        if before["spec"].get(name) != after["spec"].get(name):
            yield invalid(f"spec.{name}", after["spec"].get(name), "field is immutable")


def count_errors(spec: Object, *names: str) -> Iterator[FieldError]:
    for name in names:
        if (value := spec.get(name)) is not None and value < 0:
            yield invalid(f"spec.{name}", value, "must be greater than or equal to 0")


def selector_text(selector: Object | None) -> str:
    """The selector in kubectl's notation: `app=web,tier in (a,b)`."""
    if not selector:
        return "<none>"
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for expression in selector.get("matchExpressions") or []:
        key, values = expression["key"], ",".join(sorted(expression.get("values") or []))
        match expression["operator"]:
            case "Exists":
                parts.append(key)
            case "DoesNotExist":
                parts.append(f"!{key}")
            case operator:
                parts.append(f"{key} {operator.lower()} ({values})")
    return none_if_empty(",".join(parts))


def _of_containers(content: Object, member: str) -> str:
    containers = content["spec"]["template"]["spec"].get("containers") or []
    return ",".join(str(container.get(member, "")) for container in containers)


def _selector(content: Object, _now: datetime) -> str:
    return selector_text(content["spec"].get("selector"))


TEMPLATE_COLUMNS = (
    Column("Containers", lambda content, _: _of_containers(content, "name"), wide=True),
    Column("Images", lambda content, _: _of_containers(content, "image"), wide=True),
    Column("Selector", _selector, wide=True),
)
