"""OpenAPI 3 of what is served: enough for `kubectl explain` and for validation before sending. Pure."""

import functools
import typing
from datetime import datetime

from plugwright.cluster.api import schema
from plugwright.cluster.api.kinds import KINDS, Kind
from plugwright.cluster.store import Object

__all__ = ["document"]

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
        name = _collect(schema.model_of(kind), schemas)
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
        members = {member: _schema(hint, schemas) for member, hint in schema.members(model).items()}
        schemas[name] = {"type": "object", "properties": members}
    return name


def _name(model: type) -> str:
    module = model.__module__.rpartition(".")[2]
    group, _, version = module.rpartition("_")
    if group == "meta":
        return f"io.k8s.apimachinery.pkg.apis.meta.{version}.{model.__name__}"
    return f"io.k8s.api.{group}.{version}.{model.__name__}"


def _schema(annotation: object, schemas: dict[str, Object]) -> Object:
    annotation = schema.inner(annotation)
    if schema.is_model(annotation):
        return {"$ref": f"#/components/schemas/{_collect(typing.cast('type', annotation), schemas)}"}
    if typing.get_origin(annotation) is list:
        return {"type": "array", "items": _schema(schema.item(annotation), schemas)}
    if schema.shape(annotation) is dict:
        values = typing.get_args(annotation)[1:] or ((str,) if annotation is dict else ())
        return {"type": "object", "additionalProperties": _schema(values[0], schemas) if values else _FREE}
    return _PRIMITIVES.get(annotation, _FREE)
