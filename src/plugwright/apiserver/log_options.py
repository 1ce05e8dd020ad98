"""The options of a container's log in the query of a request, for example from `kubectl logs`."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from plugwright.apiserver import clock
from plugwright.apiserver.errors import bad_request
from plugwright.errors import StatusError

__all__ = ["LogOptions", "read"]

_LEAST = {  # the smallest valid number, and the message about smaller ones
    "tailLines": (0, "must be greater than or equal to 0"),
    "limitBytes": (1, "must be greater than 0"),
    "sinceSeconds": (1, "must be greater than 0"),
}
_FALSE = ("", "0", "false")


class LogOptions(Struct, frozen=True):
    """As in `kubectl logs`: `since` is the time of the first line, `tail` the number of earlier lines."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    since: datetime | None = None
    tail: int | None = None
    limit: int | None = None  # bytes


def read(query: Mapping[str, str], now: datetime) -> LogOptions:
    """Reads the options; raises the errors of an API server or a kubelet."""
    tail, limit, seconds = (_number(query, name) for name in _LEAST)
    if seconds is not None and query.get("sinceTime"):
        raise _invalid("", "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified")
    since = _time(query["sinceTime"]) if query.get("sinceTime") else None
    return LogOptions(
        follow=_is_true(query, "follow"),
        previous=_is_true(query, "previous"),
        timestamps=_is_true(query, "timestamps"),
        since=since if seconds is None else now - timedelta(seconds=min(seconds, 10**9)),
        tail=tail,
        limit=limit,
    )


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name) or ""
    if not text:
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 18):
        raise bad_request(f'strconv.ParseInt: parsing "{text:.40}": invalid syntax')
    least, message = _LEAST[name]
    if int(text) < least:
        raise _invalid(name, f"Invalid value: {int(text)}: {message}")
    return int(text)


def _time(text: str) -> datetime:
    try:
        moment = clock.parse(text)
    except ValueError:
        raise bad_request(f'parsing time "{text:.40}": it must be as in 2006-01-02T15:04:05Z') from None
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _is_true(query: Mapping[str, str], name: str) -> bool:
    return name in query and query[name].lower() not in _FALSE


def _invalid(field: str, message: str) -> StatusError:
    cause = {"reason": f"FieldValue{message.partition(' ')[0].rstrip(':')}", "message": message, "field": field}
    details = {"kind": "PodLogOptions", "causes": [cause]}
    return StatusError(422, "Invalid", f'PodLogOptions "" is invalid: {field}: {message}', details)
