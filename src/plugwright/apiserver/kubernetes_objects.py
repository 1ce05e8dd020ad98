"""API objects as protobuf, decoded into the same dicts as their JSON, and encoded from them.

Both directions follow the table of `kubernetes_fields`, and write exactly the same bytes as Go. A field missing in the
table is an error in both: an object that loses a part is worse than a rejected one. `_FORMS` contains types with
another form in JSON (times, quantities, nested documents).
"""

import base64
import binascii
import functools
import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

from plugwright.apiserver.kubernetes_fields import Field, ObjectType, inner_type, object_type
from plugwright.errors import MalformedMessage, UnknownKind
from plugwright.protocol import wire_format

__all__ = ["MEDIA_TYPE", "WATCH_MEDIA_TYPE", "decode", "encode", "watch_frame"]

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
WATCH_MEDIA_TYPE = f"{MEDIA_TYPE};stream=watch"
_Document = dict[str, Any]
_Json: TypeAlias = Any
_MAGIC = b"k8s\x00"
_TYPE_META = frozenset({"apiVersion", "kind"})  # in the envelope, not in the message
_VARINT, _BYTES = 0, 2
_ZEROS = {"bool": False, "int32": 0, "int64": 0, "string": ""}
_BITS = {"int32": 31, "int64": 63}


def decode(content: bytes) -> _Document:
    """An object of any kind of the table, with `kind` and `apiVersion`."""
    if not content.startswith(_MAGIC):
        raise MalformedMessage("a protobuf body must begin with 'k8s\\0'")
    envelope = wire_format.read(content[len(_MAGIC) :])
    type_meta = wire_format.message(envelope, 1) or {}
    api_version, kind = wire_format.text(type_meta, 1), wire_format.text(type_meta, 2)
    raw = b"".join(value for value in envelope.get(2, ()) if isinstance(value, bytes))
    try:
        body = _read(_type_of(api_version, kind), raw)
    except (ValueError, OverflowError, OSError, RecursionError) as error:
        raise MalformedMessage(f"not a {kind}: {error}") from None
    return {"kind": kind, "apiVersion": api_version, **body}


def encode(document: Mapping[str, Any]) -> bytes:
    """An object, a list, or a Status; raises `UnknownKind` for another kind."""
    kind, api_version = str(document.get("kind", "")), str(document.get("apiVersion", ""))
    try:
        raw = _written(_type_of(api_version, kind), document)
    except (ValueError, TypeError, AttributeError) as error:
        raise MalformedMessage(f"not a {kind}: {error}") from None
    type_meta = wire_format.write(1, api_version.encode()) + wire_format.write(2, kind.encode())
    empty = wire_format.write(3, b"") + wire_format.write(4, b"")  # of encoding and content type
    return _MAGIC + wire_format.write(1, type_meta) + wire_format.write(2, raw) + empty


def watch_frame(event_type: str, document: Mapping[str, Any]) -> bytes:
    """One event of a watch, preceded by its length; the object inside has its own `k8s` and envelope."""
    raw = wire_format.write(1, encode(document))
    content = wire_format.write(1, event_type.encode()) + wire_format.write(2, raw)
    return len(content).to_bytes(4, "big") + content


def _type_of(api_version: str, kind: str) -> ObjectType:
    found = object_type(api_version, kind)
    if found is None:
        raise UnknownKind(f"kind {kind!r} of {api_version!r} has no protobuf message here, use JSON")
    return found


@functools.cache
def _by_number(found: ObjectType) -> dict[int, Field]:
    return {field.number: field for field in found.fields}


def _read(found: ObjectType, content: bytes) -> _Document:
    fields, document = _by_number(found), _Document()
    for number, values in wire_format.read(content).items():
        field = fields.get(number)
        if field is None:
            raise MalformedMessage(f"field {number} of {found.name} is not known here, and would be lost")
        if field.is_inline:
            document |= _read(inner_type(field), _last_bytes(field, values))
        elif field.is_map:
            entries = (wire_format.read(_as_bytes(field, value)) for value in values)
            document[field.name] = {wire_format.text(entry, 1): _map_value(field, entry) for entry in entries}
        elif field.is_list:
            document[field.name] = [item for value in values for item in _items(field, value)]
        elif (value := _value(field, values)) is not None:
            document[field.name] = value
    return document


def _items(field: Field, value: int | bytes) -> list[_Json]:
    """A single value, or those of a packed list of numbers."""
    if isinstance(value, bytes) and field.type in _BITS:
        return [_scalar(field, number) for number in wire_format.varints(value)]
    return [_single(field, value)]


def _map_value(field: Field, entry: wire_format.Fields) -> _Json:
    return _single(field, entry[2][-1] if entry.get(2) else b"")


def _value(field: Field, values: list[int | bytes]) -> _Json:
    """The value; None for a zero that JSON omits; of a message in several parts, all count."""
    last = b"".join(_as_bytes(field, value) for value in values) if field.is_message else values[-1] if values else b""
    value = _single(field, last)
    is_zero = not field.is_pointer and not field.is_always_written and value in (0, "") and field.is_scalar
    return None if is_zero else value


def _single(field: Field, value: int | bytes) -> _Json:
    if field.is_message:
        return _read(inner_type(field), _as_bytes(field, value))
    if field.is_scalar:
        return _scalar(field, value)
    return _FORMS[field.type][0](_as_bytes(field, value))


def _scalar(field: Field, value: int | bytes) -> _Json:
    if field.type == "bytes":
        return base64.b64encode(_as_bytes(field, value)).decode()
    if field.type == "string":
        return _as_bytes(field, value).decode()
    if not isinstance(value, int):
        raise MalformedMessage(f"{field.name} must be a number on the wire")
    if field.type == "bool":
        return value != 0
    signed = value - 2**64 if value >= 2**63 else value
    if not -(2 ** _BITS[field.type]) <= signed < 2 ** _BITS[field.type]:
        raise MalformedMessage(f"{field.name} must be of type {field.type}, got {signed}")
    return signed


