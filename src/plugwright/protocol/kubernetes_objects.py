"""API objects as protobuf: what kubectl's typed clients send, read into the JSON that everyone else sends.

Only the kinds that kubectl sends so are known; for all others a client is told to send JSON.
"""

from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from plugwright.errors import MalformedMessage
from plugwright.protocol.apimachinery.v1 import apimachinery_pb2 as pb

__all__ = ["MEDIA_TYPE", "UnknownKind", "read"]

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_M = TypeVar("_M", bound=Message)
_MAGIC = b"k8s\x00"
_MAPS = frozenset({"annotations", "binaryData", "data", "labels"})  # their members are the user's
_MESSAGES: dict[str, type[Message]] = {
    "ConfigMap": pb.ConfigMap,
    "DeleteOptions": pb.DeleteOptions,
    "Eviction": pb.Eviction,
    "Namespace": pb.Namespace,
    "SelfSubjectAccessReview": pb.SelfSubjectAccessReview,
    "SelfSubjectReview": pb.SelfSubjectReview,
    "SelfSubjectRulesReview": pb.SelfSubjectRulesReview,
    "ServiceAccount": pb.ServiceAccount,
}


class UnknownKind(MalformedMessage):
    """An object of a kind that is read as JSON alone."""


def read(content: bytes) -> dict[str, Any]:
    """The object with its `kind` and `apiVersion`; raises MalformedMessage for bytes that are none."""
    if not content.startswith(_MAGIC):
        raise MalformedMessage("a protobuf body begins with 'k8s\\0'")
    envelope = _parsed(pb.Unknown, content[len(_MAGIC) :])
    kind = envelope.type_meta.kind
    if kind not in _MESSAGES:
        raise UnknownKind(f"no {kind or 'object without a kind'} is read as protobuf")
    found = _plain(json_format.MessageToDict(_parsed(_MESSAGES[kind], envelope.raw)))
    return {"kind": kind, "apiVersion": envelope.type_meta.api_version, **found}


def _parsed(message: type[_M], content: bytes) -> _M:
    try:
        return message.FromString(content)
    except (DecodeError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"no {message.DESCRIPTOR.name}: {error}") from None


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    """Without what Go's clients fill in though it is empty, and with numbers that are numbers again."""
    plain: dict[str, Any] = {}
    for name, value in found.items():
        if name == "gracePeriodSeconds":
            plain[name] = int(value)
        elif isinstance(value, dict):
            plain[name] = _plain(value) if name not in _MAPS else value
        elif value != "":
            plain[name] = value
    return plain
