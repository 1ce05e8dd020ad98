"""Schemas of the kinds, from lightkube's models: which fields an object has, of which types, and their OpenAPI 3.

The only home of those models on the server's side: they are loaded when the first object is checked. Errors are in the
words of Go's JSON decoder. The OpenAPI document has what `kubectl explain` and client-side validation need.
"""

import base64
import functools
import importlib
import re
import sys
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import msgspec

from plugwright import quantity
from plugwright.apiserver.kinds import KINDS, Kind
from plugwright.apiserver.store import Object

__all__ = ["known_fields", "openapi", "type_errors", "unknown_fields"]

# Maps of quantities: the models call their values strings, but a number is a quantity too.
_QUANTITIES = frozenset(
    {"allocatable", "allocatedResources", "capacity", "consumedCapacity", "limits", "overhead", "requests"}
)
# Maps of other values than texts and quantities, which the models of lightkube do not tell apart: the values' model.
_MAPS_OF_MODELS = {
    ("CounterSet", "counters"): "Counter",
    ("Device", "attributes"): "DeviceAttribute",
    ("Device", "capacity"): "DeviceCapacity",
    ("Device", "nodeAllocatableResources"): "NodeAllocatableResource",
    ("DeviceCounterConsumption", "counters"): "Counter",
}
_BYTES = frozenset({("ConfigMap", "binaryData"), ("Secret", "data")})  # maps of values in base64
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/=\r\n]")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)
_JSON_NAMES = {dict: "object", list: "array", str: "string", bool: "bool", int: "number", float: "number"}
_GO_NAMES = {str: "string", int: "int64", bool: "bool"}
_QUANTITY_ERROR = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_OPENAPI_TYPES: dict[object, Object] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    datetime: {"type": "string", "format": "date-time"},
}
_ANY: Object = {"x-kubernetes-preserve-unknown-fields": True}


def unknown_fields(kind: Kind, content: Object) -> list[str]:
    """The paths of fields that objects of this kind do not have, as strict field validation names them."""
    return list(_unknown(_model_of(kind), content, ""))


def _unknown(annotation: object, value: object, path: str) -> Iterator[str]:
    annotation = _without_optional(annotation)
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown(_item_type(annotation), item, f"{path}[{index}]")
    elif isinstance(value, dict) and _is_model(annotation):
        fields = _fields_of(typing.cast("type", annotation))
        for name, inner in value.items():
            inner_path = f"{path}.{name}" if path else name
            if name not in fields:
                yield inner_path
            else:
                yield from _unknown(fields[name], inner, inner_path)


def known_fields(kind: Kind, content: Object) -> Object:
    """The object without unknown fields and without nulls, which mean the same as no field."""
    return typing.cast("Object", _known(_model_of(kind), content))


def _known(annotation: object, value: object) -> object:
    annotation = _without_optional(annotation)
    if isinstance(value, list):
        return [_known(_item_type(annotation), item) for item in value]
    if not isinstance(value, dict):
        return value
    members = ((name, _member_type(annotation, name), inner) for name, inner in value.items() if inner is not None)
    return {name: _known(member_type, inner) for name, member_type, inner in members if member_type is not None}


@dataclass(frozen=True, slots=True)
class _Field:
    """A field as Go's decoder names it: the model that has it, and its path."""

    model: str
    path: str

    def member(self, model: str, name: str) -> "_Field":
        return _Field(model, f"{self.path}.{name}" if self.path else name)


def type_errors(kind: Kind, content: Object) -> Iterator[str]:
    """Values that do not have the type of their field; without any, later code need not check types."""
    return _type_errors(_model_of(kind), content, _Field(kind.name, ""))


def _type_errors(annotation: object, value: object, field: _Field) -> Iterator[str]:
    annotation = _without_optional(annotation)
    expected = _json_type(annotation)
    if value is None or expected is object:
        return
    if annotation is datetime:
        yield from _time_errors(value)
    elif not isinstance(value, expected) or (expected is int and not _is_int64(value)):
        yield _unmarshal_error(annotation, value, field)
    elif isinstance(value, list):
        for item in value:
            if item is None:
                yield _unmarshal_error(_item_type(annotation), item, field)
            yield from _type_errors(_item_type(annotation), item, field)
    elif isinstance(value, dict):
        yield from _member_type_errors(annotation, value, field)


def _base64_errors(value: str) -> Iterator[str]:
    try:
        base64.b64decode(value, validate="\r" not in value and "\n" not in value)
    except ValueError:
        found = _NOT_BASE64.search(value)
        yield f"illegal base64 data at input byte {found.start() if found else len(value) // 4 * 4}"