def _as_bytes(field: Field, value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise MalformedMessage(f"{field.name} must not be a number on the wire")
    return value


def _last_bytes(field: Field, values: list[int | bytes]) -> bytes:
    return b"".join(_as_bytes(field, value) for value in values)


def _written(found: ObjectType, document: Mapping[str, Any]) -> bytes:
    for name in document:
        if found.member(name) is None and name not in _TYPE_META:
            raise MalformedMessage(f"{found.name} has no field {name!r}, which would be lost")
    return b"".join(_written_field(field, document) for field in found.fields)


def _written_field(field: Field, document: Mapping[str, Any]) -> bytes:
    if field.is_inline:
        inner = inner_type(field)
        members = {name: value for name, value in document.items() if inner.member(name)}
        return _delimited(field, _written(inner, members))
    value = document.get(field.name)
    if value is None:
        return _written_zero(field)
    if field.is_map:
        return b"".join(_delimited(field, _entry(field, key, value[key])) for key in sorted(value))
    if field.is_list:
        return b"".join(_written_value(field, item) for item in value)
    return _written_value(field, value)


def _entry(field: Field, key: str, value: _Json) -> bytes:
    """A map's entry after its field number: its key and its value, which have the numbers 1 and 2."""
    return wire_format.write(1, key.encode()) + wire_format.write(2, _content(field, value))


@functools.cache
def _written_zero(field: Field) -> bytes:
    """Go's encoding of an unset value, unless it is a pointer, a list or a map."""
    if field.is_pointer or field.is_list or field.is_map or field.type == "bytes":
        return b""
    if field.is_message:
        return _delimited(field, _written(inner_type(field), {}))
    return _written_value(field, _ZEROS[field.type]) if field.is_scalar else _delimited(field, _EMPTY_FORMS[field.type])


def _written_value(field: Field, value: _Json) -> bytes:
    if field.type in ("bool", "int32", "int64"):
        if isinstance(value, bool) != (field.type == "bool") or not isinstance(value, int):
            raise TypeError(f"{field.name} must be of type {field.type}, got {value!r:.40}")
        return _tag(field.number, _VARINT) + wire_format.varint(int(value))
    return _delimited(field, _content(field, value))


def _content(field: Field, value: _Json) -> bytes:
    if field.is_message:
        return _written(inner_type(field), value)
    if field.type == "string":
        return str(value).encode()
    if field.type == "bytes":
        try:
            return base64.b64decode(value, validate=True)
        except binascii.Error as error:
            raise ValueError(f"{field.name} must be in base64") from error
    return _FORMS[field.type][1](value)


def _delimited(field: Field, content: bytes) -> bytes:
    return _tag(field.number, _BYTES) + wire_format.varint(len(content)) + content


@functools.cache
def _tag(number: int, wire_kind: int) -> bytes:
    return wire_format.varint(number << 3 | wire_kind)


def _read_time(content: bytes) -> datetime | None:
    """The time; None for Go's zero time."""
    fields = wire_format.read(content)
    if not fields:
        return None
    moment = datetime.fromtimestamp(wire_format.integer(fields, 1), UTC)
    return moment.replace(microsecond=wire_format.integer(fields, 2) // 1000)


def _time_to_json(content: bytes) -> str | None:
    moment = _read_time(content)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ") if moment else None


def _micro_time_to_json(content: bytes) -> str | None:
    moment = _read_time(content)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if moment else None


def _written_time(text: str) -> bytes:
    moment = datetime.fromisoformat(text)
    return _numbers(math.floor(moment.timestamp()), moment.microsecond * 1000)


def _numbers(first: int, second: int) -> bytes:
    return _tag(1, _VARINT) + wire_format.varint(first) + _tag(2, _VARINT) + wire_format.varint(second)


def _int_or_string(content: bytes) -> int | str:
    fields = wire_format.read(content)
    return wire_format.text(fields, 3) if wire_format.integer(fields, 1) else wire_format.integer(fields, 2)


def _written_int_or_string(value: int | str) -> bytes:
    if isinstance(value, str):
        return _numbers(1, 0) + wire_format.write(3, value.encode())
    return _numbers(0, value) + wire_format.write(3, b"")


def _raw_to_json(content: bytes) -> _Json:
    raw = wire_format.read(content).get(1)
    return json.loads(raw[-1]) if raw and isinstance(raw[-1], bytes) and raw[-1] else None


def _written_raw(document: _Json) -> bytes:
    return wire_format.write(1, json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode())


# Types with another form in JSON: functions that decode and encode the bytes of the message.
_FORMS: dict[str, tuple[Callable[[bytes], Any], Callable[[Any], bytes]]] = {
    "IntOrString": (_int_or_string, _written_int_or_string),
    "MicroTime": (_micro_time_to_json, _written_time),
    "Quantity": (
        lambda content: wire_format.text(wire_format.read(content), 1) or "0",
        lambda value: wire_format.write(1, str(value).encode()),
    ),
    "RawJSON": (_raw_to_json, _written_raw),
    "Strings": (
        lambda content: wire_format.texts(wire_format.read(content), 1),
        lambda values: b"".join(wire_format.write(1, value.encode()) for value in values),
    ),
    "Time": (_time_to_json, _written_time),
}
_EMPTY_FORMS = {
    "IntOrString": _written_int_or_string(0),
    "MicroTime": b"",
    "Quantity": wire_format.write(1, b"0"),
    "RawJSON": b"",
    "Strings": b"",
    "Time": b"",
}
