"""API objects as protobuf, read into the dicts that the same objects are as JSON, and written from them.

kubectl's typed clients send a few kinds so, and DRA drivers in Go those of `resource.k8s.io`; a client that sends
another kind has to use JSON. Both directions follow the messages' descriptors; what JSON writes in another form (times,
quantities, documents inside) is in `_FORMS`.
"""

import base64
import binascii
import json
import math
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message

from plugwright.errors import MalformedMessage
from plugwright.protocol.apimachinery.v1 import apimachinery_pb2 as pb
from plugwright.protocol.resourceapi.v1 import resourceapi_pb2 as resource_pb

__all__ = [
    "MEDIA_TYPE",
    "REQUEST_KINDS",
    "WATCH_MEDIA_TYPE",
    "UnknownKind",
    "decode",
    "encode",
    "is_written",
    "watch_frame",
]

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
WATCH_MEDIA_TYPE = f"{MEDIA_TYPE};stream=watch"
# Kinds that are only sent, never stored.
REQUEST_KINDS = frozenset(
    {"DeleteOptions", "Eviction", "SelfSubjectAccessReview", "SelfSubjectReview", "SelfSubjectRulesReview"}
)
_Document = dict[str, Any]
_Field: TypeAlias = Any  # a FieldDescriptor, of which protobuf has two types
_Json: TypeAlias = Any
_M = TypeVar("_M", bound=Message)
_MAGIC = b"k8s\x00"
# The objects whose messages are whole, so that nothing of them is lost where they are written.
_WRITTEN = {
    "resource.k8s.io/v1": ("DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice"),
    "v1": ("Node",),
}
# Go writes numbers and texts that are not set as 0 and "". In JSON a text is left out then, and these numbers are;
# where a value is a pointer in Go, what is written was set.
_UNSET_ZEROS = frozenset(
    {
        ("Condition", "observedGeneration"),
        ("DeviceSubRequest", "count"),
        ("ExactDeviceRequest", "count"),
        ("ObjectMeta", "generation"),
    }
)
_SET_TEXTS = frozenset({"DeviceAttribute"})
_INLINE = frozenset({"deviceConfiguration"})  # its members are those of the message around it


class UnknownKind(MalformedMessage):
    """An object of a kind that is not accepted as protobuf."""


def decode(content: bytes, kinds: Collection[str]) -> _Document:
    """An object of one of `kinds`, with `kind` and `apiVersion`; each has a message of its name."""
    if not content.startswith(_MAGIC):
        raise MalformedMessage("a protobuf body must begin with 'k8s\\0'")
    envelope = _parse(pb.Unknown, content[len(_MAGIC) :])
    kind = envelope.type_meta.kind
    if kind not in kinds:
        raise UnknownKind(f"kind {kind!r} is not accepted as protobuf, send it as JSON")
    try:
        body = _to_json(_parse(_message(kind), envelope.raw))
    except (ValueError, OverflowError, OSError, RecursionError) as error:
        raise MalformedMessage(f"not a {kind}: {error}") from None
    return {"kind": kind, "apiVersion": envelope.type_meta.api_version, **body}


def is_written(api_version: str, kind: str) -> bool:
    """Whether objects of this kind, and lists of them, can be encoded."""
    return kind.removesuffix("List") in _WRITTEN.get(api_version, ())


def encode(document: Mapping[str, Any]) -> bytes:
    """An object, a list, or a Status; raises `UnknownKind` for another kind."""
    kind, api_version = str(document.get("kind", "")), str(document.get("apiVersion", ""))
    if not is_written(api_version, kind) and kind != "Status":
        raise UnknownKind(f"kind {kind!r} is not written as protobuf")
    message = _message(kind)()
    try:
        _fill(message, document)
        raw = message.SerializeToString()
    except (ValueError, TypeError, EncodeError) as error:
        raise MalformedMessage(f"not a {kind}: {error}") from None
    envelope = pb.Unknown(raw=raw, content_encoding="", content_type="")
    envelope.type_meta.kind, envelope.type_meta.api_version = kind, api_version
    return _MAGIC + envelope.SerializeToString()


def watch_frame(event_type: str, document: Mapping[str, Any]) -> bytes:
    """One event of a watch, with its length before it."""
    event = pb.WatchEvent(type=event_type)
    event.object.raw = encode(document)
    content = event.SerializeToString()
    return len(content).to_bytes(4, "big") + content


