"""Label and field selectors, read and matched. Pure.

Long lists in pieces: how far a client has read, as the token that it sends back. Pure.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from plugwright.cluster.api.errors import bad_request
from plugwright.cluster.store import Object

__all__ = ["Page", "Selector", "Token", "cut", "everything", "fields", "labels", "matches_labels", "read", "write"]

Selector = Callable[[Object], bool]
_REQUIREMENTS = re.compile(r",(?![^(]*\))")  # commas, but for those between brackets
_SET = re.compile(r"\s*([^\s!]+)\s+(in|notin)\s*\(([^)]*)\)\s*")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?")
_FIELDS = frozenset(
    {
        "metadata.name", "metadata.namespace", "spec.nodeName", "spec.restartPolicy", "spec.schedulerName",
        "spec.serviceAccountName", "spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName",
        "spec.unschedulable", "involvedObject.kind", "involvedObject.namespace", "involvedObject.name",
        "involvedObject.uid", "involvedObject.apiVersion", "involvedObject.resourceVersion",
        "involvedObject.fieldPath", "reason", "reportingComponent", "source", "type",
    }
)  # fmt: skip


def everything(_: Object) -> bool:
    return True


def labels(text: str) -> Selector:
    """`a=b,c!=d,e,!f,g in (h,i)`."""
    wanted = [_requirement(part.strip()) for part in _REQUIREMENTS.split(text) if part.strip()]
    return lambda found: all(is_met(found["metadata"].get("labels") or {}) for is_met in wanted)


def _requirement(text: str) -> Callable[[Mapping[str, str]], bool]:
    found = _SET.fullmatch(text)
    if found:
        name, values = found[1], {value.strip() for value in found[3].split(",")}
        if found[2] == "in":
            return lambda given: given.get(name) in values
        return lambda given: given.get(name) not in values
    for sign in ("!=", "==", "="):
        if sign in text:
            return _equality(text, sign)
    name = text.removeprefix("!").strip()
    _check(name, text)
    return (lambda given: name not in given) if text.startswith("!") else (lambda given: name in given)


def _equality(text: str, sign: str) -> Callable[[Mapping[str, str]], bool]:
    name, value = (part.strip() for part in text.split(sign, 1))
    _check(name, text)
    return lambda given: (given.get(name) == value) != (sign == "!=")


def _check(name: str, text: str) -> None:
    if not _NAME.fullmatch(name):
        raise bad_request(f"unable to parse requirement: {text!r} is no label selector")


def matches_labels(wanted: Mapping[str, str], given: Mapping[str, str]) -> bool:
    return wanted.items() <= given.items()


def fields(text: str) -> Selector:
    """`spec.nodeName=a,status.phase!=Failed`."""
    wanted = [_comparison(part) for part in text.split(",") if part.strip()]
    return lambda found: all(is_met(found) for is_met in wanted)


def _comparison(text: str) -> Selector:
    for sign in ("!=", "==", "="):
        path, separator, value = (part.strip() for part in text.partition(sign))
        if separator:
            if path not in _FIELDS:
                raise bad_request(f"field label not supported: {path}")
            return lambda found: (_field(found, path) == value) != (sign == "!=")
    raise bad_request(f"invalid field selector {text!r}: it looks like status.phase=Running")


def _field(found: Object, path: str) -> str:
    value: object = found
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


class Token(msgspec.Struct, frozen=True):
    """The revision that is being listed, and the last object that was."""

    rv: int
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Page:
    items: Sequence[Object]
    rest: int  # how many come after it


def read(text: str) -> Token:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=Token)
    except (msgspec.MsgspecError, binascii.Error, ValueError):
        raise bad_request(
            "invalid continue token: continue key is not valid: it is not one that this server has given out"
        ) from None


def write(revision: int, last: Object) -> str:
    metadata = last["metadata"]
    token = Token(revision, metadata.get("namespace", ""), metadata["name"])
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")


def cut(items: Sequence[Object], after: Token | None, limit: int | None) -> Page:
    """The items behind `after`, no more than `limit`; they are sorted."""
    if after:
        last = (after.namespace, after.name)
        items = [each for each in items if (each["metadata"].get("namespace", ""), each["metadata"]["name"]) > last]
    return Page(items[:limit], len(items[limit:]) if limit else 0)
