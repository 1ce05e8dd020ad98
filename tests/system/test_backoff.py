"""The wait before a retry: it doubles, it has an end, and it is never quite the same."""

import pytest

from plugwright.system.concurrency import Backoff


def delays(backoff: Backoff, count: int) -> list[float]:
    return [backoff.delay() for _ in range(count)]


def test_a_delay_doubles_up_to_the_longest() -> None:
    assert delays(Backoff(1.0, 5.0, jitter=0), 6) == [1.0, 2.0, 4.0, 5.0, 5.0, 5.0]


def test_a_reset_begins_with_the_first_delay_again() -> None:
    backoff = Backoff(1.0, 5.0, jitter=0)
    delays(backoff, 3)
    backoff.reset()
    assert delays(backoff, 2) == [1.0, 2.0]


def test_a_delay_is_changed_by_the_jitter_in_both_directions() -> None:
    assert delays(Backoff(1.0, 8.0, uniform=lambda low, high: high), 3) == pytest.approx([1.2, 2.4, 4.8])
    assert delays(Backoff(1.0, 8.0, uniform=lambda low, high: low), 3) == pytest.approx([0.8, 1.6, 3.2])


def test_delays_differ_by_chance() -> None:
    found = delays(Backoff(1.0, 1.0), 100)
    assert len(set(found)) > 50
    assert all(0.8 <= delay <= 1.2 for delay in found)
