"""Quantities as kube-apiserver 1.36 reads and writes them, and effective requests."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright import quantity
from plugwright.errors import InvalidValue


@pytest.mark.parametrize(
    ("given_text", "written"),
    [("1", "1"), (2, "2"), ("1000", "1k"), ("1000m", "1"), ("1500m", "1500m"), ("0.5", "500m"), ("1.5k", "1500"),
     ("1024Mi", "1Gi"), ("1Ki", "1Ki"), ("1023", "1023"), ("1.5Gi", "1536Mi"), ("0.5Ki", "512"), ("1e3", "1e3"),
     ("1500e0", "1500"), ("0", "0"), ("0Gi", "0"), ("-1k", "-1k"), ("1000000", "1M"), ("100m", "100m"), ("1u", "1u")],
)  # fmt: skip
def test_one_way_to_write_them(given_text: object, written: str) -> None:
    assert quantity.canonical(given_text) == written


@given(st.integers(-(10**6), 10**6), st.sampled_from(["", "m", "k", "M", "Ki", "Mi", "Gi"]))
def test_what_is_written_is_worth_the_same(number: int, unit: str) -> None:
    text = f"{number}{unit}"
    assert quantity.zero_if_invalid(quantity.canonical(text)) == quantity.zero_if_invalid(text)
    assert quantity.canonical(quantity.canonical(text)) == quantity.canonical(text)


@pytest.mark.parametrize("text", ["", "x", "1x", "1 Gi", "--1", "1e", "²", None, True, "1" * 99])
def test_what_is_none(text: object) -> None:
    assert not quantity.is_quantity(text)
    assert quantity.canonical(text) == str(text)


def test_sums_are_exact() -> None:
    total = quantity.add([{"cpu": Decimal("0.1")}, {"cpu": Decimal("0.2"), "memory": Decimal(1)}])
    assert total == {"cpu": Decimal("0.3"), "memory": Decimal(1)}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2", 2),
        ("0", 0),
        ("2000m", 2),
        ("500m", Decimal("0.5")),
        ("3k", 3000),
        ("1Ki", 1024),
        ("1Mi", 1024**2),
        ("1e3", 1000),
        ("1.5G", 1_500_000_000),
        ("1E", 10**18),
        ("1E3", 1000),
        ("-1", -1),
        (".5", Decimal("0.5")),
    ],
)
def test_quantities_are_read_as_an_api_server_reads_them(text: str, number: Decimal) -> None:
    assert quantity.parse(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "",
        "two",
        "1 ",
        "1_0",
        "\uff11",
        "1KiB",
        "--1",
        "1e3k",
        ".",
        "NaN",
        "Infinity",
        "9" * 100,
        "1e999",
        f"1e{10**20}",
    ],
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="a quantity"):
        quantity.parse(text)


@pytest.mark.parametrize(
    ("text", "whole"),
    [("4", 4), ("0", 0), ("3k", 3000), ("1Mi", 1048576), ("2E", 2 * 10**18), ("2e3", 2000), ("2000m", 2), ("1500m", 2)],
)
def test_quantities_as_the_api_writes_them(text: str, whole: int) -> None:
    assert quantity.whole(quantity.parse(text)) == whole


@given(st.integers(0, 2**63 - 1))
def test_a_whole_number_is_itself(number: int) -> None:
    assert quantity.whole(quantity.parse(str(number))) == number


def total(containers: list[tuple[str, int]]) -> int:
    return quantity.effective_requests((kind, {"a/b": limit}) for kind, limit in containers).get("a/b", 0)


def test_a_pod_needs_its_sidecars_all_along() -> None:  # 5.2
    assert total([("sidecar", 1), ("init", 3), ("main", 1), ("main", 1)]) == 4


def test_a_sidecar_after_an_init_container_is_not_there_with_it() -> None:  # 5.2
    assert total([("init", 3), ("sidecar", 1), ("main", 1)]) == 3


def test_a_pod_whose_containers_want_more_than_its_init_containers_needs_that() -> None:  # 5.2
    assert total([("init", 3), ("sidecar", 2), ("init", 1), ("main", 2), ("main", 2)]) == 6
    assert total([]) == 0


kinds = st.sampled_from(["init", "sidecar", "main"])


@given(st.lists(st.tuples(kinds, st.integers(0, 9))))
def test_a_pod_never_needs_less_than_it_uses_at_any_moment(containers: list[tuple[str, int]]) -> None:  # 5.2
    moments = [sum(limit for kind, limit in containers if kind != "init")]
    for position, (kind, limit) in enumerate(containers):
        if kind == "init":
            moments.append(limit + sum(size for kind, size in containers[:position] if kind == "sidecar"))
    assert total(containers) == max(moments)
