"""Validation of Events: in the namespace of their object and, with an `eventTime`, with a reporter and reason."""

from collections.abc import Iterator

from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import FieldError, invalid, invalid_for, qualified_name_errors, required

__all__ = ["prepare_event", "validate"]

_LONGEST_NAME, _LONGEST_TEXT = 128, 1024
_WRONG_NAMESPACE = "does not match event.namespace"


def prepare_event(event: Object) -> Object:
    """The event with the fields that are stored even if they are empty."""
    defaults: Object = {"reportingComponent": "", "reportingInstance": "", "source": {}, "eventTime": None}
    return {**defaults, "firstTimestamp": None, "lastTimestamp": None, **event}


def validate(event: Object, reporter_field: str = "reportingComponent") -> Iterator[FieldError]:
    """`reporter_field` is its name in the group that the client writes to."""
    namespace = str(event["metadata"].get("namespace") or "")
    involved = str((event.get("involvedObject") or {}).get("namespace") or "")
    field = "involvedObject.namespace"
    if not event.get("eventTime"):
        if (involved or "default") != namespace:
            yield invalid(field, involved, _WRONG_NAMESPACE)
        return
    if not involved and namespace not in ("default", "kube-system"):
        yield invalid(field, involved, _WRONG_NAMESPACE)
    reporter = str(event.get("reportingComponent") or "")
    if not reporter:
        yield required(reporter_field)
    yield from invalid_for(reporter_field, reporter, qualified_name_errors(reporter))
    for name in ("reportingInstance", "action", "reason"):
        text = str(event.get(name) or "")
        if not text:
            yield required(name)
        elif len(text) > _LONGEST_NAME:
            yield invalid(name, "", f"can have at most {_LONGEST_NAME} characters")
    if len(str(event.get("message") or "")) > _LONGEST_TEXT:
        yield invalid("message", "", f"can have at most {_LONGEST_TEXT} characters")
