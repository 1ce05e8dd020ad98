"""Expansion of regular expressions to names."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.importers import smarter
from plugwright.importers.smarter import expand_pattern

ATOMS = st.sampled_from(["a", "tty", "[0-3]", "[ab]", r"\.", r"\d", ".", "[^a]", "(a|b)", "(?:x|)", "-", "/", "(", "["])
SIGNS = st.sampled_from(["", "", "", "?", "*", "+", "{2}", "{1,2}", "{1,}"])
PATTERNS = st.lists(st.tuples(ATOMS, SIGNS), max_size=5).map(lambda parts: "".join(map("".join, parts)))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("^snd$", ["snd"]),
        ("net/tun", ["net/tun"]),
        ("^rtc[01]$", ["rtc0", "rtc1"]),
        (r"^gpu\.0$", ["gpu.0"]),
        ("^(tty(USB|ACM)|rfcomm)0$", ["rfcomm0", "ttyACM0", "ttyUSB0"]),
        ("^video[0-9]?$", ["video", *(f"video{number}" for number in range(10))]),
        ("^a{1,2}$", ["a", "aa"]),
    ],
)
def test_finite_pattern_is_expanded(pattern: str, names: list[str]) -> None:
    assert expand_pattern(pattern) == names


@pytest.mark.parametrize("pattern", ["^video[0-9]*$", "^video[0-9]+$", r"^video\d+$"])
def test_unlimited_digits_are_the_first_numbers(pattern: str) -> None:
    assert expand_pattern(pattern) == sorted(f"video{number}" for number in range(smarter.MAX_NUMBERS))


@pytest.mark.parametrize(
    "pattern", ["vcsm.*", ".", "[^a]", "a+", "(a", "[a", "a{1,}", "a{x}", "*", "a)", "\\", "(?i)a"]
)
def test_endless_or_unsupported_pattern_is_not_expanded(pattern: str) -> None:
    assert expand_pattern(pattern) is None


def test_pattern_with_too_many_names_is_not_expanded() -> None:
    assert expand_pattern("[0-9][0-9]") is None
    assert expand_pattern("[a-z]{9}") is None


@given(PATTERNS)
def test_expanded_names_match_the_pattern(pattern: str) -> None:
    for name in expand_pattern(pattern) or []:
        assert re.fullmatch(pattern, name)


@given(st.text(alphabet="ab01[](){}|?*+^$-,\\.", max_size=12))
def test_arbitrary_pattern_never_raises(pattern: str) -> None:
    expand_pattern(pattern)
