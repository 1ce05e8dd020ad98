"""What a request is refused with: Kubernetes' `Status` objects, with the real codes, reasons and words."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from plugwright.cluster.api.kinds import Kind
from plugwright.cluster.api.patch import PatchFailed
from plugwright.cluster.store import Conflict, Exists, Expired, Missing, Object
from plugwright.errors import ClusterError

__all__ = [
    "Cause",
    "Refused",
    "bad_request",
    "from_store",
    "invalid",
    "not_found",
    "status_object",
    "unsupported_media",
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that is wrong with an object: where, and what about it."""

    field: str
    message: str  # as in `Invalid value: "x": must be an integer`
    reason: str = "FieldValueInvalid"


@dataclass
class Refused(Exception):
    code: int
    reason: str
    message: str
    details: Object = field(default_factory=dict)


def bad_request(message: str) -> Refused:
    return Refused(400, "BadRequest", message)


def not_found(message: str = "the server could not find the requested resource") -> Refused:
    return Refused(404, "NotFound", message)


def unsupported_media(taken: Sequence[str], why: str = "") -> Refused:
    text = f"the body of the request was in an unknown format - accepted media types include: {', '.join(taken)}"
    return Refused(415, "UnsupportedMediaType", f"{text}; {why}" if why else text)


def invalid(kind: Kind, name: str, causes: Sequence[Cause]) -> Refused:
    texts = [f"{cause.field}: {cause.message}" for cause in causes]
    listed = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = {
        **({"name": name} if name else {}),
        **({"group": kind.group} if kind.group else {}),
        "kind": kind.name,
        "causes": [{"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in causes],
    }
    return Refused(422, "Invalid", f'{_qualified(kind)} "{name}" is invalid: {listed}', details)


def _qualified(kind: Kind) -> str:
    return f"{kind.name}.{kind.group}" if kind.group else kind.name


def from_store(error: ClusterError) -> Refused:
    if isinstance(error, Expired):
        return Refused(410, "Expired", str(error))
    if isinstance(error, PatchFailed):
        # The reason is not told, as kube-apiserver does not: kubectl prints the message, and causes instead of it.
        logger.info("patch refused", extra={"error": str(error)})
        return Refused(422, "Invalid", "the server rejected our request due to an error in our request")
    if isinstance(error, Missing | Exists | Conflict):
        code, reason = {Missing: (404, "NotFound"), Exists: (409, "AlreadyExists"), Conflict: (409, "Conflict")}[
            type(error)
        ]
        return Refused(code, reason, str(error), {"name": error.key.name, "kind": error.key.kind})
    return Refused(500, "InternalError", str(error))


def status_object(refused: Refused) -> Object:
    """Always with details: kubectl looks into them without asking whether there are any."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": refused.message,
        "reason": refused.reason,
        "details": refused.details,
        "code": refused.code,
    }
