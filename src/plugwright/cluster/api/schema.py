"""What objects are made of, from the models of lightkube: which members there are, and of what type.

The one home of those models on the server's side; they are loaded when the first object is checked.

OpenAPI 3 of what is served: enough for `kubectl explain` and for validation before sending. Pure.
"""

import functools
import re
import typing
from collections.abc import Iterator
from datetime import datetime

import msgspec

from plugwright import quantity
from plugwright.cluster.api.kinds import KINDS, Kind
from plugwright.cluster.store import Object

__all__ = [
    "document",
    "inner",
    "is_model",
    "item",
    "known",
    "members_of",
    "mistyped",
    "model_of",
    "shape",
    "unknown_fields",
]

# Maps of quantities: a number is one too, though the models call them texts.
_QUANTITIES = frozenset({"allocatable", "allocatedResources", "capacity", "limits", "overhead", "requests"})
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)
_JSON_NAMES = {dict: "object", list: "array", str: "string", bool: "bool", int: "number", float: "number"}

_NO_QUANTITY = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"  # as the server says
)


@functools.cache
def _models() -> dict[str, type]:
    from lightkube.models import coordination_v1, core_v1

    modules = {"": core_v1, "coordination.k8s.io": coordination_v1}
    return {kind.name: getattr(modules[kind.group], kind.name) for kind in KINDS}


def model_of(kind: Kind) -> type:
    return _models()[kind.name]


@functools.cache
def members_of(model: type) -> dict[str, object]:
    """By the name in JSON."""
    return {each.encode_name: each.type for each in msgspec.structs.fields(model)}


def unknown_fields(kind: Kind, content: Object) -> list[str]:
    """The paths of members that no object of this kind has, as a strict server names them."""
    return list(_unknown(model_of(kind), content, ""))


def _unknown(annotation: object, value: object, path: str) -> Iterator[str]:
    annotation = inner(annotation)
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from _unknown(item(annotation), each, f"{path}[{index}]")
    elif isinstance(value, dict) and is_model(annotation):
        known_members = members_of(typing.cast("type", annotation))
        for name, within in value.items():
            place = f"{path}.{name}" if path else name
            if name not in known_members:
                yield place
            else:
                yield from _unknown(known_members[name], within, place)


def known(kind: Kind, content: Object) -> Object:
    """Only what objects of this kind have: neither unknown members nor nulls, which mean nothing."""
    return typing.cast("Object", _known(model_of(kind), content))


