"""Requests: the resource in the path, the object in the body, and the options in the query.

Bodies are JSON, YAML or protobuf. `schema` checks the types of an object's fields.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import yaml
from starlette.requests import ClientDisconnect, Request

from plugwright.apiserver import KUBERNETES_VERSION, kinds, kubernetes_objects
from plugwright.apiserver.errors import bad_request, invalid_options, not_found, unsupported_media_type
from plugwright.apiserver.kinds.not_served import KINDS_NOT_SERVED, NOT_SERVED_SUBRESOURCES, refusal
from plugwright.apiserver.registry import DeleteOptions, ResourcePath
from plugwright.apiserver.validation import invalid, unsupported
from plugwright.errors import MalformedMessage, StatusError, UnknownKind

__all__ = [
    "LARGEST_BODY",
    "check_depth",
    "delete_options",
    "field_manager",
    "field_validation",
    "is_dry_run",
    "is_true",
    "media_type",
    "missing_field_manager",
    "number",
    "read_body",
    "resource_path",
]

LARGEST_BODY = 3 * 1024 * 1024
_DEEPEST = 200  # levels of nesting; no Kubernetes object has thirty
_MEDIA_TYPES = ("application/json", "application/yaml", kubernetes_objects.MEDIA_TYPE)
_MOST_DIGITS = 18
_FIELD_VALIDATIONS = ("Ignore", "Warn", "Strict")
_OPTIONS = {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions", "DELETE": "DeleteOptions"}
_PROPAGATIONS = ("Foreground", "Background", "Orphan")
_LONGEST_MANAGER = 128


class _Loader(yaml.SafeLoader):
    """YAML limited to JSON's values: no aliases, which can expand without limit, and no dates."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not supported")
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def resource_path(path: str, release: str = KUBERNETES_VERSION) -> ResourcePath:
    """Parses `/api/v1/namespaces/default/pods/a/status` and the like; raises 404 for paths that are not served."""
    steps = [step for step in path.split("/") if step]
    if steps[:1] == ["api"] and len(steps) > 2:
        group, version, rest = "", steps[1], steps[2:]
    elif steps[:1] == ["apis"] and len(steps) > 3:
        group, version, rest = steps[1], steps[2], steps[3:]
    else:
        raise not_found()
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        _check_served(group, rest[2])
        if kinds.find(group, version, rest[2]):
            namespace, rest = rest[1], rest[2:]
    _check_served(group, rest[0])
    kind = kinds.find(group, version, rest[0])
    name, subresource = [*rest[1:], "", ""][:2]
    if kind is None or not kind.is_served_by(release) or len(rest) > 3 or (namespace and not kind.namespaced):
        raise not_found()
    if name and kind.namespaced and not namespace:
        raise not_found()
    if (kind.plural, subresource) in NOT_SERVED_SUBRESOURCES:
        raise not_found(refusal(NOT_SERVED_SUBRESOURCES[kind.plural, subresource]))
    if subresource and subresource not in (*kind.subresources, *(("status",) if kind.has_status else ())):
        raise not_found()
    return ResourcePath(kind, namespace, name, subresource)


def _check_served(group: str, plural: str) -> None:
    """Rejects a kind that discovery lists but that is not emulated, with an explanation."""
    for kind in KINDS_NOT_SERVED:
        if (kind.group, kind.plural) == (group, plural):
            raise not_found(kind.sentence)


