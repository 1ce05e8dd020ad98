"""Texts from outside: one printable line of a bounded length, whatever comes in."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.text import clean, fitted

ANY_TEXT = st.text(st.characters(exclude_categories=())) | st.text(st.sampled_from("\x00\x1b\x9b\u202e\udcff\n\\ é"))


class Unprintable:
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("", ""),
        ("fan failed", "fan failed"),
        ("Lüfter, 風扇", "Lüfter, 風扇"),
        ("  two\n lines\tand\r\n more ", "two lines and more"),
        ("a\u2028b\u2029c\x85d\xa0e", "a b c d e"),
        (os.fsdecode(b"/srv/\xff.sock"), "/srv/\\udcff.sock"),
        ("\ud800", "\\ud800"),
        ("a\0b", "a\\x00b"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("\x9b31mred", "\\x9b31mred"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u2066\u2069\u200b\ufeff", "\\u2066\\u2069\\u200b\\ufeff"),
        ("\U000e0001", "\\U000e0001"),
        ("back\\slash", "back\\slash"),
        (OSError(5, "Input/output error"), "[Errno 5] Input/output error"),
        (None, "None"),
        (Unprintable(), "Unprintable"),
    ],
)
def test_a_text_becomes_one_printable_line(text: object, cleaned: str) -> None:
    assert clean(text) == cleaned


@pytest.mark.parametrize("text", ["x" * 1025, "\x1b" * 500, "word " * 10_000, "\udcff" * 1024])
def test_a_long_text_is_cut_with_a_sign(text: str) -> None:
    cleaned = clean(text)
    assert len(cleaned) == 1024
    assert cleaned.endswith("…")


def test_a_text_of_just_the_limit_is_whole() -> None:
    assert clean("x" * 16, limit=16) == "x" * 16
    assert clean("x" * 17, limit=16) == "x" * 15 + "…"


@given(ANY_TEXT, st.integers(1, 64))
def test_any_text_can_be_shown_and_sent(text: str, limit: int) -> None:
    cleaned = clean(text, limit)
    assert cleaned.isprintable()
    assert len(cleaned) <= limit
    assert cleaned.encode().decode() == cleaned
    assert clean(cleaned, limit) == cleaned


def test_a_text_that_fits_into_its_bytes_is_whole() -> None:
    assert fitted("Lüfter", 7) == "Lüfter"
    assert fitted("Lüfter", 6) == "Lü…"
    assert fitted("風扇風扇", 8) == "風…"


@given(ANY_TEXT, st.integers(3, 64))
def test_any_text_fits_into_its_bytes(text: str, size: int) -> None:
    cut = fitted(text, size)
    assert cut.isprintable()
    assert len(cut.encode()) <= size
    assert cut == clean(text) or cut.endswith("…")
