"""Cron schedules, as in CronJobs: five fields, names of months and days, steps, and `@hourly` and the like. Pure."""

import re
from datetime import datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from plugwright.errors import InvalidValue

__all__ = ["Schedule", "time_zone"]

_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = {
    name: number
    for number, name in enumerate(
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], 1
    )
}
_DAYS = {name: number for number, name in enumerate(["sun", "mon", "tue", "wed", "thu", "fri", "sat"])}
_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_NAMES: tuple[dict[str, int], ...] = ({}, {}, {}, _MONTHS, _DAYS)
_ANY = ("*", "?")
_ITEM = re.compile(r"(\*|\?|[0-9a-z]{1,3})(?:-([0-9a-z]{1,3}))?(?:/([0-9]{1,3}))?", re.ASCII)
_LONGEST = 500  # characters
_SEARCHED_DAYS = 5 * 366  # a schedule without a date in this range has none


class Schedule(NamedTuple):
    """The values of each field; `days` and `weekdays` are alternatives if both are restricted, as in cron."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    is_any_day: bool
    is_any_weekday: bool

    @classmethod
    def parse(cls, text: str) -> "Schedule":
        """Parses a schedule; raises `InvalidValue`."""
        words = _MACROS.get(text.strip(), text)[:_LONGEST].lower().split()
        if len(words) != len(_RANGES):
            raise InvalidValue(f"expected exactly 5 fields, found {len(words)}: [{text:.80}]")
        minutes, hours, days, months, weekdays = (_values(word, index) for index, word in enumerate(words))
        week = frozenset(day % 7 for day in weekdays)
        return cls(minutes, hours, days, months, week, words[2][0] in _ANY, words[4][0] in _ANY)

    def after(self, moment: datetime) -> datetime | None:
        """The first time after the moment, in its time zone; None if there is none within five years."""
        start = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
        for number in range(_SEARCHED_DAYS):
            day = start if number == 0 else (start + timedelta(days=number)).replace(hour=0, minute=0)
            if not self._has_day(day):
                continue
            for hour in sorted(value for value in self.hours if value >= day.hour):
                least = day.minute if hour == day.hour else 0
                minutes = [value for value in self.minutes if value >= least]
                if minutes:
                    return day.replace(hour=hour, minute=min(minutes))
        return None

    def _has_day(self, day: datetime) -> bool:
        if day.month not in self.months:
            return False
        matches = day.day in self.days, (day.weekday() + 1) % 7 in self.weekdays
        return all(matches) if self.is_any_day or self.is_any_weekday else any(matches)


def time_zone(name: str) -> ZoneInfo | None:
    """The time zone; None for a name missing in the machine's list of time zones."""
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        return None


def _values(word: str, index: int) -> frozenset[int]:
    values: set[int] = set()
    for item in word.split(","):
        values |= _item_values(item, index)
    return frozenset(values)


def _item_values(item: str, index: int) -> set[int]:
    (least, most), match = _RANGES[index], _ITEM.fullmatch(item)
    if match is None:
        raise InvalidValue(f"failed to parse int from {item:.20}")
    first, last, step = match.groups()
    if first in _ANY:
        begin, end = least, most
    else:
        begin = _number(first, index)
        end = _number(last, index) if last else most if step else begin
    if not least <= begin <= end <= most or step == "0":
        raise InvalidValue(f"a value of {item:.20} is not in the range {least} to {most}, or its step is not positive")
    return set(range(begin, end + 1, int(step or 1)))


def _number(text: str, index: int) -> int:
    if text in _NAMES[index]:
        return _NAMES[index][text]
    if not text.isdecimal():
        raise InvalidValue(f"failed to parse int from {text:.20}")
    return int(text)
