"""Quantities as a server writes them; the pairs were seen at kube-apiserver 1.36."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.cluster import quantities


@pytest.mark.parametrize(
    ("given_text", "written"),
    [("1", "1"), (2, "2"), ("1000", "1k"), ("1000m", "1"), ("1500m", "1500m"), ("0.5", "500m"), ("1.5k", "1500"),
     ("1024Mi", "1Gi"), ("1Ki", "1Ki"), ("1023", "1023"), ("1.5Gi", "1536Mi"), ("0.5Ki", "512"), ("1e3", "1e3"),
     ("1500e0", "1500"), ("0", "0"), ("0Gi", "0"), ("-1k", "-1k"), ("1000000", "1M"), ("100m", "100m"), ("1u", "1u")],
)  # fmt: skip
def test_one_way_to_write_them(given_text: object, written: str) -> None:
    assert quantities.canonical(given_text) == written


@given(st.integers(-(10**6), 10**6), st.sampled_from(["", "m", "k", "M", "Ki", "Mi", "Gi"]))
def test_what_is_written_is_worth_the_same(number: int, unit: str) -> None:
    text = f"{number}{unit}"
    assert quantities.parse(quantities.canonical(text)) == quantities.parse(text)
    assert quantities.canonical(quantities.canonical(text)) == quantities.canonical(text)


@pytest.mark.parametrize("text", ["", "x", "1x", "1 Gi", "--1", "1e", "²", None, True, "1" * 99])
def test_what_is_none(text: object) -> None:
    assert not quantities.is_quantity(text)
    assert quantities.canonical(text) == str(text)


def test_sums_are_exact() -> None:
    total = quantities.add([{"cpu": Decimal("0.1")}, {"cpu": Decimal("0.2"), "memory": Decimal(1)}])
    assert total == {"cpu": Decimal("0.3"), "memory": Decimal(1)}
