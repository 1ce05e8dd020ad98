"""Names and labels: what may be one. Pure."""

import re
import secrets
from collections.abc import Iterator, Mapping

from plugwright.cluster.api.errors import Cause
from plugwright.cluster.api.kinds import NAMESPACES, Kind
from plugwright.cluster.store import Object

__all__ = ["LABEL_RULE", "generated", "is_dns_label", "violations"]

_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LONGEST = 253
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: no words
_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)

LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)


def is_dns_label(name: str) -> bool:
    return bool(_LABEL.fullmatch(name))


def generated(prefix: str) -> str:
    return prefix[:58] + "".join(secrets.choice(_ALPHABET) for _ in range(5))


def violations(kind: Kind, metadata: Object) -> Iterator[Cause]:
    name = metadata.get("name") or ""
    if not name:
        yield Cause("metadata.name", "Required value: name or generateName is required", "FieldValueRequired")
    elif kind is NAMESPACES and not is_dns_label(name):
        yield Cause("metadata.name", f'Invalid value: "{name}": {LABEL_RULE}')
    elif len(name) > _LONGEST or not _SUBDOMAIN.fullmatch(name):
        yield Cause("metadata.name", f'Invalid value: "{name}": {_RULE}')
    yield from _texts("metadata.labels", metadata.get("labels"), valued=True)
    yield from _texts("metadata.annotations", metadata.get("annotations"), valued=False)


def _texts(place: str, given: object, *, valued: bool) -> Iterator[Cause]:
    if given is None:
        return
    if not isinstance(given, Mapping):
        yield Cause(place, "Invalid value: it is an object of texts")
        return
    for key, value in sorted(given.items()):
        if not _QUALIFIED.fullmatch(str(key)):
            yield Cause(place, f'Invalid value: "{key}": name part must consist of alphanumeric characters')
        if not isinstance(value, str) or (valued and not _VALUE.fullmatch(value)):
            yield Cause(
                place,
                f'Invalid value: "{value}": a valid label must be an empty string or consist of alphanumeric '
                "characters, '-', '_' or '.'",
            )
