"""Validation rules common to several kinds: errors of fields, metadata, names, labels, and quantities of resources.

The texts are kube-apiserver's own. Rules for a single kind are in its module in `kinds`.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from plugwright import quantity
from plugwright.apiserver.store import Object
from plugwright.grammars import DNS_LABEL, DNS_SUBDOMAIN

__all__ = [
    "FieldError",
    "config_key_errors",
    "dns_label_errors",
    "dns_subdomain_errors",
    "duplicate",
    "forbidden",
    "generate_name",
    "invalid",
    "invalid_for",
    "is_extended_resource",
    "label_value_errors",
    "missing",
    "qualified_name_errors",
    "quantity_errors",
    "required",
    "unsupported",
    "validate_labels",
    "validate_metadata",
    "validate_metadata_update",
]

_NAME_PART = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_LONGEST_NAME, _LONGEST_LABEL, _LONGEST_PREFIX = 253, 63, 58
_GENERATED_CHARACTERS = "bcdfghjklmnpqrstvwxz2456789"  # no vowels, to avoid words
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
_CONFIG_KEY_RULE = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or "
    "'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
_ANNOTATIONS_LIMIT = 256 * 1024
_STANDARD_FINALIZERS = frozenset({"foregroundDeletion", "kubernetes", "orphan"})


@dataclass(frozen=True, slots=True)
class FieldError:
    """One invalid field of an object, as a cause in a Status."""

    field: str
    message: str  # as in `Invalid value: "x": must be an integer`
    reason: str = "FieldValueInvalid"


def invalid(field: str, value: object, detail: str) -> FieldError:
    return FieldError(field, f"Invalid value: {_as_json(value)}: {detail}")


def invalid_for(field: str, value: object, details: Iterable[str]) -> Iterator[FieldError]:
    """One error for each problem of the value."""
    return (invalid(field, value, detail) for detail in details)


def required(field: str, detail: str = "") -> FieldError:
    return FieldError(field, f"Required value: {detail}" if detail else "Required value", "FieldValueRequired")


def forbidden(field: str, detail: str) -> FieldError:
    return FieldError(field, f"Forbidden: {detail}", "FieldValueForbidden")


def duplicate(field: str, value: object) -> FieldError:
    return FieldError(field, f"Duplicate value: {_as_json(value)}", "FieldValueDuplicate")


def missing(field: str, value: object) -> FieldError:
    """The value names a missing object."""
    return FieldError(field, f"Not found: {_as_json(value)}", "FieldValueNotFound")


def unsupported(field: str, value: object, supported: Iterable[str]) -> Iterator[FieldError]:
    """Nothing if the value is supported; supported values are listed in their order."""
    supported = tuple(supported)
    if value not in supported:
        values = ", ".join(f'"{one}"' for one in supported)
        text = f"Unsupported value: {_as_json(value)}: supported values: {values}"
        yield FieldError(field, text, "FieldValueNotSupported")


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def dns_label_errors(name: str) -> Iterator[str]:
    if len(name) > _LONGEST_LABEL:
        yield f"must be no more than {_LONGEST_LABEL} characters"
    if not DNS_LABEL.fullmatch(name[:_LONGEST_LABEL]):
        yield "must not contain dots" if DNS_SUBDOMAIN.fullmatch(name) else _LABEL_RULE


def dns_subdomain_errors(name: str) -> Iterator[str]:
    if not DNS_SUBDOMAIN.fullmatch(name):
        yield _SUBDOMAIN_RULE


def config_key_errors(key: str) -> Iterator[str]:
    """Errors of a key in a ConfigMap or a Secret."""
    if len(key) > _LONGEST_NAME:
        yield f"must be no more than {_LONGEST_NAME} characters"
    if not _CONFIG_KEY.fullmatch(key):
        yield _CONFIG_KEY_RULE
    if key in (".", ".."):
        yield f"must not be '{key}'"
    elif key.startswith(".."):
        yield "must not start with '..'"


def generate_name(prefix: str) -> str:
    return prefix[:_LONGEST_PREFIX] + "".join(secrets.choice(_GENERATED_CHARACTERS) for _ in range(5))


def validate_metadata(metadata: Object, name_errors: Callable[[str], Iterator[str]]) -> Iterator[FieldError]:
    """`name_errors` is the kind's own rule for names."""
    name, prefix = str(metadata.get("name") or ""), str(metadata.get("generateName") or "")
    if prefix:
        # A generated name can follow a hyphen or a dot.
        yield from invalid_for("metadata.generateName", prefix, name_errors(re.sub(r"[-.]$", "a", prefix)))
    if not name:
        yield required("metadata.name", "name or generateName is required")
    elif len(name) > _LONGEST_NAME:
        yield invalid("metadata.name", name, f"must be no more than {_LONGEST_NAME} characters")
    else:
        yield from invalid_for("metadata.name", name, name_errors(name))
    yield from validate_labels("metadata.labels", metadata.get("labels") or {})
    yield from _annotation_errors(metadata.get("annotations") or {})
    yield from _owner_errors(metadata.get("ownerReferences") or [])
    for number, finalizer in enumerate(metadata.get("finalizers") or []):
        yield from _finalizer_errors(number, str(finalizer))


