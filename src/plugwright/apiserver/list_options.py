"""Options of a list or watch: label and field selectors, and the continue token of a list read in chunks.

Pure. Each kind defines the fields that its selectors can name.
"""

import base64
import binascii
import bisect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from plugwright.apiserver.errors import bad_request, invalid_options
from plugwright.apiserver.kinds import Kind
from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import FieldError, label_value_errors

__all__ = [
    "Chunk",
    "ContinueToken",
    "Predicate",
    "check",
    "chunk",
    "decode_token",
    "encode_token",
    "selected",
    "selector",
]

Predicate = Callable[[Object], bool]
_COMMAS_OUTSIDE_BRACKETS = re.compile(r",(?![^(]*\))")
_SET_REQUIREMENT = re.compile(r"\s*([^\s!]+)\s+(in|notin)\s*\(([^)]*)\)\s*")
_LABEL_KEY = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?")
_NUMERIC_REQUIREMENT = re.compile(r"([^<>=!]+)([<>])([^<>=!]+)")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_NOT_OLDER_THAN, _EXACT = "NotOlderThan", "Exact"


class ContinueToken(msgspec.Struct, frozen=True):
    """The listed revision, and the last object of the previous chunks."""

    rv: int
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Chunk:
    objects: Sequence[Object]
    remaining: int


def selected(objects: Sequence[Object], kind: Kind, query: Mapping[str, str]) -> Sequence[Object]:
    """The matching objects; without a selector none of them is examined."""
    if not query.get("labelSelector") and not query.get("fieldSelector"):
        return objects
    matches = selector(kind, query)
    return [content for content in objects if matches(content)]


def selector(kind: Kind, query: Mapping[str, str]) -> Predicate:
    """Whether an object matches the label selector and the field selector of a query."""
    matches_labels = _label_selector(query.get("labelSelector", ""))
    matches_fields = _field_selector(kind, query.get("fieldSelector", ""))
    return lambda content: matches_labels(content) and matches_fields(content)


def chunk(objects: Sequence[Object], after: ContinueToken | None, limit: int | None) -> Chunk:
    """At most `limit` of the sorted objects, starting after `after`."""
    if after:
        objects = objects[bisect.bisect(objects, (after.namespace, after.name), key=_position) :]
    return Chunk(objects[:limit], len(objects[limit:]) if limit else 0)


def encode_token(revision: int, last: Object) -> str:
    token = ContinueToken(revision, *_position(last))
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")


def decode_token(text: str) -> ContinueToken:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=ContinueToken)
    except (msgspec.MsgspecError, binascii.Error, ValueError):
        raise bad_request(
            "invalid continue token: continue key is not valid: it was not issued by this server"
        ) from None


def _position(content: Object) -> tuple[str, str]:
    return content["metadata"].get("namespace", ""), content["metadata"]["name"]


def _label_selector(text: str) -> Predicate:
    """A predicate for `a=b,c!=d,e,!f,g in (h,i)`."""
    requirements = [_label_requirement(part.strip()) for part in _COMMAS_OUTSIDE_BRACKETS.split(text) if part.strip()]
    return lambda content: all(is_met(content["metadata"].get("labels") or {}) for is_met in requirements)


def _label_requirement(text: str) -> Callable[[Mapping[str, str]], bool]:
    match = _SET_REQUIREMENT.fullmatch(text)
    if match:
        key, values = match[1], {value.strip() for value in match[3].split(",")}
        if match[2] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if match := _NUMERIC_REQUIREMENT.fullmatch(text):
        return _comparison(match[1].strip(), match[2], match[3].strip())
    for operator in ("!=", "==", "="):
        if operator in text:
            key, value = (part.strip() for part in text.split(operator, 1))
            _check_label_key(key, text)
            if any(label_value_errors(value)):
                raise bad_request(f"unable to parse requirement: {value!r:.80} is not a value of a label")
            return lambda labels: (labels.get(key) == value) != (operator == "!=")
    key = text.removeprefix("!").strip()
    _check_label_key(key, text)
    return (lambda labels: key not in labels) if text.startswith("!") else (lambda labels: key in labels)


