"""The names that a regular expression stands for."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.importers import smarter
from plugwright.importers.smarter import texts_of

ATOMS = st.sampled_from(["a", "tty", "[0-3]", "[ab]", r"\.", r"\d", ".", "[^a]", "(a|b)", "(?:x|)", "-", "/", "(", "["])
SIGNS = st.sampled_from(["", "", "", "?", "*", "+", "{2}", "{1,2}", "{1,}"])
PATTERNS = st.lists(st.tuples(ATOMS, SIGNS), max_size=5).map(lambda parts: "".join(map("".join, parts)))


@pytest.mark.parametrize(
    ("pattern", "texts"),
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
def test_what_is_finite_is_written_out(pattern: str, texts: list[str]) -> None:
    assert texts_of(pattern) == texts


@pytest.mark.parametrize("pattern", ["^video[0-9]*$", "^video[0-9]+$", r"^video\d+$"])
def test_endless_digits_are_the_first_numbers(pattern: str) -> None:
    assert texts_of(pattern) == sorted(f"video{number}" for number in range(smarter.NUMBERS))


@pytest.mark.parametrize(
    "pattern", ["vcsm.*", ".", "[^a]", "a+", "(a", "[a", "a{1,}", "a{x}", "*", "a)", "\\", "(?i)a"]
)
def test_what_has_no_end_or_is_not_understood_is_not_written_out(pattern: str) -> None:
    assert texts_of(pattern) is None


def test_what_would_be_too_many_is_not_written_out() -> None:
    assert texts_of("[0-9][0-9]") is None
    assert texts_of("[a-z]{9}") is None


@given(PATTERNS)
def test_whatever_is_written_out_matches(pattern: str) -> None:
    for text in texts_of(pattern) or []:
        assert re.fullmatch(pattern, text)


@given(st.text(alphabet="ab01[](){}|?*+^$-,\\.", max_size=12))
def test_no_text_is_too_strange(pattern: str) -> None:
    texts_of(pattern)
