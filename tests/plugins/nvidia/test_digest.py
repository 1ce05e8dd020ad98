"""Names of contents: the same for the same, others for others."""

from hypothesis import given
from hypothesis import strategies as st

from plugwright.plugins.nvidia.driver import digest

TEXTS = st.lists(st.text(max_size=8).filter(lambda text: "\n" not in text), max_size=6)


@given(texts=TEXTS, size=st.sampled_from([8, 16, 24, 32]))
def test_a_digest_has_its_size_and_does_not_mind_the_order(texts: list[str], size: int) -> None:
    found = digest(texts, size)
    assert len(found) == size
    assert set(found) <= set("0123456789abcdef")
    assert digest(reversed(texts), size) == found


def test_many_contents_have_many_digests() -> None:
    found = {digest([f"LIMIT={number}", f"GPU-{number % 8}"]) for number in range(200_000)}
    assert len(found) == 200_000


def test_no_part_of_a_digest_follows_from_another() -> None:
    halves = [digest([f"LIMIT={number}"]) for number in range(1000)]
    assert len({int(each[:8], 16) ^ int(each[8:], 16) for each in halves}) == 1000
