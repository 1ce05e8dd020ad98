"""A request read: which object it is about, what it carries, and how the answer is to look."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from plugwright.cluster.api import kinds, schema
from plugwright.cluster.api.errors import Refused, bad_request, not_found, unsupported_media
from plugwright.cluster.api.kinds import Kind
from plugwright.cluster.api.writing import Deletion
from plugwright.cluster.store import Object

__all__ = ["BODY_LIMIT", "Target", "body", "checked", "deletion", "number", "resolve"]

BODY_LIMIT = 3 * 1024 * 1024
_READABLE = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")


@dataclass(frozen=True, slots=True)
class Target:
    """What a path names; an empty `name` means all of a kind."""

    kind: Kind
    namespace: str
    name: str = ""
    subresource: str = ""


def resolve(path: str) -> Target:
    """`/api/v1/namespaces/default/pods/a/status` and its like; raises 404 for what is not served."""
    steps = [step for step in path.split("/") if step]
    if steps[:1] == ["api"] and len(steps) > 2:
        group, version, rest = "", steps[1], steps[2:]
    elif steps[:1] == ["apis"] and len(steps) > 3:
        group, version, rest = steps[1], steps[2], steps[3:]
    else:
        raise not_found()
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and kinds.find(group, version, rest[2]):
        namespace, rest = rest[1], rest[2:]
    kind = kinds.find(group, version, rest[0])
    if kind is None or len(rest) > 3 or (namespace and not kind.namespaced):
        raise not_found()
    if len(rest) > 1 and kind.namespaced and not namespace:
        raise not_found()
    subresource = rest[2] if len(rest) > 2 else ""
    if subresource and subresource not in (*kind.subresources, *(("status",) if kind.status else ())):
        raise not_found()
    return Target(kind, namespace, rest[1] if len(rest) > 1 else "", subresource)


def body(content: bytes, media: str) -> Any:  # type: ignore[explicit-any,unused-ignore]
    """What was sent, as JSON or YAML."""
    media = media.partition(";")[0].strip() or "application/json"
    try:
        if media.endswith("json"):
            return msgspec.json.decode(content) if content else {}
        if media.endswith("yaml"):
            return yaml.safe_load(content)
    except (msgspec.DecodeError, yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise bad_request(f"the object provided is unrecognized (must be of type JSON or YAML): {problem}") from None
    raise unsupported_media(media, _READABLE[:2])


def checked(kind: Kind, content: object, validation: str) -> tuple[Object, list[str]]:
    """An object of the right shape, and what to warn of; raises for unknown members where the client asks for it."""
    if not isinstance(content, dict):
        raise bad_request(f"the body is no {kind.name}")
    wrong = schema.mistyped(kind, content)
    if wrong:
        raise bad_request(f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: {wrong[0]}')
    unknown = [f'unknown field "{path}"' for path in schema.unknown_fields(kind, content)]
    if unknown and validation == "Strict":
        text = f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: strict decoding error: '
        raise bad_request(text + ", ".join(unknown))
    return content, unknown if validation == "Warn" else []


def deletion(content: object, query: Mapping[str, str]) -> Deletion:
    """From the body, DeleteOptions, or from the query."""
    options = content if isinstance(content, dict) else {}
    conditions = options.get("preconditions") or {}
    grace = options.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
    if grace is not None and not str(grace).isdecimal():
        raise bad_request(f"gracePeriodSeconds is a whole number, not {grace!r}")
    if not isinstance(conditions, dict):
        raise bad_request("preconditions is an object")
    return Deletion(
        None if grace is None else int(grace), conditions.get("uid", ""), conditions.get("resourceVersion", "")
    )


def number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if not text:
        return None
    if not text.isdecimal() or len(text) > 18:
        raise Refused(400, "BadRequest", f"{name} is a whole number, not {text!r:.40}")
    return int(text)
