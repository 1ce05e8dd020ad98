"""The members that objects have, from the models of lightkube: for `fieldValidation`, and for OpenAPI.

The one home of those models on the server's side; they are loaded when the first object is checked.
"""

import functools
import typing
from collections.abc import Iterator

import msgspec

from plugwright.cluster.api.kinds import KINDS, Kind
from plugwright.cluster.store import Object

__all__ = ["mistyped", "openapi", "unknown_fields"]

_PRIMITIVES: dict[object, Object] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
}
_FREE: Object = {"x-kubernetes-preserve-unknown-fields": True}


def unknown_fields(kind: Kind, content: Object) -> list[str]:
    """The paths of members that no object of this kind has, as a strict server names them."""
    model = _models().get(kind.name)
    return list(_unknown(model, content, "")) if model else []


@functools.cache
def _models() -> dict[str, type]:
    from lightkube.models import coordination_v1, core_v1

    modules = {"": core_v1, "coordination.k8s.io": coordination_v1}
    return {kind.name: getattr(modules[kind.group], kind.name) for kind in KINDS}


@functools.cache
def _members(model: type) -> dict[str, object]:
    """By the name in JSON."""
    return {each.encode_name: each.type for each in msgspec.structs.fields(model)}


def _unknown(annotation: object, value: object, path: str) -> Iterator[str]:
    annotation = _inner(annotation)
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown(_item(annotation), item, f"{path}[{index}]")
    elif isinstance(value, dict) and _is_model(annotation):
        members = _members(typing.cast("type", annotation))
        for name, inner in value.items():
            place = f"{path}.{name}" if path else name
            if name not in members:
                yield place
            else:
                yield from _unknown(members[name], inner, place)


def mistyped(kind: Kind, content: Object) -> list[str]:
    """What has not the shape that it must have, so that nothing else needs to look: `spec.containers is a list`."""
    model = _models().get(kind.name)
    return list(_mistyped(model, content, "")) if model else []


def _mistyped(annotation: object, value: object, path: str) -> Iterator[str]:
    annotation = _inner(annotation)
    shape = _shape(annotation)
    if value is None or shape is object:
        return
    if not isinstance(value, shape) or (shape is int and isinstance(value, bool)):
        yield f"{path or 'it'} is {_SHAPES[shape]}"
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _mistyped(_item(annotation), item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _mistyped(_member(annotation, name), inner, f"{path}.{name}" if path else name)


_SHAPES = {dict: "an object", list: "a list", str: "a text", int: "a whole number", bool: "true or false"}


def _shape(annotation: object) -> type:
    origin = typing.get_origin(annotation)
    if origin in (dict, list):
        return typing.cast("type", origin)
    if _is_model(annotation):
        return dict
    return annotation if annotation in (bool, dict, int, list, str) else object


def _member(annotation: object, name: str) -> object:
    if _is_model(annotation):
        return _members(typing.cast("type", annotation)).get(name, object)
    arguments = typing.get_args(annotation)
    # Quantities are numbers too, though the models call them texts.
    return object if len(arguments) != 2 or arguments[1] is str else arguments[1]


def _is_model(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)


def _inner(annotation: object) -> object:
    """Without Optional."""
    inner = [each for each in typing.get_args(annotation) if each is not type(None)]
    is_optional = typing.get_origin(annotation) is typing.Union and len(inner) == 1
    return inner[0] if is_optional else annotation


def _item(annotation: object) -> object:
    arguments = typing.get_args(annotation)
    return arguments[0] if typing.get_origin(annotation) is list and arguments else object


@functools.cache
def openapi(group: str, version: str) -> Object:
    """OpenAPI 3 of one group: its paths, as far as clients look at them, and its objects."""
    kinds = [kind for kind in KINDS if (kind.group, kind.version) == (group, version)]
    schemas: dict[str, Object] = {}
    for kind in kinds:
        name = _collect(_models()[kind.name], schemas)
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
        for name in ("fieldManager", "fieldValidation")
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
        members = {member: _schema(hint, schemas) for member, hint in _members(model).items()}
        schemas[name] = {"type": "object", "properties": members}
    return name


def _name(model: type) -> str:
    module = model.__module__.rpartition(".")[2]
    group, _, version = module.rpartition("_")
    if group == "meta":
        return f"io.k8s.apimachinery.pkg.apis.meta.{version}.{model.__name__}"
    return f"io.k8s.api.{group}.{version}.{model.__name__}"


def _schema(annotation: object, schemas: dict[str, Object]) -> Object:
    annotation = _inner(annotation)
    if _is_model(annotation):
        return {"$ref": f"#/components/schemas/{_collect(typing.cast('type', annotation), schemas)}"}
    if typing.get_origin(annotation) is list:
        return {"type": "array", "items": _schema(_item(annotation), schemas)}
    if _shape(annotation) is dict:
        values = typing.get_args(annotation)[1:]
        return {"type": "object", "additionalProperties": _schema(values[0], schemas) if values else _FREE}
    return _PRIMITIVES.get(annotation, _FREE)
