"""API objects as protobuf, decoded into the dicts that the same objects are as JSON.

kubectl's typed clients send a few kinds so; a client that sends another kind has to use JSON.
"""

from collections.abc import Collection
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from plugwright.errors import MalformedMessage
from plugwright.protocol.apimachinery.v1 import apimachinery_pb2 as pb

__all__ = ["MEDIA_TYPE", "REQUEST_KINDS", "UnknownKind", "decode"]

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
# Kinds that are only sent, never stored.
REQUEST_KINDS = frozenset(
    {"DeleteOptions", "Eviction", "SelfSubjectAccessReview", "SelfSubjectReview", "SelfSubjectRulesReview"}
)
_M = TypeVar("_M", bound=Message)
_MAGIC = b"k8s\x00"
_MAPS = frozenset({"annotations", "binaryData", "data", "labels"})  # their keys are the user's


class UnknownKind(MalformedMessage):
    """An object of a kind that is not accepted as protobuf."""


def decode(content: bytes, kinds: Collection[str]) -> dict[str, Any]:
    """An object of one of `kinds`, with `kind` and `apiVersion`; each has a message in apimachinery.proto."""
    if not content.startswith(_MAGIC):
        raise MalformedMessage("a protobuf body must begin with 'k8s\\0'")
    envelope = _parse(pb.Unknown, content[len(_MAGIC) :])
    kind = envelope.type_meta.kind
    if kind not in kinds:
        raise UnknownKind(f"kind {kind!r} is not accepted as protobuf, send it as JSON")
    message: type[Message] = getattr(pb, kind)
    body = _as_json(json_format.MessageToDict(_parse(message, envelope.raw)))
    return {"kind": kind, "apiVersion": envelope.type_meta.api_version, **body}


def _parse(message: type[_M], content: bytes) -> _M:
    try:
        return message.FromString(content)
    except (DecodeError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"not a {message.DESCRIPTOR.name} message: {error}") from None


def _as_json(decoded: dict[str, Any]) -> dict[str, Any]:
    """Without the empty strings that Go's clients fill in, and with int64 values as numbers."""
    plain: dict[str, Any] = {}
    for name, value in decoded.items():
        if name == "gracePeriodSeconds":
            plain[name] = int(value)
        elif isinstance(value, dict):
            plain[name] = _as_json(value) if name not in _MAPS else value
        elif value != "":
            plain[name] = value
    return plain
