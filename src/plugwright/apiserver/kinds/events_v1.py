"""Events of `events.k8s.io/v1`: the same objects as in the core group, with other names and stricter rules.

Newer recorders of client-go write these, and `kubectl get events` reads the others: both share one store.
"""

from collections.abc import Iterator

from plugwright.apiserver.kinds import event_validation
from plugwright.apiserver.kinds.kind import Kind
from plugwright.apiserver.kinds.simple import EVENTS
from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import FieldError, invalid, required

__all__ = ["EVENTS_V1"]

_API_VERSION = "events.k8s.io/v1"
_STORED_NAMES = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_SERVED_NAMES = {stored: served for served, stored in _STORED_NAMES.items()}
_OMITTED_IF_EMPTY = ("reportingController", "reportingInstance")
_UNSET = ("firstTimestamp", "lastTimestamp", "count", "source")
_UNCHANGED = (
    "involvedObject", "reason", "message", "source", "firstTimestamp", "lastTimestamp", "count", "type", "eventTime",
    "action", "related", "reportingController", "reportingInstance",
)  # fmt: skip
_REGARDING = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")


def _to_stored(event: Object) -> Object:
    stored = {_STORED_NAMES.get(name, name): value for name, value in event.items()}
    return {**stored, "apiVersion": EVENTS.api_version, "kind": EVENTS.name}


def _from_stored(event: Object) -> Object:
    served = {_SERVED_NAMES.get(name, name): value for name, value in event.items()}
    present = {name: value for name, value in served.items() if value or name not in _OMITTED_IF_EMPTY}
    return {**present, "apiVersion": _API_VERSION, "kind": EVENTS.name}


def _validate_create(event: Object) -> Iterator[FieldError]:
    stored = _to_stored(event)
    yield from event_validation.validate(stored, "reportingController")
    yield from _validate_series(event)
    if not event.get("eventTime"):
        yield required("eventTime")
    kind = event.get("type") or ""
    if kind not in ("Normal", "Warning"):
        yield invalid("type", "", f"has invalid value: {kind}")
    for name in _UNSET:
        if stored.get(name):
            yield invalid(name, "", "needs to be unset")


def _validate_update(before: Object, after: Object) -> Iterator[FieldError]:
    yield from event_validation.validate(_to_stored(after), "reportingController")
    if (before.get("series") or {}) != (after.get("series") or {}):
        yield from _validate_series(after)
    for name in _UNCHANGED:
        served = _SERVED_NAMES.get(name, name)
        old, new = before.get(served) or None, after.get(served) or None
        if old != new:
            yield invalid(name, new, "field is immutable")


def _validate_series(event: Object) -> Iterator[FieldError]:
    series = event.get("series")
    if series is None:
        return
    if int(series.get("count") or 0) < 2:
        yield invalid("series.count", "", "should be at least 2")
    if not series.get("lastObservedTime"):
        yield required("series.lastObservedTime")


EVENTS_V1 = Kind(
    plural=EVENTS.plural,
    name=EVENTS.name,
    group="events.k8s.io",
    short_names=EVENTS.short_names,
    stored_as=EVENTS,
    to_stored=_to_stored,
    from_stored=_from_stored,
    allow_create_on_update=True,
    validate_create=_validate_create,
    validate_update=_validate_update,
    columns=EVENTS.columns,
    selectable_fields=frozenset({"reason", "type"}),
    computed_fields={
        "reportingController": lambda event: event.get("reportingComponent") or "",
        **{
            f"regarding.{name}": lambda event, name=name: (event.get("involvedObject") or {}).get(name, "")  # type: ignore[misc]
            for name in _REGARDING
        },
    },
)
