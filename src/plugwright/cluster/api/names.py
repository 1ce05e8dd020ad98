"""Names and labels: what may be one, in the real server's words where it may not. Pure."""

import re
import secrets
from collections.abc import Iterator, Mapping

from plugwright.cluster.api.errors import Cause
from plugwright.cluster.api.kinds import NAMESPACES, Kind
from plugwright.cluster.store import Object

__all__ = ["LABEL_RULE", "generated", "is_dns_label", "unqualified", "violations"]

_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_PART = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LONGEST_NAME, _LONGEST_LABEL, _LONGEST_PREFIX = 253, 63, 58
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: no words
LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_PART_RULE = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    "(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def is_dns_label(name: str) -> bool:
    return bool(_LABEL.fullmatch(name))


def generated(prefix: str) -> str:
    return prefix[:_LONGEST_PREFIX] + "".join(secrets.choice(_ALPHABET) for _ in range(5))


def unqualified(name: str) -> Iterator[str]:
    """Why this is no qualified name like `example.com/tape`."""
    prefix, slash, part = name.rpartition("/")
    if "/" in prefix:
        optional = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        yield f"a valid label key {_PART_RULE} {optional}"
        return
    if slash and not prefix:
        yield "prefix part must be non-empty"
    elif slash and not _SUBDOMAIN.fullmatch(prefix):
        yield f"prefix part {_SUBDOMAIN_RULE}"
    if slash and len(prefix) > _LONGEST_NAME:
        yield f"prefix part must be no more than {_LONGEST_NAME} bytes"
    if not part:
        yield "name part must be non-empty"
    elif len(part) > _LONGEST_LABEL:
        yield f"name part must be no more than {_LONGEST_LABEL} bytes"
    if not _PART.fullmatch(part):
        yield f"name part {_PART_RULE}"


def violations(kind: Kind, metadata: Object) -> Iterator[Cause]:
    yield from _name(kind, str(metadata.get("name") or ""))
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    yield from _keys("metadata.labels", labels)
    for _, value in sorted(labels.items()):
        yield from _value(value)
    yield from _keys("metadata.annotations", annotations)


def _name(kind: Kind, name: str) -> Iterator[Cause]:
    if not name:
        yield Cause("metadata.name", "Required value: name or generateName is required", "FieldValueRequired")
    elif len(name) > _LONGEST_NAME:
        yield Cause("metadata.name", f'Invalid value: "{name}": must be no more than {_LONGEST_NAME} characters')
    elif kind is NAMESPACES and not is_dns_label(name):
        yield Cause("metadata.name", f'Invalid value: "{name}": {LABEL_RULE}')
    elif not _SUBDOMAIN.fullmatch(name):
        yield Cause("metadata.name", f'Invalid value: "{name}": {_SUBDOMAIN_RULE}')


def _keys(place: str, given: Mapping[str, str]) -> Iterator[Cause]:
    for key in sorted(given):
        for reason in unqualified(key.lower() if place.endswith("annotations") else key):
            yield Cause(place, f'Invalid value: "{key}": {reason}')


def _value(value: str) -> Iterator[Cause]:
    if len(value) > _LONGEST_LABEL:
        yield Cause("metadata.labels", f'Invalid value: "{value}": must be no more than {_LONGEST_LABEL} bytes')
    elif value and not _PART.fullmatch(value):
        yield Cause("metadata.labels", f'Invalid value: "{value}": {_VALUE_RULE}')
