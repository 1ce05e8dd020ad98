"""Schemas of the kinds, from the table of fields: an object's fields and their types, and their OpenAPI 3.

Errors have the text of Go's JSON decoder. The OpenAPI document is sufficient for `kubectl explain` and client-side
validation.
need.
"""

import base64
import functools
import re
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

import msgspec

from plugwright import quantity
from plugwright.apiserver import kubernetes_fields
from plugwright.apiserver.errors import bad_request
from plugwright.apiserver.kinds import KINDS, Kind
from plugwright.apiserver.kubernetes_fields import Field
from plugwright.apiserver.store import Object

__all__ = ["checked_object", "known_fields", "openapi", "type_errors", "unknown_fields"]

_TYPE_META = ("apiVersion", "kind")  # of whole objects; the table has the fields of protobuf, where these are separate
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/=\r\n]")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)
_TIMES = ("MicroTime", "Time")
_JSON_NAMES = {dict: "object", list: "array", str: "string", bool: "bool", int: "number", float: "number"}
_JSON_TYPES = {"bool": bool, "bytes": str, "int32": int, "int64": int, "string": str, "RawJSON": dict}
_GO_NAMES = {bool: "bool", dict: "map[string]interface {}", int: "int64", str: "string"}
_QUANTITY_ERROR = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_OPENAPI_TYPES: dict[str, Object] = {
    "bool": {"type": "boolean"},
    "bytes": {"type": "string"},
    "int32": {"type": "integer"},
    "int64": {"type": "integer"},
    "string": {"type": "string"},
    "MicroTime": {"type": "string", "format": "date-time"},
    "Quantity": {"type": "string"},
    "Time": {"type": "string", "format": "date-time"},
}
_ANY: Object = {"x-kubernetes-preserve-unknown-fields": True}


class _Shape(NamedTuple):
    """The type of a value: one in the table, or a list or map of it."""

    name: str
    is_list: bool = False
    is_map: bool = False

    @property
    def item(self) -> "_Shape":
        return _Shape(self.name)

    @property
    def is_object(self) -> bool:
        return "." in self.name and not self.is_list and not self.is_map

    @property
    def json_type(self) -> type:
        """The type in JSON; `object` for a value of any type."""
        if self.is_list:
            return list
        return dict if self.is_map or self.is_object else _JSON_TYPES.get(self.name, object)

    @property
    def go_name(self) -> str:
        if self.is_list or self.is_map:
            return f"{'[]' if self.is_list else 'map[string]'}{self.item.go_name}"
        if self.is_object:
            return f"v1.{self.name.partition('.')[2]}"
        return "string" if self.name in (*_TIMES, "Quantity") else _GO_NAMES.get(self.json_type, "interface {}")

    def member(self, name: str) -> "_Shape | None":
        """The type of a member; None for a field that objects of this type do not have."""
        if not self.is_object:
            return self.item if self.is_map else _Shape("")
        field = kubernetes_fields.members(self.name).get(name)
        return _of_field(field) if field else None


def _of_field(field: Field) -> _Shape:
    return _Shape(field.type, field.is_list, field.is_map)


def checked_object(kind: Kind, content: object, validation: str) -> tuple[Object, list[str]]:
    """The object without its unknown fields, and the warnings about them; `Strict` rejects them."""
    if not isinstance(content, dict):
        raise bad_request(f"the body must be an object of kind {kind.name}")
    context = f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: '
    type_error = next(type_errors(kind, content), None)
    if type_error:
        raise bad_request(context + type_error)
    unknown = [f'unknown field "{path}"' for path in unknown_fields(kind, content)]
    if unknown and validation == "Strict":
        raise bad_request(f"{context}strict decoding error: {', '.join(unknown)}")
    return known_fields(kind, content), unknown if validation == "Warn" else []


def unknown_fields(kind: Kind, content: Object) -> list[str]:
    """The paths of unknown fields, in the notation of strict field validation."""
    shape = _shape_of(kind)
    return [
        path
        for name, value in content.items()
        if name not in _TYPE_META
        for path in _unknown_member(shape, name, value, name)
    ]


