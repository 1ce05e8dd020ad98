"""Rejected requests: Kubernetes' `Status` objects, with kube-apiserver's codes, reasons and texts."""

import logging
from collections.abc import Sequence

from plugwright.apiserver.kinds import Kind
from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import FieldError
from plugwright.errors import ClusterError, PatchFailed, StatusError

__all__ = [
    "bad_request",
    "from_cluster_error",
    "invalid",
    "invalid_options",
    "method_not_allowed",
    "not_found",
    "status_object",
    "unsupported_media_type",
]

logger = logging.getLogger(__name__)


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def not_found(message: str = "the server could not find the requested resource") -> StatusError:
    return StatusError(404, "NotFound", message)


def method_not_allowed() -> StatusError:
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def unsupported_media_type(accepted: Sequence[str], reason: str = "") -> StatusError:
    text = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return StatusError(415, "UnsupportedMediaType", f"{text}; {reason}" if reason else text)


def invalid(kind: Kind, name: str, errors: Sequence[FieldError]) -> StatusError:
    texts = [*dict.fromkeys(f"{error.field}: {error.message}" for error in errors)]  # two rules can have the same text
    joined = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = {
        **({"name": name} if name else {}),
        **({"group": kind.group} if kind.group else {}),
        "kind": kind.name,
        "causes": [{"reason": error.reason, "message": error.message, "field": error.field} for error in errors],
    }
    qualified = f"{kind.name}.{kind.group}" if kind.group else kind.name
    return StatusError(422, "Invalid", f'{qualified} "{name}" is invalid: {joined}', details)


def invalid_options(kind: str, errors: Sequence[FieldError]) -> StatusError:
    """An error about the options of a request: `ListOptions` and the like."""
    texts = [*dict.fromkeys(f"{error.field}: {error.message}" for error in errors)]  # two rules can have the same text
    joined = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    causes = [{"reason": error.reason, "message": error.message, "field": error.field} for error in errors]
    details = {"group": "meta.k8s.io", "kind": kind, "causes": causes}
    return StatusError(422, "Invalid", f'{kind}.meta.k8s.io "" is invalid: {joined}', details)


def from_cluster_error(error: ClusterError) -> StatusError:
    """The response to a request that failed with this error."""
    if isinstance(error, StatusError):
        return error
    if isinstance(error, PatchFailed):
        # kube-apiserver omits the reason too: kubectl would print the causes instead of the message.
        logger.info("patch refused", extra={"error": str(error)})
        return StatusError(422, "Invalid", "the server rejected our request due to an error in our request")
    return StatusError(500, "InternalError", str(error))


def status_object(error: StatusError) -> Object:
    """The Status, always with details, which kubectl reads without checking for their existence."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": error.message,
        **({"reason": error.reason} if error.reason else {}),
        "details": error.details,
        "code": error.code,
    }
