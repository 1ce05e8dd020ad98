"""Decides whether the found devices are the expected ones, and those of the last run."""

import pytest

from plugwright import Device
from plugwright.sdk.expected_devices import FoundInRun, Listing, Shortfall, shortfall_of
from plugwright.sdk.serve_settings import Expectation


def cards(count: int, model: str = "") -> dict[str, Device]:
    return {f"c{n}": Device(f"c{n}", attributes={"model": model} if model else {}) for n in range(count)}


def test_the_expected_number_is_no_shortfall() -> None:
    assert shortfall_of(Expectation(least=2, most=2), Listing(cards(2)), FoundInRun()) is None


def test_nothing_is_reported_before_discovery_has_said_anything() -> None:
    assert shortfall_of(Expectation(least=2, most=2), Listing(), FoundInRun(devices=("c0",))) is None


@pytest.mark.parametrize(
    ("expect", "count", "code", "missing"),
    [
        (Expectation(least=8, most=8), 7, "missing", 1),
        (Expectation(least=6), 4, "missing", 2),
        (Expectation(least=1, most=2), 3, "unexpected", 0),
        (Expectation(least=2, most=2, model="h100*"), 2, "other-model", 2),
    ],
)
def test_a_deviation_has_its_code(expect: Expectation, count: int, code: str, missing: int) -> None:
    found = shortfall_of(expect, Listing(cards(count, "A100")), FoundInRun())
    assert found is not None
    assert (found.code, found.missing, found.is_blocking) == (code, missing, False)


def test_a_list_that_cannot_be_made_has_none_of_the_expected_devices() -> None:
    found = shortfall_of(Expectation(least=8, most=8, not_ready=True), Listing(None, "the driver hangs"), FoundInRun())
    assert found == Shortfall("missing", "expected 8, found 0: the driver hangs", 8, is_blocking=True)


def test_devices_missing_at_an_earlier_start_are_reported_without_blocking() -> None:
    found = shortfall_of(None, Listing(cards(1)), FoundInRun(devices=("c0",), missing=("c1",)))
    assert found is not None
    assert (found.code, found.missing, found.is_blocking) == ("fewer-than-before", 1, False)


def test_devices_that_this_start_has_not_found_block() -> None:
    found = shortfall_of(None, Listing(cards(1), seen=frozenset({"c0"})), FoundInRun(devices=("c0", "c1")))
    assert found == Shortfall(
        "fewer-than-before", "1 of 2 devices found before the last start are missing: c1", 1, is_blocking=True
    )


def test_a_device_that_fails_after_the_start_does_not_block() -> None:
    listing = Listing(cards(1), seen=frozenset({"c0", "c1"}))
    found = shortfall_of(None, listing, FoundInRun(devices=("c0", "c1")))
    assert found is not None
    assert (found.code, found.is_blocking) == ("fewer-than-before", False)


@pytest.mark.parametrize(("before", "is_blocking"), [(("c0", "c1"), True), (("c0",), False)])
def test_an_unmet_expectation_blocks_if_this_start_lost_devices(before: tuple[str, ...], *, is_blocking: bool) -> None:
    found = shortfall_of(Expectation(least=2, most=2), Listing(cards(1)), FoundInRun(devices=before))
    assert found == Shortfall("missing", "expected 2, found 1", 1, is_blocking=is_blocking)


def test_an_idle_node_that_shows_the_hardware_is_reported() -> None:
    found = shortfall_of(None, Listing(None, "no driver", "8 cards on the PCI bus"), FoundInRun())
    assert found == Shortfall("driver-missing", "the node has 8 cards on the PCI bus: no driver")