async def read_body(request: Request, *, may_be_empty: bool = False) -> Any:  # type: ignore[explicit-any,unused-ignore]
    content = bytearray()
    try:
        async for piece in request.stream():
            content += piece
            if len(content) > LARGEST_BODY:
                raise StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {LARGEST_BODY}")
    except ClientDisconnect:
        raise bad_request("the connection ended before the body did") from None
    if not content and not may_be_empty:
        raise bad_request("the body of the request must not be empty")
    try:
        decoded = _decode(bytes(content), media_type(request))
    except UnknownKind as error:
        raise unsupported_media_type(_MEDIA_TYPES, str(error)) from None
    except (msgspec.MsgspecError, yaml.YAMLError, MalformedMessage, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise bad_request(f"the object provided is unrecognized (must be of type JSON or YAML): {problem}") from None
    check_depth(decoded)
    return decoded


def media_type(request: Request) -> str:
    return str(request.headers.get("content-type", "").partition(";")[0].strip().lower())


def _decode(content: bytes, media: str) -> Any:  # type: ignore[explicit-any,unused-ignore]
    if not content:
        return {}
    if media in ("", "application/json") or media.endswith("+json"):
        return msgspec.json.decode(content)
    if media in ("application/yaml", "application/x-yaml", "application/apply-patch+yaml"):
        # Encoded as JSON and decoded again, which rejects values that JSON cannot contain.
        return msgspec.json.decode(msgspec.json.encode(yaml.load(content, _Loader)))  # noqa: S506  a safe loader
    if media == kubernetes_objects.MEDIA_TYPE:
        return kubernetes_objects.decode(content)
    raise unsupported_media_type(_MEDIA_TYPES)


def check_depth(value: object) -> None:
    """Raises for a value nested too deeply for recursion."""
    depth, level = 0, [value]
    while level and depth <= _DEEPEST:
        depth += 1
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    if depth > _DEEPEST:
        raise bad_request(f"the object provided is nested deeper than {_DEEPEST} levels")


def delete_options(content: object, query: Mapping[str, str]) -> DeleteOptions:
    """The options from the body or, for the grace period and the propagation, from the query."""
    options = content if isinstance(content, dict) else {}
    if options.get("kind", "DeleteOptions") != "DeleteOptions":
        raise bad_request(f"a deletion takes DeleteOptions, got {options['kind']!r:.40}")
    preconditions = options.get("preconditions") or {}
    grace = options.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
    if grace is not None and (isinstance(grace, bool) or not _is_number(str(grace))):
        raise bad_request(f"gracePeriodSeconds must be an integer, got {grace!r:.40}")
    if not isinstance(preconditions, dict):
        raise bad_request("preconditions must be an object")
    seconds = None if grace is None else int(grace)
    uid, version = str(preconditions.get("uid") or ""), str(preconditions.get("resourceVersion") or "")
    return DeleteOptions(seconds, uid, version, _propagation({**query, **options}))


def _propagation(options: Mapping[str, object]) -> str:
    policy, orphans = options.get("propagationPolicy"), options.get("orphanDependents")
    if policy is not None and policy not in _PROPAGATIONS:
        errors = [*unsupported("propagationPolicy", f"{policy!s:.40}", (*_PROPAGATIONS, "nil"))]
        raise invalid_options("DeleteOptions", errors)
    if policy is not None and orphans is not None:
        text = "orphanDependents and deletionPropagation cannot be both set"
        raise invalid_options("DeleteOptions", [invalid("propagationPolicy", policy, text)])
    return str(policy or ("" if orphans is None else "Orphan" if orphans in (True, "true") else "Background"))


def is_dry_run(request: Request, content: object = None) -> bool:
    """Whether the query or, for a deletion, the body requests a dry run."""
    query = request.query_params
    in_body = content.get("dryRun") if isinstance(content, dict) else None
    stages = [*([query["dryRun"]] if query.get("dryRun") else []), *(in_body if isinstance(in_body, list) else [])]
    unknown = [stage for stage in stages if stage != "All"]
    if unknown:
        shown = [f"{stage!s:.40}" for stage in stages]
        raise invalid_options(_OPTIONS[request.method], [*unsupported("dryRun", shown, ("All",))])
    return bool(stages)


def field_validation(request: Request) -> str:
    validation = str(request.query_params.get("fieldValidation") or "Warn")
    if validation not in _FIELD_VALIDATIONS:
        errors = [*unsupported("fieldValidation", f"{validation:.40}", ("", *sorted(_FIELD_VALIDATIONS)))]
        raise invalid_options(_OPTIONS[request.method], errors)
    return validation


def field_manager(request: Request) -> str:
    manager = request.query_params.get("fieldManager") or request.headers.get("user-agent", "").partition("/")[0]
    printable = "".join(character for character in str(manager) if character.isprintable())
    return printable[:_LONGEST_MANAGER] or "unknown"


def missing_field_manager() -> StatusError:
    text = "Required value: is required for apply patch"
    cause = {"reason": "FieldValueRequired", "message": text, "field": "fieldManager"}
    details = {"group": "meta.k8s.io", "kind": "PatchOptions", "causes": [cause]}
    return StatusError(422, "Invalid", f'PatchOptions.meta.k8s.io "" is invalid: fieldManager: {text}', details)


def is_true(query: Mapping[str, str], name: str) -> bool:
    """A boolean in apimachinery's notation: `watch=True`, `watch=yes` and a bare `watch` are true."""
    return name in query and query[name].lower() not in ("0", "false")


def number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if not text:
        return None
    if not _is_number(text):
        raise bad_request(f'strconv.ParseInt: parsing "{text:.40}": invalid syntax')
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
