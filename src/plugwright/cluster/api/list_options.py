"""Options of a list: label and field selectors, and the continue token of a list that is read in chunks.

Pure. A kind says which fields its selectors may name.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from plugwright.cluster.api.errors import bad_request
from plugwright.cluster.api.kinds import Kind
from plugwright.cluster.store import Object

__all__ = ["Chunk", "ContinueToken", "Predicate", "chunk", "decode_token", "encode_token", "selector"]

Predicate = Callable[[Object], bool]
_COMMAS_OUTSIDE_BRACKETS = re.compile(r",(?![^(]*\))")
_SET_REQUIREMENT = re.compile(r"\s*([^\s!]+)\s+(in|notin)\s*\(([^)]*)\)\s*")
_LABEL_KEY = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?")
_METADATA_FIELDS = frozenset({"metadata.name", "metadata.namespace"})


class ContinueToken(msgspec.Struct, frozen=True):
    """The revision that is being listed, and the last object of the chunks before."""

    rv: int
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Chunk:
    objects: Sequence[Object]
    remaining: int


def selector(kind: Kind, query: Mapping[str, str]) -> Predicate:
    """Whether an object matches the label selector and the field selector of a query."""
    matches_labels = _label_selector(query.get("labelSelector", ""))
    matches_fields = _field_selector(query.get("fieldSelector", ""), kind.selectable_fields | _METADATA_FIELDS)
    return lambda content: matches_labels(content) and matches_fields(content)


def chunk(objects: Sequence[Object], after: ContinueToken | None, limit: int | None) -> Chunk:
    """At most `limit` of the sorted objects, from the one behind `after` on."""
    if after:
        last = (after.namespace, after.name)
        objects = [content for content in objects if _position(content) > last]
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
    """`a=b,c!=d,e,!f,g in (h,i)`."""
    requirements = [_label_requirement(part.strip()) for part in _COMMAS_OUTSIDE_BRACKETS.split(text) if part.strip()]
    return lambda content: all(is_met(content["metadata"].get("labels") or {}) for is_met in requirements)


def _label_requirement(text: str) -> Callable[[Mapping[str, str]], bool]:
    match = _SET_REQUIREMENT.fullmatch(text)
    if match:
        key, values = match[1], {value.strip() for value in match[3].split(",")}
        if match[2] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    for operator in ("!=", "==", "="):
        if operator in text:
            key, value = (part.strip() for part in text.split(operator, 1))
            _check_label_key(key, text)
            return lambda labels: (labels.get(key) == value) != (operator == "!=")
    key = text.removeprefix("!").strip()
    _check_label_key(key, text)
    return (lambda labels: key not in labels) if text.startswith("!") else (lambda labels: key in labels)


def _check_label_key(key: str, requirement: str) -> None:
    if not _LABEL_KEY.fullmatch(key):
        raise bad_request(f"unable to parse requirement: {requirement!r} is not a label selector")


def _field_selector(text: str, selectable: frozenset[str]) -> Predicate:
    """`spec.nodeName=a,status.phase!=Failed`."""
    requirements = [_field_requirement(part, selectable) for part in text.split(",") if part.strip()]
    return lambda content: all(is_met(content) for is_met in requirements)


def _field_requirement(text: str, selectable: frozenset[str]) -> Predicate:
    for operator in ("!=", "==", "="):
        path, separator, value = (part.strip() for part in text.partition(operator))
        if separator:
            if path not in selectable:
                raise bad_request(f"field label not supported: {path}")
            return lambda content: (_field_text(content, path) == value) != (operator == "!=")
    raise bad_request(f"invalid field selector {text!r}: it must be like status.phase=Running")


def _field_text(content: Object, path: str) -> str:
    value: object = content
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
