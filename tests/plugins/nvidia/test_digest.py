"""Digests: the same for the same texts, different for different ones."""

from hypothesis import given
from hypothesis import strategies as st

from plugwright.plugins.nvidia.driver import digest

TEXTS = st.lists(st.text(max_size=8).filter(lambda text: "\n" not in text), max_size=6)


@given(texts=TEXTS, size=st.sampled_from([8, 16, 24, 32]))
def test_a_digest_has_its_size_and_ignores_the_order(texts: list[str], size: int) -> None:
    digits = digest(texts, size)
    assert len(digits) == size
    assert set(digits) <= set("0123456789abcdef")
    assert digest(reversed(texts), size) == digits


def test_different_texts_have_different_digests() -> None:
    digests = {digest([f"LIMIT={number}", f"GPU-{number % 8}"]) for number in range(50_000)}
    assert len(digests) == 50_000


def test_the_halves_of_a_digest_are_independent() -> None:
    halves = [digest([f"LIMIT={number}"]) for number in range(1000)]
    assert len({int(text[:8], 16) ^ int(text[8:], 16) for text in halves}) == 1000