def _known(annotation: object, value: object) -> object:
    annotation = inner(annotation)
    if isinstance(value, list):
        return [_known(item(annotation), each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = ((name, _member(annotation, name), within) for name, within in value.items() if within is not None)
    return {name: _known(within_type, within) for name, within_type, within in kept if within_type is not None}


def mistyped(kind: Kind, content: Object) -> Iterator[str]:
    """What has not the shape that it must have, so that nothing else needs to look; in the words of Go's decoder."""
    return _mistyped(model_of(kind), content, (kind.name, ""))


def _mistyped(annotation: object, value: object, place: tuple[str, str]) -> Iterator[str]:
    """`place` is the model that has the member, and the member's path."""
    annotation = inner(annotation)
    wanted = shape(annotation)
    if value is None or wanted is object:
        return
    if annotation is datetime:
        yield from _mistimed(value)
    elif not isinstance(value, wanted) or (wanted is int and not _is_int64(value)):
        yield _complaint(annotation, value, place)
    elif isinstance(value, list):
        for each in value:
            if each is None:
                yield _complaint(item(annotation), each, place)
            yield from _mistyped(item(annotation), each, place)
    elif isinstance(value, dict):
        yield from _mistyped_members(annotation, value, place)


def _is_int64(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _mistimed(value: object) -> Iterator[str]:
    try:
        if not isinstance(value, str) or not _TIME.fullmatch(value):
            raise ValueError
        datetime.fromisoformat(value)
    except ValueError:
        yield f'parsing time {msgspec.json.encode(value).decode():.80} as "2006-01-02T15:04:05Z07:00": cannot parse it'


def _mistyped_members(annotation: object, value: Object, place: tuple[str, str]) -> Iterator[str]:
    model, path = place
    if is_model(annotation):
        for name, within in value.items():
            inside = (typing.cast("type", annotation).__name__, f"{path}.{name}" if path else name)
            yield from _mistyped(_member(annotation, name) or object, within, inside)
    elif path.rpartition(".")[2] in _QUANTITIES:
        for within in value.values():
            if isinstance(within, bool | dict | list) or not quantity.is_quantity(within):
                yield _NO_QUANTITY
    else:
        for name, within in value.items():
            yield from _mistyped(_member(annotation, name) or object, within, (model, path))


def _complaint(annotation: object, value: object, place: tuple[str, str]) -> str:
    given = "null" if value is None else _JSON_NAMES[type(value)]
    return f"json: cannot unmarshal {given} into Go struct field {place[0]}.{place[1]} of type {_go_type(annotation)}"


def _go_type(annotation: object) -> str:
    annotation = inner(annotation)
    if is_model(annotation):
        return f"v1.{typing.cast('type', annotation).__name__}"
    wanted = shape(annotation)
    if wanted is list:
        return f"[]{_go_type(item(annotation))}"
    if wanted is dict:
        return f"map[string]{_go_type(_member(annotation, ''))}"
    return {str: "string", int: "int64", bool: "bool"}.get(wanted, "interface {}")


def shape(annotation: object) -> type:
    origin = typing.get_origin(annotation)
    if origin in (dict, list):
        return typing.cast("type", origin)
    if is_model(annotation):
        return dict
    if annotation is datetime:
        return str
    return annotation if annotation in (bool, dict, int, list, str) else object


def _member(annotation: object, name: str) -> object:
    """The type of a member; None for one that is not there."""
    if is_model(annotation):
        return members_of(typing.cast("type", annotation)).get(name)
    arguments = typing.get_args(annotation)
    return arguments[1] if len(arguments) == 2 else str if annotation is dict else object


def is_model(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)


def inner(annotation: object) -> object:
    """Without Optional."""
    within = [each for each in typing.get_args(annotation) if each is not type(None)]
    is_optional = typing.get_origin(annotation) is typing.Union and len(within) == 1
    return within[0] if is_optional else annotation


def item(annotation: object) -> object:
    arguments = typing.get_args(annotation)
    return arguments[0] if typing.get_origin(annotation) is list and arguments else object


_PRIMITIVES: dict[object, Object] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    datetime: {"type": "string", "format": "date-time"},
}
_FREE: Object = {"x-kubernetes-preserve-unknown-fields": True}


@functools.cache
def document(group: str, version: str) -> Object:
    """OpenAPI 3 of one group: its paths, as far as clients look at them, and its objects."""
    kinds = [kind for kind in KINDS if (kind.group, kind.version) == (group, version)]
    schemas: dict[str, Object] = {}
    for kind in kinds:
        name = _collect(model_of(kind), schemas)
        schemas[name] = {**schemas[name], "x-kubernetes-group-version-kind": [_gvk(kind)]}
    return {
        "openapi": "3.0.0",
        "info": {"title": "plugwright", "version": "1"},
        "paths": {path: item for kind in kinds for path, item in _paths(kind).items()},
        "components": {"schemas": schemas},
    }


def _gvk(kind: Kind) -> Object:
    return {"group": kind.group, "version": kind.version, "kind": kind.name}


def _paths(kind: Kind) -> dict[str, Object]:
    prefix = f"{kind.root}/namespaces/{{namespace}}/{kind.plural}" if kind.namespaced else f"{kind.root}/{kind.plural}"
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
        for name in ("dryRun", "fieldManager", "fieldValidation")
    ]
    operation = {"parameters": parameters, "x-kubernetes-group-version-kind": _gvk(kind), "responses": {}}
    return {
        prefix: {"post": {**operation, "x-kubernetes-action": "post"}},
        f"{prefix}/{{name}}": {
            "put": {**operation, "x-kubernetes-action": "put"},
            "patch": {**operation, "x-kubernetes-action": "patch"},
        },
    }


def _collect(model: type, schemas: dict[str, Object]) -> str:
    name = _name(model)
    if name not in schemas:
        schemas[name] = {}  # objects may contain themselves
        members = {member: _schema(hint, schemas) for member, hint in members_of(model).items()}
        schemas[name] = {"type": "object", "properties": members}
    return name


def _name(model: type) -> str:
    module = model.__module__.rpartition(".")[2]
    group, _, version = module.rpartition("_")
    if group == "meta":
        return f"io.k8s.apimachinery.pkg.apis.meta.{version}.{model.__name__}"
    return f"io.k8s.api.{group}.{version}.{model.__name__}"


def _schema(annotation: object, schemas: dict[str, Object]) -> Object:
    annotation = inner(annotation)
    if is_model(annotation):
        return {"$ref": f"#/components/schemas/{_collect(typing.cast('type', annotation), schemas)}"}
    if typing.get_origin(annotation) is list:
        return {"type": "array", "items": _schema(item(annotation), schemas)}
    if shape(annotation) is dict:
        values = typing.get_args(annotation)[1:] or ((str,) if annotation is dict else ())
        return {"type": "object", "additionalProperties": _schema(values[0], schemas) if values else _FREE}
    return _PRIMITIVES.get(annotation, _FREE)
