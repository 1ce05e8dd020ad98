"""Validation rules that several kinds share: names, labels, and quantities of resources.

The texts are kube-apiserver's own. What holds for one kind alone is in its module in `kinds`.
"""

import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from plugwright import quantity
from plugwright.cluster.store import Object
from plugwright.grammars import DNS_LABEL, DNS_SUBDOMAIN

__all__ = [
    "FieldError",
    "dns_label_errors",
    "dns_subdomain_errors",
    "generate_name",
    "is_extended_resource",
    "label_value_errors",
    "qualified_name_errors",
    "quantity_errors",
    "validate_metadata",
    "validate_resources",
]

_NAME_PART = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LONGEST_NAME, _LONGEST_LABEL, _LONGEST_PREFIX = 253, 63, 58
_GENERATED_CHARACTERS = "bcdfghjklmnpqrstvwxz2456789"  # no vowels, so no words
_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_NAME_PART_RULE = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    "(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_LABEL_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_CONTAINER_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_HUGE_PAGES = "hugepages-"
_STANDARD_RESOURCES = frozenset(
    {"configmaps", "persistentvolumeclaims", "pods", "replicationcontrollers", "resourcequotas", "secrets", "services",
     "storage"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FieldError:
    """One invalid field of an object, as a cause in a Status."""

    field: str
    message: str  # as in `Invalid value: "x": must be an integer`
    reason: str = "FieldValueInvalid"


def dns_label_errors(name: str) -> Iterator[str]:
    if not DNS_LABEL.fullmatch(name):
        yield _LABEL_RULE


def dns_subdomain_errors(name: str) -> Iterator[str]:
    if not DNS_SUBDOMAIN.fullmatch(name):
        yield _SUBDOMAIN_RULE


def generate_name(prefix: str) -> str:
    return prefix[:_LONGEST_PREFIX] + "".join(secrets.choice(_GENERATED_CHARACTERS) for _ in range(5))


def validate_metadata(metadata: Object, name_errors: Iterator[str]) -> Iterator[FieldError]:
    """`name_errors` are those of the kind's own rule for names."""
    name = str(metadata.get("name") or "")
    if not name:
        yield FieldError("metadata.name", "Required value: name or generateName is required", "FieldValueRequired")
    elif len(name) > _LONGEST_NAME:
        yield FieldError("metadata.name", f'Invalid value: "{name}": must be no more than {_LONGEST_NAME} characters')
    else:
        yield from (FieldError("metadata.name", f'Invalid value: "{name}": {error}') for error in name_errors)
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    yield from _validate_keys("metadata.labels", labels)
    for _, value in sorted(labels.items()):
        yield from _validate_label_value(value)
    yield from _validate_keys("metadata.annotations", annotations)


def _validate_keys(field: str, values: Mapping[str, str]) -> Iterator[FieldError]:
    for key in sorted(values):
        for error in qualified_name_errors(key.lower() if field.endswith("annotations") else key):
            yield FieldError(field, f'Invalid value: "{key}": {error}')


def _validate_label_value(value: str) -> Iterator[FieldError]:
    for error in label_value_errors(value):
        yield FieldError("metadata.labels", f'Invalid value: "{value}": {error}')


def label_value_errors(value: str) -> Iterator[str]:
    if len(value) > _LONGEST_LABEL:
        yield f"must be no more than {_LONGEST_LABEL} bytes"
    elif value and not _NAME_PART.fullmatch(value):
        yield _LABEL_VALUE_RULE


def qualified_name_errors(name: str) -> Iterator[str]:
    """Of a name like `example.com/tape`."""
    prefix, slash, part = name.rpartition("/")
    if "/" in prefix:
        optional = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        yield f"a valid label key {_NAME_PART_RULE} {optional}"
        return
    if slash and not prefix:
        yield "prefix part must be non-empty"
    elif slash and not DNS_SUBDOMAIN.fullmatch(prefix):
        yield f"prefix part {_SUBDOMAIN_RULE}"
    if slash and len(prefix) > _LONGEST_NAME:
        yield f"prefix part must be no more than {_LONGEST_NAME} bytes"
    if not part:
        yield "name part must be non-empty"
    elif len(part) > _LONGEST_LABEL:
        yield f"name part must be no more than {_LONGEST_LABEL} bytes"
    if not _NAME_PART.fullmatch(part):
        yield f"name part {_NAME_PART_RULE}"


def is_extended_resource(resource: str) -> bool:
    """Outside kubernetes.io, and with a name that a quota could limit (`requests.` is put before it)."""
    has_own_domain = "/" in resource and "kubernetes.io/" not in resource
    return (
        has_own_domain
        and not resource.startswith("requests.")
        and not any(qualified_name_errors(f"requests.{resource}"))
    )


def quantity_errors(resource: str, amount: str) -> Iterator[str]:
    if quantity.zero_if_invalid(amount) < 0:
        yield "must be greater than or equal to 0"
    if is_extended_resource(resource) and quantity.zero_if_invalid(amount) % 1:
        yield "must be an integer"


def validate_resources(field: str, resources: Object) -> Iterator[FieldError]:
    """The limits and requests of a container; `field` is the path of its resources."""
    for part in ("limits", "requests"):
        for resource, amount in sorted((resources.get(part) or {}).items()):
            path = f"{field}.{part}[{resource}]"
            for error in _resource_name_errors(resource):
                yield FieldError(path, f'Invalid value: "{resource}": {error}')
            for error in quantity_errors(resource, str(amount)):
                yield FieldError(path, f'Invalid value: "{amount}": {error}')
    yield from _validate_requests_against_limits(field, resources)


def _resource_name_errors(resource: str) -> Iterator[str]:
    errors = list(qualified_name_errors(resource))
    yield from errors
    if "/" not in resource:
        if resource.startswith((*_CONTAINER_RESOURCES, _HUGE_PAGES)):
            return
        if not errors and resource not in _STANDARD_RESOURCES:
            yield "must be a standard resource type or fully qualified"
        yield "must be a standard resource for containers"
    elif "kubernetes.io/" not in resource and not is_extended_resource(resource):
        yield "doesn't follow extended resource name standard"


def _validate_requests_against_limits(field: str, resources: Object) -> Iterator[FieldError]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for resource, amount in sorted(requests.items()):
        is_exclusive = is_extended_resource(resource) or resource.startswith(_HUGE_PAGES)  # cannot be overcommitted
        if resource not in limits:
            if is_exclusive:
                text = "Required value: Limit must be set for non overcommitable resources"
                yield FieldError(f"{field}.limits", text, "FieldValueRequired")
            continue
        request, limit = quantity.zero_if_invalid(amount), quantity.zero_if_invalid(limits[resource])
        if is_exclusive and request != limit:
            text = f'Invalid value: "{amount}": must be equal to {resource} limit of {limits[resource]}'
            yield FieldError(f"{field}.requests", text)
        elif request > limit:
            text = f'Invalid value: "{amount}": must be less than or equal to {resource} limit of {limits[resource]}'
            yield FieldError(f"{field}.requests", text)
