"""Durations and timestamps."""

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from plugwright.allocator.cel.cel_values import Duration, EvaluationError, Timestamp
from plugwright.allocator.cel.dispatch import function
from plugwright.allocator.cel.functions import integer

__all__ = ["parse_duration", "parse_timestamp"]

_SECOND = 10**9
_UNITS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": _SECOND,
    "m": 60 * _SECOND,
    "h": 3600 * _SECOND,
}
_PART = re.compile(r"(\d*)(?:\.(\d*))?(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?(Z|[+-]\d\d:\d\d)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET = re.compile(r"([+-]?)(\d\d):(\d\d)", re.ASCII)


@function("duration", str)
def parse_duration(text: str) -> Duration:
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    total, at = 0, 0
    while match := _PART.match(rest, at):
        if not (match[1] or match[2]) or len(match[0]) > 40:
            break
        unit, fraction = _UNITS[match[3]], match[2] or ""
        total += int(match[1] or 0) * unit + int(fraction or 0) * unit // 10 ** len(fraction)
        at = match.end()
    if (rest != "0" and (at == 0 or at < len(rest))) or not -(1 << 63) <= total < 1 << 63:
        raise EvaluationError("type conversion error from 'string' to 'google.protobuf.Duration'")
    return Duration(sign * total)


@function("timestamp", str)
def parse_timestamp(text: str) -> Timestamp:
    match = _TIMESTAMP.fullmatch(text)
    try:
        if match is None:
            raise ValueError(text)
        moment = datetime.fromisoformat(match[1] + match[3].replace("Z", "+00:00"))
        seconds = (moment - _EPOCH) // timedelta(seconds=1)
    except (ValueError, OverflowError):
        raise EvaluationError("type conversion error from 'string' to 'google.protobuf.Timestamp'") from None
    return Timestamp(seconds * _SECOND + int((match[2] or "0").ljust(9, "0")))


def _ranged(nanoseconds: int) -> Timestamp:
    if not -62135596800 <= nanoseconds // _SECOND <= 253402300799:
        raise EvaluationError("timestamp overflow")
    return Timestamp(nanoseconds)


@function("string", Duration)
def _duration_text(value: Duration) -> str:
    seconds, rest = divmod(abs(value.nanoseconds), _SECOND)
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{'-' if value.nanoseconds < 0 else ''}{seconds}{fraction}s"


@function("string", Timestamp)
def _timestamp_text(value: Timestamp) -> str:
    moment, rest = _moment(value, UTC), value.nanoseconds % _SECOND
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def _zone(name: str) -> tzinfo:
    if match := _OFFSET.fullmatch(name):
        offset = timedelta(hours=int(match[2]), minutes=int(match[3]))
        return timezone(-offset if match[1] == "-" else offset)
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise EvaluationError(f"unknown time zone {name}") from None


def _moment(value: Timestamp, zone: tzinfo) -> datetime:
    return (_EPOCH + timedelta(seconds=value.nanoseconds // _SECOND)).astimezone(zone)


_FIELDS = {
    "getFullYear": lambda moment: moment.year,
    "getMonth": lambda moment: moment.month - 1,
    "getDate": lambda moment: moment.day,
    "getDayOfMonth": lambda moment: moment.day - 1,
    "getDayOfWeek": lambda moment: moment.isoweekday() % 7,
    "getDayOfYear": lambda moment: moment.timetuple().tm_yday - 1,
    "getHours": lambda moment: moment.hour,
    "getMinutes": lambda moment: moment.minute,
    "getSeconds": lambda moment: moment.second,
}
for _name, _field in _FIELDS.items():
    function(_name, Timestamp)(lambda value, read=_field: read(_moment(value, UTC)))
    function(_name, Timestamp, str)(lambda value, zone, read=_field: read(_moment(value, _zone(zone))))
for _name, _unit in (("getHours", "h"), ("getMinutes", "m"), ("getSeconds", "s"), ("getMilliseconds", "ms")):
    function(_name, Duration)(lambda value, unit=_UNITS[_unit]: int(value.nanoseconds / unit))

function("getMilliseconds", Timestamp)(lambda value: value.nanoseconds % _SECOND // 10**6)
function("getMilliseconds", Timestamp, str)(lambda value, zone: value.nanoseconds % _SECOND // 10**6)
function("duration", Duration)(lambda value: value)
function("timestamp", Timestamp)(lambda value: value)
function("timestamp", int)(lambda value: _ranged(value * _SECOND))
function("int", Duration)(lambda value: value.nanoseconds)
function("int", Timestamp)(lambda value: value.nanoseconds // _SECOND)
function("_+_", Duration, Duration)(lambda a, b: Duration(integer(a.nanoseconds + b.nanoseconds)))
function("_-_", Duration, Duration)(lambda a, b: Duration(integer(a.nanoseconds - b.nanoseconds)))
function("_+_", Timestamp, Duration)(lambda a, b: _ranged(a.nanoseconds + b.nanoseconds))
function("_+_", Duration, Timestamp)(lambda a, b: _ranged(a.nanoseconds + b.nanoseconds))
function("_-_", Timestamp, Duration)(lambda a, b: _ranged(a.nanoseconds - b.nanoseconds))
function("_-_", Timestamp, Timestamp)(lambda a, b: Duration(integer(a.nanoseconds - b.nanoseconds)))