def _is_int64(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _time_errors(value: object) -> Iterator[str]:
    try:
        if not isinstance(value, str) or not _TIME.fullmatch(value):
            raise ValueError
        datetime.fromisoformat(value)
    except ValueError:
        yield f'parsing time {msgspec.json.encode(value).decode():.80} as "2006-01-02T15:04:05Z07:00": cannot parse it'


def _member_type_errors(annotation: object, value: Object, field: _Field) -> Iterator[str]:
    if _is_model(annotation):
        model = typing.cast("type", annotation).__name__
        for name, inner in value.items():
            yield from _type_errors(_member_type(annotation, name) or object, inner, field.member(model, name))
    elif field.path.rpartition(".")[2] in _QUANTITIES and not typing.get_args(annotation):
        for inner in value.values():
            if isinstance(inner, bool | dict | list) or not quantity.is_quantity(inner):
                yield _QUANTITY_ERROR
    else:
        for name, inner in value.items():
            yield from _type_errors(_member_type(annotation, name) or object, inner, field)
            if (field.model, field.path) in _BYTES and isinstance(inner, str):
                yield from _base64_errors(inner)


def _unmarshal_error(annotation: object, value: object, field: _Field) -> str:
    got = "null" if value is None else _JSON_NAMES[type(value)]
    return (
        f"json: cannot unmarshal {got} into Go struct field {field.model}.{field.path} of type {_go_type(annotation)}"
    )


def _go_type(annotation: object) -> str:
    annotation = _without_optional(annotation)
    if _is_model(annotation):
        return f"v1.{typing.cast('type', annotation).__name__}"
    json_type = _json_type(annotation)
    if json_type is list:
        return f"[]{_go_type(_item_type(annotation))}"
    if json_type is dict:
        return f"map[string]{_go_type(_member_type(annotation, ''))}"
    return _GO_NAMES.get(json_type, "interface {}")


@functools.cache
def _model_of(kind: Kind) -> type:
    module = importlib.import_module(f"lightkube.models.{kind.schema_module}")
    return typing.cast("type", getattr(module, kind.name))


@functools.cache
def _fields_of(model: type) -> dict[str, object]:
    """Types by their names in JSON."""
    return {field.encode_name: _field_type(model, field) for field in msgspec.structs.fields(model)}


def _field_type(model: type, field: msgspec.structs.FieldInfo) -> object:
    values = _MAPS_OF_MODELS.get((model.__name__, field.encode_name))
    return dict[str, getattr(sys.modules[model.__module__], values)] if values else field.type  # type: ignore[misc]


def _json_type(annotation: object) -> type:
    """`object` for a field of any type."""
    origin = typing.get_origin(annotation)
    if origin in (dict, list):
        return typing.cast("type", origin)
    if _is_model(annotation):
        return dict
    if annotation is datetime:
        return str
    return annotation if annotation in (bool, dict, int, list, str) else object


def _member_type(annotation: object, name: str) -> object:
    """None for a field that the model does not have."""
    if _is_model(annotation):
        return _fields_of(typing.cast("type", annotation)).get(name)
    arguments = typing.get_args(annotation)
    return arguments[1] if len(arguments) == 2 else str if annotation is dict else object


def _item_type(annotation: object) -> object:
    arguments = typing.get_args(annotation)
    return arguments[0] if typing.get_origin(annotation) is list and arguments else object


def _is_model(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)


def _without_optional(annotation: object) -> object:
    arguments = [argument for argument in typing.get_args(annotation) if argument is not type(None)]
    is_optional = typing.get_origin(annotation) is typing.Union and len(arguments) == 1
    return arguments[0] if is_optional else annotation


@functools.cache
def openapi(group: str, version: str) -> Object:
    """The OpenAPI 3 document of one group: its kinds, and those of their paths that clients look at."""
    kinds = [kind for kind in KINDS if (kind.group, kind.version) == (group, version)]
    schemas: dict[str, Object] = {}
    for kind in kinds:
        name = _collect_schema(_model_of(kind), schemas)
        schemas[name] = {**schemas[name], "x-kubernetes-group-version-kind": [_group_version_kind(kind)]}
    return {
        "openapi": "3.0.0",
        "info": {"title": "plugwright", "version": "1"},
        "paths": {path: item for kind in kinds for path, item in _openapi_paths(kind).items()},
        "components": {"schemas": schemas},
    }


def _group_version_kind(kind: Kind) -> Object:
    return {"group": kind.group, "version": kind.version, "kind": kind.name}


def _openapi_paths(kind: Kind) -> dict[str, Object]:
    prefix = f"{kind.root}/namespaces/{{namespace}}/{kind.plural}" if kind.namespaced else f"{kind.root}/{kind.plural}"
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
        for name in ("dryRun", "fieldManager", "fieldValidation")
    ]
    operation = {
        "parameters": parameters,
        "x-kubernetes-group-version-kind": _group_version_kind(kind),
        "responses": {},
    }
    return {
        prefix: {"post": {**operation, "x-kubernetes-action": "post"}},
        f"{prefix}/{{name}}": {
            "put": {**operation, "x-kubernetes-action": "put"},
            "patch": {**operation, "x-kubernetes-action": "patch"},
        },
    }


def _collect_schema(model: type, schemas: dict[str, Object]) -> str:
    """Adds the model's schema and those that it refers to; returns its name."""
    group, _, version = model.__module__.rpartition(".")[2].rpartition("_")
    package = "io.k8s.apimachinery.pkg.apis.meta" if group == "meta" else f"io.k8s.api.{group}"
    name = f"{package}.{version}.{model.__name__}"
    if name not in schemas:
        schemas[name] = {}  # a model may refer to itself
        properties = {field: _openapi_type(annotation, schemas) for field, annotation in _fields_of(model).items()}
        schemas[name] = {"type": "object", "properties": properties}
    return name


def _openapi_type(annotation: object, schemas: dict[str, Object]) -> Object:
    annotation = _without_optional(annotation)
    if _is_model(annotation):
        return {"$ref": f"#/components/schemas/{_collect_schema(typing.cast('type', annotation), schemas)}"}
    if typing.get_origin(annotation) is list:
        return {"type": "array", "items": _openapi_type(_item_type(annotation), schemas)}
    if _json_type(annotation) is dict:
        values = typing.get_args(annotation)[1:] or ((str,) if annotation is dict else ())
        return {"type": "object", "additionalProperties": _openapi_type(values[0], schemas) if values else _ANY}
    return _OPENAPI_TYPES.get(annotation, _ANY)
