"""Spread and packed counts: the number of units that a container gets of each GPU."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from plugwright.plugins.nvidia.preference import UnitCounts, packed, spread

HOLDERS = st.dictionaries(st.integers(0, 7), st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1)


def first(holders: Iterable[int], required: Iterable[int], size: int) -> list[int]:
    """Chooses by number."""
    must = sorted(set(required))
    return [*must, *sorted(set(holders) - set(must))][:size]


def last(holders: Iterable[int], required: Iterable[int], size: int) -> list[int]:
    must = sorted(set(required))
    return [*must, *sorted(set(holders) - set(must), reverse=True)][:size]


def counts(free: dict[int, int], total: int = 4, required: dict[int, int] | None = None) -> UnitCounts:
    return UnitCounts(dict.fromkeys(free, total), free, required or {})


def test_spread_takes_one_of_each_before_a_second_of_any() -> None:
    assert spread(counts({0: 4, 1: 4}), 3, first) == {0: 2, 1: 1}
    assert spread(counts({0: 4, 1: 1}), 2, first) == {0: 1, 1: 1}


def test_spread_takes_the_least_used_first() -> None:
    assert spread(counts({0: 2, 1: 4, 2: 3}), 1, first) == {1: 1}
    assert spread(counts({0: 2, 1: 4, 2: 3}), 2, first) == {1: 1, 2: 1}


def test_spread_asks_which_of_equal_holders_to_take() -> None:
    assert spread(counts({0: 4, 1: 4, 2: 4}), 2, last) == {2: 1, 1: 1}


def test_spread_counts_what_is_required_anyway() -> None:
    assert spread(counts({0: 4, 1: 4}, required={0: 1}), 2, first) == {0: 1, 1: 1}
    assert spread(counts({0: 4, 1: 4}, required={0: 2}), 3, first) == {0: 2, 1: 1}


def test_packed_takes_all_of_one_that_has_just_enough() -> None:
    assert packed(counts({0: 4, 1: 2, 2: 3}), 2, first) == {1: 2}
    assert packed(counts({0: 4, 1: 1, 2: 3}), 2, first) == {2: 2}


def test_packed_takes_as_few_holders_as_possible() -> None:
    assert packed(counts({0: 3, 1: 1, 2: 3}), 6, first) == {0: 3, 2: 3}
    assert packed(counts({0: 3, 1: 1, 2: 4}), 6, first) == {0: 3, 2: 3}
    assert packed(counts({0: 3, 1: 1, 2: 4}), 8, first) == {0: 3, 1: 1, 2: 4}


def test_packed_asks_which_of_equal_holders_to_take() -> None:
    assert packed(counts({0: 4, 1: 4, 2: 4}), 1, last) == {2: 1}
    assert packed(counts({0: 4, 1: 4, 2: 4}), 8, last) == {1: 4, 2: 4}


def test_packed_continues_on_required_holders() -> None:
    assert packed(counts({0: 2, 1: 4}, required={1: 1}), 3, first) == {1: 3}
    assert packed(counts({0: 2, 1: 2, 2: 1}, required={1: 1}), 3, first) == {1: 2, 2: 1}


@given(HOLDERS, st.integers(0, 40), st.booleans())
def test_as_many_units_as_requested_are_taken_if_there_are_enough(
    holders: dict[int, tuple[int, int]], size: int, to_spread: bool
) -> None:
    free = {holder: must + more for holder, (must, more) in holders.items()}
    required = {holder: must for holder, (must, more) in holders.items()}
    taken = (spread if to_spread else packed)(UnitCounts(free, free, required), size, first)
    assert sum(taken.values()) == max(sum(required.values()), min(size, sum(free.values())))
    assert all(required[holder] <= taken.get(holder, 0) <= free[holder] for holder in holders)


@given(HOLDERS, st.integers(1, 40))
def test_spread_uses_the_most_and_packed_the_fewest_holders(holders: dict[int, tuple[int, int]], size: int) -> None:
    free = {holder: must + more for holder, (must, more) in holders.items()}
    wide, narrow = (count(UnitCounts(free, free, {}), size, first) for count in (spread, packed))
    size, largest = min(size, sum(free.values())), sorted(free.values(), reverse=True)
    assert len(wide) == min(size, sum(1 for count in free.values() if count))
    assert len(narrow) == next(few for few in range(len(free) + 1) if sum(largest[:few]) >= size)
