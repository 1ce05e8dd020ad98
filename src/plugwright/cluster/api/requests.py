"""A request read: which object it is about, what it carries, and what it wants done with it.

The body of a request, read: JSON, YAML or the little protobuf that kubectl sends.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml
from starlette.requests import Request

from plugwright.cluster.api import kinds, schema
from plugwright.cluster.api.errors import Refused, bad_request, not_found, unsupported_media
from plugwright.cluster.api.kinds import Kind
from plugwright.cluster.api.registry import Deletion
from plugwright.cluster.store import Object
from plugwright.errors import MalformedMessage
from plugwright.protocol import kubernetes_objects

__all__ = [
    "LIMIT",
    "Target",
    "check_depth",
    "checked",
    "deletion",
    "is_dry",
    "manager",
    "media",
    "not_allowed",
    "number",
    "read",
    "received",
    "resolve",
    "validation",
]

LIMIT = 3 * 1024 * 1024
_DEEPEST = 200  # levels of nesting; no object of Kubernetes has thirty
_READABLE = ("application/json", "application/yaml", kubernetes_objects.MEDIA_TYPE)


class _Loader(yaml.SafeLoader):
    """YAML that is JSON in other letters: no aliases, which could make much out of little, and no dates."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read(content: bytes, media: str) -> Any:  # type: ignore[explicit-any,unused-ignore]
    try:
        found = _decoded(content, media)
    except kubernetes_objects.UnknownKind as error:
        raise unsupported_media(_READABLE, str(error)) from None
    except (msgspec.MsgspecError, yaml.YAMLError, MalformedMessage, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise bad_request(f"the object provided is unrecognized (must be of type JSON or YAML): {problem}") from None
    check_depth(found)
    return found


def check_depth(found: object) -> None:
    """What is too deep must not be walked recursively."""
    if _depth(found) > _DEEPEST:
        raise bad_request(f"the object provided is nested deeper than {_DEEPEST} levels")


def _decoded(content: bytes, media: str) -> Any:  # type: ignore[explicit-any,unused-ignore]
    if not content:
        return {}
    if media in ("", "application/json") or media.endswith("+json"):
        return msgspec.json.decode(content)
    if media in ("application/yaml", "application/x-yaml"):
        # Written as JSON and read again: what YAML has beyond it is refused.
        return msgspec.json.decode(msgspec.json.encode(yaml.load(content, _Loader)))  # noqa: S506  a safe loader
    if media == kubernetes_objects.MEDIA_TYPE:
        return kubernetes_objects.read(content)
    raise unsupported_media(_READABLE)


def _depth(found: object) -> int:
    depth, level = 0, [found]
    while level and depth <= _DEEPEST:
        depth += 1
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return depth


_LONGEST_NUMBER = 18  # digits
_VALIDATIONS = ("Ignore", "Warn", "Strict")
_LONGEST_MANAGER = 128


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
    return _target(kind, namespace, rest[1:])


def _target(kind: Kind, namespace: str, rest: list[str]) -> Target:
    if rest and kind.namespaced and not namespace:
        raise not_found()
    subresource = rest[1] if len(rest) > 1 else ""
    if subresource and subresource not in (*kind.subresources, *(("status",) if kind.status else ())):
        raise not_found()
    return Target(kind, namespace, rest[0] if rest else "", subresource)


def not_allowed() -> Refused:
    return Refused(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


async def received(request: Request) -> Any:  # type: ignore[explicit-any,unused-ignore]
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > LIMIT:
            raise Refused(413, "RequestEntityTooLarge", f"Request entity too large: limit is {LIMIT}")
    return read(bytes(content), media(request))


def media(request: Request) -> str:
    return str(request.headers.get("content-type", "").partition(";")[0].strip().lower())


def checked(kind: Kind, content: object, strictness: str) -> tuple[Object, list[str]]:
    """An object of the right shape, and what to warn of; raises for unknown members where the client asks for it."""
    if not isinstance(content, dict):
        raise bad_request(f"the body is no {kind.name}")
    said = f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: '
    wrong = next(schema.mistyped(kind, content), None)
    if wrong:
        raise bad_request(said + wrong)
    unknown = [f'unknown field "{path}"' for path in schema.unknown_fields(kind, content)]
    if unknown and strictness == "Strict":
        raise bad_request(f"{said}strict decoding error: {', '.join(unknown)}")
    return schema.known(kind, content), unknown if strictness == "Warn" else []


def deletion(content: object, query: Mapping[str, str]) -> Deletion:
    """From the body, DeleteOptions, or from the query."""
    options = content if isinstance(content, dict) else {}
    conditions = options.get("preconditions") or {}
    grace = options.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
    if grace is not None and (isinstance(grace, bool) or not _is_number(str(grace))):
        raise bad_request(f"gracePeriodSeconds is a whole number, not {grace!r:.40}")
    if not isinstance(conditions, dict):
        raise bad_request("preconditions is an object")
    seconds = None if grace is None else int(grace)
    return Deletion(seconds, str(conditions.get("uid") or ""), str(conditions.get("resourceVersion") or ""))


def is_dry(query: Mapping[str, str], content: object = None) -> bool:
    """Whether nothing is to be stored; for deletions the body says so too."""
    within = content.get("dryRun") if isinstance(content, dict) else None
    given = [*([query["dryRun"]] if query.get("dryRun") else []), *(within if isinstance(within, list) else [])]
    unknown = [each for each in given if each != "All"]
    if unknown:
        text = f'dryRun: Unsupported value: "{unknown[0]!s:.40}": supported values: "All"'
        raise Refused(422, "Invalid", f"is invalid: {text}")
    return bool(given)


def validation(request: Request) -> str:
    given = str(request.query_params.get("fieldValidation") or "Warn")
    if given not in _VALIDATIONS:
        supported = ", ".join(f'"{each}"' for each in _VALIDATIONS)
        raise Refused(
            422, "Invalid", f'fieldValidation: Unsupported value: "{given:.40}": supported values: {supported}'
        )
    return given


def manager(request: Request) -> str:
    given = request.query_params.get("fieldManager") or request.headers.get("user-agent", "").partition("/")[0]
    shown = "".join(each for each in str(given) if each.isprintable())
    return shown[:_LONGEST_MANAGER] or "unknown"


def number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if not text:
        return None
    if not _is_number(text):
        raise bad_request(f'strconv.ParseInt: parsing "{text:.40}": invalid syntax')
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER
