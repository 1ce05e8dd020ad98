"""Schedules of CronJobs: the times that they have, and what is none."""

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.apiserver.cron import Schedule, time_zone
from plugwright.errors import InvalidValue

NOON = datetime(2026, 11, 18, 12, 0, 30, tzinfo=UTC)  # a Wednesday


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("* * * * *", "2026-11-18T12:01"),
        ("*/15 * * * *", "2026-11-18T12:15"),
        ("0 * * * *", "2026-11-18T13:00"),
        ("@daily", "2026-11-19T00:00"),
        ("30 8-10/2 * * *", "2026-11-19T08:30"),
        ("0 9 * * mon", "2026-11-23T09:00"),
        ("0 9 * * 7", "2026-11-22T09:00"),
        ("0 0 29 feb *", "2028-02-29T00:00"),
        ("0 0 1 * fri", "2026-11-20T00:00"),  # a day of the month or of the week
        ("5,10 12 * * *", "2026-11-18T12:05"),
    ],
)
def test_the_next_time_of_a_schedule(text: str, expected: str) -> None:
    found = Schedule.parse(text).after(NOON)
    assert found is not None
    assert found.isoformat()[:16] == expected


def test_a_date_that_never_comes_has_no_time() -> None:
    assert Schedule.parse("0 0 31 feb *").after(NOON) is None


@pytest.mark.parametrize(
    "text",
    ["", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "*/0 * * * *", "5-1 * * * *", "a * * * *", "@never"],
)
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        Schedule.parse(text)


@given(st.integers(0, 59), st.integers(0, 23), st.integers(0, 6))
def test_times_are_in_order_and_match(minute: int, hour: int, weekday: int) -> None:
    schedule, times = Schedule.parse(f"{minute} {hour} * * {weekday}"), [NOON]
    for _ in range(3):
        found = schedule.after(times[-1])
        assert found is not None
        times.append(found)
    assert all(before < after for before, after in pairwise(times))
    assert {(time.minute, time.hour, (time.weekday() + 1) % 7) for time in times[1:]} == {(minute, hour, weekday)}


def test_an_unknown_time_zone_is_none() -> None:
    assert time_zone("UTC") is not None
    assert time_zone("../../etc/passwd") is None
    assert time_zone("Nowhere/Here") is None
