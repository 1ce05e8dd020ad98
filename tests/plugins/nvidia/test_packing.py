"""How many units of each GPU a container gets."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from plugwright.plugins.nvidia.preference import Stock, packed, spread

HOLDERS = st.dictionaries(st.integers(0, 7), st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1)


def first(holders: Iterable[int], required: Iterable[int], size: int) -> list[int]:
    """Chooses by number."""
    must = sorted(set(required))
    return [*must, *sorted(set(holders) - set(must))][:size]


def last(holders: Iterable[int], required: Iterable[int], size: int) -> list[int]:
    must = sorted(set(required))
    return [*must, *sorted(set(holders) - set(must), reverse=True)][:size]


def stock(free: dict[int, int], total: int = 4, required: dict[int, int] | None = None) -> Stock:
    return Stock(dict.fromkeys(free, total), free, required or {})


def test_spread_takes_one_of_each_before_a_second_of_any() -> None:
    assert spread(stock({0: 4, 1: 4}), 3, first) == {0: 2, 1: 1}
    assert spread(stock({0: 4, 1: 1}), 2, first) == {0: 1, 1: 1}


def test_spread_takes_the_least_used_first() -> None:
    assert spread(stock({0: 2, 1: 4, 2: 3}), 1, first) == {1: 1}
    assert spread(stock({0: 2, 1: 4, 2: 3}), 2, first) == {1: 1, 2: 1}


def test_spread_leaves_the_choice_among_equals_to_others() -> None:
    assert spread(stock({0: 4, 1: 4, 2: 4}), 2, last) == {2: 1, 1: 1}


def test_spread_counts_what_is_required_anyway() -> None:
    assert spread(stock({0: 4, 1: 4}, required={0: 1}), 2, first) == {0: 1, 1: 1}
    assert spread(stock({0: 4, 1: 4}, required={0: 2}), 3, first) == {0: 2, 1: 1}


def test_packed_takes_all_of_one_that_has_just_enough() -> None:
    assert packed(stock({0: 4, 1: 2, 2: 3}), 2, first) == {1: 2}
    assert packed(stock({0: 4, 1: 1, 2: 3}), 2, first) == {2: 2}


def test_packed_takes_as_few_as_can_be() -> None:
    assert packed(stock({0: 3, 1: 1, 2: 3}), 6, first) == {0: 3, 2: 3}
    assert packed(stock({0: 3, 1: 1, 2: 4}), 6, first) == {0: 3, 2: 3}
    assert packed(stock({0: 3, 1: 1, 2: 4}), 8, first) == {0: 3, 1: 1, 2: 4}


def test_packed_leaves_the_choice_among_equals_to_others() -> None:
    assert packed(stock({0: 4, 1: 4, 2: 4}), 1, last) == {2: 1}
    assert packed(stock({0: 4, 1: 4, 2: 4}), 8, last) == {1: 4, 2: 4}


def test_packed_goes_on_where_it_has_to_be_anyway() -> None:
    assert packed(stock({0: 2, 1: 4}, required={1: 1}), 3, first) == {1: 3}
    assert packed(stock({0: 2, 1: 2, 2: 1}, required={1: 1}), 3, first) == {1: 2, 2: 1}


@given(HOLDERS, st.integers(0, 40), st.booleans())
def test_there_are_as_many_as_asked_for_if_there_are_so_many(
    holders: dict[int, tuple[int, int]], size: int, to_spread: bool
) -> None:
    free = {holder: sum(counts) for holder, counts in holders.items()}
    required = {holder: counts[0] for holder, counts in holders.items()}
    taken = (spread if to_spread else packed)(Stock(free, free, required), size, first)
    assert sum(taken.values()) == max(sum(required.values()), min(size, sum(free.values())))
    assert all(required[holder] <= taken.get(holder, 0) <= free[holder] for holder in holders)


@given(HOLDERS, st.integers(1, 40))
def test_spread_is_never_on_fewer_and_packed_never_on_more(holders: dict[int, tuple[int, int]], size: int) -> None:
    free = {holder: sum(counts) for holder, counts in holders.items()}
    wide, narrow = (count(Stock(free, free, {}), size, first) for count in (spread, packed))
    wanted, largest = min(size, sum(free.values())), sorted(free.values(), reverse=True)
    assert len(wide) == min(wanted, sum(1 for count in free.values() if count))
    assert len(narrow) == next(few for few in range(len(free) + 1) if sum(largest[:few]) >= wanted)
