"""Rounds: moments that many wait for together."""

from hypothesis import given
from hypothesis import strategies as st

from plugwright.apiserver.clock import Rounds


def test_rounds_are_a_period_apart_however_late_the_reader_is() -> None:
    rounds = Rounds(10.0, 2.5)
    assert rounds.delay(100.0) == 2.5
    assert rounds.delay(102.5) == 10.0
    assert rounds.delay(113.0) == 9.5
    assert rounds.delay(147.0) == 5.5  # those at 132.5 and 142.5 are left out


def test_a_timer_that_is_early_is_no_round_of_its_own() -> None:
    rounds = Rounds(10.0)
    assert rounds.delay(95.0) == 5.0
    assert rounds.delay(99.75) == 10.25


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0.01, 100), st.floats(0, 1))
def test_readers_that_begin_at_different_times_wait_for_the_same_moment(
    one: float, other: float, period: float, part: float
) -> None:
    first, second = (now + Rounds(period, part * period).delay(now) for now in (one, other))
    periods = (second - first) / period
    assert abs(periods - round(periods)) * period < 1e-6


async def test_a_reader_is_woken_in_a_round() -> None:
    await Rounds(0.001).next()