def _unknown(shape: _Shape, value: object, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown(shape.item, item, f"{path}[{index}]")
    elif isinstance(value, dict) and shape.is_object:
        for name, inner in value.items():
            yield from _unknown_member(shape, name, inner, f"{path}.{name}")


def _unknown_member(shape: _Shape, name: str, value: object, path: str) -> Iterator[str]:
    member = shape.member(name)
    if member is None:
        yield path
    else:
        yield from _unknown(member, value, path)


def known_fields(kind: Kind, content: Object) -> Object:
    """The object without unknown fields and without nulls, which mean the same as no field."""
    type_meta = {name: content[name] for name in _TYPE_META if content.get(name) is not None}
    return {**type_meta, **_known_members(_shape_of(kind), content)}


def _known(shape: _Shape, value: object) -> object:
    if isinstance(value, list):
        return [_known(shape.item, item) for item in value]
    return _known_members(shape, value) if isinstance(value, dict) else value


def _known_members(shape: _Shape, value: Object) -> Object:
    members = ((name, shape.member(name), inner) for name, inner in value.items() if inner is not None)
    return {name: _known(member, inner) for name, member, inner in members if member is not None}


class _FieldPath(NamedTuple):
    """A field in the notation of Go's decoder: its type, and its path."""

    owner: str
    path: str

    def member(self, shape: _Shape, name: str) -> "_FieldPath":
        return _FieldPath(shape.name.partition(".")[2], f"{self.path}.{name}" if self.path else name)


def type_errors(kind: Kind, content: Object) -> Iterator[str]:
    """Values with the wrong type for their field; if there are none, later code need not check types."""
    field, shape = _FieldPath(kind.name, ""), _shape_of(kind)
    for name in _TYPE_META:
        yield from _type_errors(_Shape("string"), content.get(name), field.member(shape, name))
    yield from _type_errors(shape, content, field)


def _type_errors(shape: _Shape, value: object, field: _FieldPath) -> Iterator[str]:
    expected = shape.json_type
    if value is None:
        return
    if shape in map(_Shape, _TIMES):
        yield from _time_errors(value)
    elif shape == _Shape("Quantity"):
        yield from _quantity_errors(value)
    elif not isinstance(value, expected) or (expected is int and not _is_int64(value)):
        yield _unmarshal_error(shape, value, field)
    elif shape.is_list and isinstance(value, list):
        for item in value:
            if item is None:
                yield _unmarshal_error(shape.item, item, field)
            yield from _type_errors(shape.item, item, field)
    elif isinstance(value, dict):
        yield from _member_type_errors(shape, value, field)
    elif shape.name == "bytes" and isinstance(value, str):
        yield from _base64_errors(value)


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


def _quantity_errors(value: object) -> Iterator[str]:
    if isinstance(value, bool | dict | list) or not quantity.is_quantity(value):
        yield _QUANTITY_ERROR


def _member_type_errors(shape: _Shape, value: Object, field: _FieldPath) -> Iterator[str]:
    for name, inner in value.items():
        if shape.is_object:
            yield from _type_errors(shape.member(name) or _Shape(""), inner, field.member(shape, name))
        elif shape.is_map:
            yield from _type_errors(shape.item, inner, field)
            if inner is None and shape.name == "Quantity":
                yield _QUANTITY_ERROR


def _unmarshal_error(shape: _Shape, value: object, field: _FieldPath) -> str:
    got = "null" if value is None else _JSON_NAMES[type(value)]
    return f"json: cannot unmarshal {got} into Go struct field {field.owner}.{field.path} of type {shape.go_name}"


def _shape_of(kind: Kind) -> _Shape:
    return _Shape(kind.object_type.name)


@functools.cache
def openapi(group: str, version: str, release: str) -> Object:
    """The OpenAPI 3 document of one group: its kinds, and those of their paths that clients use."""
    kinds = [kind for kind in KINDS if (kind.group, kind.version) == (group, version) and kind.is_served_by(release)]
    schemas: dict[str, Object] = {}
    for kind in kinds:
        name = _collect_schema(kind.object_type.name, schemas)
        schemas[name]["properties"] = {
            **dict.fromkeys(_TYPE_META, _OPENAPI_TYPES["string"]),
            **schemas[name]["properties"],
        }
        schemas[name]["x-kubernetes-group-version-kind"] = [_group_version_kind(kind)]
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


def _collect_schema(type_name: str, schemas: dict[str, Object]) -> str:
    """Adds the type's schema and those to which it refers; returns its name."""
    group, _, name = type_name.partition(".")
    package = "io.k8s.apimachinery.pkg.apis.meta" if group == "meta" else f"io.k8s.api.{group}"
    name = f"{package}.v1.{name}"
    if name not in schemas:
        schemas[name] = {}  # a type can refer to itself
        fields = kubernetes_fields.members(type_name).items()
        properties = {field: _openapi_type(_of_field(found), schemas) for field, found in fields}
        schemas[name] = {"type": "object", "properties": properties}
    return name


def _openapi_type(shape: _Shape, schemas: dict[str, Object]) -> Object:
    if shape.is_list:
        return {"type": "array", "items": _openapi_type(shape.item, schemas)}
    if shape.is_map:
        return {"type": "object", "additionalProperties": _openapi_type(shape.item, schemas)}
    if shape.is_object:
        return {"$ref": f"#/components/schemas/{_collect_schema(shape.name, schemas)}"}
    if shape.name == "RawJSON":
        return {"type": "object", "additionalProperties": _ANY}
    return _OPENAPI_TYPES.get(shape.name, _ANY)