def _message(kind: str) -> type[Message]:
    found: type[Message] | None = getattr(resource_pb, kind, None) or getattr(pb, kind, None)
    if found is None:
        raise UnknownKind(f"kind {kind!r} has no message")
    return found


def _parse(message: type[_M], content: bytes) -> _M:
    try:
        return message.FromString(content)
    except (DecodeError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"not a {message.DESCRIPTOR.name} message: {error}") from None


def _to_json(message: Message) -> _Document:
    document: _Document = {}
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            values = field.message_type.fields_by_name["value"]
            document[field.json_name] = {key: _value_to_json(values, inner) for key, inner in value.items()}
        elif field.is_repeated:
            document[field.json_name] = [_value_to_json(field, item) for item in value]
        elif field.json_name in _INLINE:
            document |= _to_json(value)
        elif (plain := _value_to_json(field, value)) is not None and not _is_unset(field, plain):
            document[field.json_name] = plain
    return document


def _is_unset(field: _Field, value: object) -> bool:
    owner = field.containing_type.name
    if value == "":
        return owner not in _SET_TEXTS
    return value == 0 and (owner, field.json_name) in _UNSET_ZEROS


def _value_to_json(field: _Field, value: _Json) -> _Json:
    if field.message_type is not None:
        form = _FORMS.get(field.message_type.name)
        return form[0](value) if form else _to_json(value)
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _fill(message: Message, document: Mapping[str, Any]) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.json_name in _INLINE:
            inner = getattr(message, field.name)
            if any(document.get(member.json_name) is not None for member in inner.DESCRIPTOR.fields):
                _fill(inner, document)
            continue
        value = document.get(field.json_name)
        if value is None:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _fill_map(message, field, value)
        elif field.is_repeated:
            for item in value:
                if field.message_type is not None:
                    _fill_message(getattr(message, field.name).add(), item)
                else:
                    getattr(message, field.name).append(_scalar(field, item))
        elif field.message_type is not None:
            inner = getattr(message, field.name)
            inner.SetInParent()
            _fill_message(inner, value)
        else:
            setattr(message, field.name, _scalar(field, value))


def _fill_map(message: Message, field: _Field, values: Mapping[str, Any]) -> None:
    entry = field.message_type.fields_by_name["value"]
    target = getattr(message, field.name)
    for key in sorted(values):
        if entry.message_type is not None:
            _fill_message(target[key], values[key])
        else:
            target[key] = _scalar(entry, values[key])


def _fill_message(message: Message, value: _Json) -> None:
    form = _FORMS.get(message.DESCRIPTOR.name)
    if form:
        form[1](message, value)
    else:
        _fill(message, value)


def _scalar(field: _Field, value: _Json) -> _Json:
    if field.type == FieldDescriptor.TYPE_BYTES:
        try:
            return base64.b64decode(value, validate=True)
        except binascii.Error as error:
            raise ValueError(f"{field.json_name} must be in base64") from error
    return value


def _time_to_json(time: _Json) -> str | None:
    """None for Go's zero time."""
    if not time.ListFields():
        return None
    moment = datetime.fromtimestamp(time.seconds, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _fill_time(time: _Json, text: str) -> None:
    moment = datetime.fromisoformat(text)
    time.seconds = math.floor(moment.timestamp())
    time.nanos = moment.microsecond * 1000


def _raw_to_json(raw: _Json) -> _Json:
    return json.loads(raw.raw) if raw.raw else None


def _fill_raw(raw: _Json, document: _Json) -> None:
    raw.raw = json.dumps(document, separators=(",", ":")).encode()


def _quantity_to_json(quantity: _Json) -> str:
    return str(quantity.string) or "0"


def _fill_quantity(quantity: _Json, value: object) -> None:
    quantity.string = str(value)


# What JSON writes in another form: how it is read from the message, and filled into one.
_FORMS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], None]]] = {
    "FieldsV1": (_raw_to_json, _fill_raw),
    "Quantity": (_quantity_to_json, _fill_quantity),
    "RawExtension": (_raw_to_json, _fill_raw),
    "Time": (_time_to_json, _fill_time),
}