def _comparison(key: str, operator: str, limit: str) -> Callable[[Mapping[str, str]], bool]:
    """A predicate for `a>5`; a label whose value is not a number never matches."""
    _check_label_key(key, f"{key}{operator}{limit}")
    if not _INTEGER.fullmatch(limit):
        text = f"Invalid value: {limit!r:.40}: for 'Gt', 'Lt' operators, the value must be an integer"
        raise bad_request(f"unable to parse requirement: values[0]: {text}")

    def is_met(labels: Mapping[str, str]) -> bool:
        value = labels.get(key, "")
        if not _INTEGER.fullmatch(value):
            return False
        return int(value) > int(limit) if operator == ">" else int(value) < int(limit)

    return is_met


def _check_label_key(key: str, requirement: str) -> None:
    if not _LABEL_KEY.fullmatch(key):
        raise bad_request(f"unable to parse requirement: {requirement!r} is not a label selector")


def _field_selector(kind: Kind, text: str) -> Predicate:
    """A predicate for `spec.nodeName=a,status.phase!=Failed`."""
    requirements = [_field_requirement(kind, part) for part in text.split(",") if part.strip()]
    return lambda content: all(is_met(content) for is_met in requirements)


def _field_requirement(kind: Kind, text: str) -> Predicate:
    for operator in ("!=", "==", "="):
        path, separator, value = (part.strip() for part in text.partition(operator))
        if separator:
            read = _selected_field(kind, path)
            return lambda content: (_as_text(read(content)) == value) != (operator == "!=")
    raise bad_request(f"invalid field selector {text!r}: it must be like status.phase=Running")


def _selected_field(kind: Kind, path: str) -> Callable[[Object], object]:
    metadata = ("metadata.name", "metadata.namespace") if kind.namespaced else ("metadata.name",)
    if path in kind.computed_fields:
        return kind.computed_fields[path]
    if path in kind.selectable_fields or path in metadata:
        return lambda content: _value_at(content, path)
    raise bad_request(f"field label not supported: {path}")


def _value_at(content: Object, path: str) -> object:
    value: object = content
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def check(query: Mapping[str, str], is_watch: bool) -> None:
    """The rules for resourceVersionMatch and sendInitialEvents."""
    errors = list(_watch_errors(query) if is_watch else _list_errors(query))
    if errors:
        raise invalid_options("ListOptions", errors)


def _watch_errors(query: Mapping[str, str]) -> Iterator[FieldError]:
    match, has_initial_events = query.get("resourceVersionMatch"), "sendInitialEvents" in query
    if has_initial_events and match != _NOT_OLDER_THAN:
        yield _forbidden_match(f"sendInitialEvents requires setting resourceVersionMatch to {_NOT_OLDER_THAN}")
    if match and not has_initial_events:
        yield _forbidden_match("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
    if match and match != _NOT_OLDER_THAN:
        yield _unsupported_match(match, (_NOT_OLDER_THAN,))
    if match and query.get("continue"):
        yield _forbidden_match("resourceVersionMatch is forbidden when continue is provided")


def _list_errors(query: Mapping[str, str]) -> Iterator[FieldError]:
    match, version = query.get("resourceVersionMatch"), query.get("resourceVersion")
    if match and not version:
        yield _forbidden_match("resourceVersionMatch is forbidden unless resourceVersion is provided")
    if match and query.get("continue"):
        yield _forbidden_match("resourceVersionMatch is forbidden when continue is provided")
    if match and match not in (_EXACT, _NOT_OLDER_THAN):
        yield _unsupported_match(match, (_EXACT, _NOT_OLDER_THAN, ""))
    if match == _EXACT and version == "0":
        yield _forbidden_match('resourceVersionMatch "exact" is forbidden for resourceVersion "0"')
    if "sendInitialEvents" in query:
        text = "Forbidden: sendInitialEvents is forbidden for list"
        yield FieldError("sendInitialEvents", text, "FieldValueForbidden")


def _forbidden_match(text: str) -> FieldError:
    return FieldError("resourceVersionMatch", f"Forbidden: {text}", "FieldValueForbidden")


def _unsupported_match(match: str, supported: Sequence[str]) -> FieldError:
    values = ", ".join(f'"{value}"' for value in supported)
    text = f'Unsupported value: "{match:.40}": supported values: {values}'
    return FieldError("resourceVersionMatch", text, "FieldValueNotSupported")