def validate_metadata_update(before: Object, after: Object) -> Iterator[FieldError]:
    if before.get("deletionTimestamp"):
        added = sorted({*(after.get("finalizers") or [])} - {*(before.get("finalizers") or [])})
        if added:
            names = ", ".join(f'"{name}"' for name in added)
            text = "no new finalizers can be added if the object is being deleted, found new finalizers"
            yield forbidden("metadata.finalizers", f"{text} []string{{{names}}}")


def _annotation_errors(annotations: Mapping[str, str]) -> Iterator[FieldError]:
    for key in sorted(annotations):
        yield from invalid_for("metadata.annotations", key, qualified_name_errors(key.lower()))
    if sum(len(key.encode()) + len(str(value).encode()) for key, value in annotations.items()) > _ANNOTATIONS_LIMIT:
        text = f"Too long: may not be more than {_ANNOTATIONS_LIMIT} bytes"
        yield FieldError("metadata.annotations", text, "FieldValueTooLong")


def _owner_errors(owners: list[Object]) -> Iterator[FieldError]:
    path, first = "metadata.ownerReferences", ""
    for owner in owners:
        for member, rule in (
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ):
            if not owner.get(member):
                yield invalid(f"{path}.{member}", "", rule)
        if owner.get("controller"):
            name = f"{owner.get('kind', '')}/{owner.get('name', '')}"
            if first:
                text = 'Only one reference can have Controller set to true. Found "true" in references for'
                yield invalid(path, owners, f"{text} {first} and {name}")
            first = first or name


def _finalizer_errors(number: int, finalizer: str) -> Iterator[FieldError]:
    yield from invalid_for("metadata.finalizers", finalizer, qualified_name_errors(finalizer))
    if "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
        text = "name is neither a standard finalizer name nor is it fully qualified"
        yield invalid(f"metadata.finalizers[{number}]", finalizer, text)


def validate_labels(field: str, labels: Mapping[str, str]) -> Iterator[FieldError]:
    for key, value in sorted(labels.items()):
        yield from invalid_for(field, key, qualified_name_errors(key))
        yield from invalid_for(field, value, label_value_errors(value))


def label_value_errors(value: str) -> Iterator[str]:
    if len(value) > _LONGEST_LABEL:
        yield f"must be no more than {_LONGEST_LABEL} bytes"
    elif value and not _NAME_PART.fullmatch(value):
        yield _LABEL_VALUE_RULE


def qualified_name_errors(name: str) -> Iterator[str]:
    """Errors of a name like `example.com/tape`."""
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
    """Whether it is outside kubernetes.io, with a name that a quota can limit (prefixed by `requests.`)."""
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
