"""What a person writes of a device's name: its id, the beginning of it, or its index."""

import pytest

from plugwright.errors import ConfigError
from plugwright.fleet.device_names import NamedDevice, close_names, complete_device, short_ids

GPUS = [NamedDevice("a.com/gpu", f"mock-{number}-{number + 40:x}", str(number)) for number in range(12)]
IDS = [gpu.id for gpu in GPUS]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("mock-3-2b", "mock-3-2b"),
        ("mock-3", "mock-3-2b"),
        ("mock-1", "mock-1-29"),  # rather than mock-10 and mock-11
        ("3", "mock-3-2b"),
        ("mock-10-", "mock-10-32"),
    ],
)
def test_a_device_is_named_by_its_id_its_beginning_or_its_index(text: str, found: str) -> None:
    assert [device.id for device in complete_device(text, GPUS)] == [found]


def test_an_exact_id_is_before_everything_else() -> None:
    devices = [NamedDevice("r", "3", "7"), NamedDevice("r", "x", "3"), NamedDevice("r", "3-b", "")]
    assert complete_device("3", devices) == [devices[0]]


def test_several_devices_with_the_beginning_are_named_in_the_error() -> None:
    with pytest.raises(ConfigError, match="several devices begin with 'mock-1': mock-1-2, mock-1-3"):
        complete_device("mock-1", [NamedDevice("r", "mock-1-2"), NamedDevice("r", "mock-1-3")])
    with pytest.raises(ConfigError, match="several devices have the index '0': a, b; choose one with its resource"):
        complete_device("0", [NamedDevice("r", "a", "0"), NamedDevice("s", "b", "0")])


def test_one_id_of_several_resources_is_one_device() -> None:
    shared = [NamedDevice("gpu", "GPU-1"), NamedDevice("gpu-shared", "GPU-1")]
    assert complete_device("GPU", shared) == shared


@pytest.mark.parametrize("text", ["", "gpu", "mock-99", "30"])
def test_no_device_is_found_for_other_texts(text: str) -> None:
    assert not complete_device(text, GPUS)


def test_the_id_that_was_meant_is_suggested() -> None:
    assert close_names("moc-3-2b", IDS) == "; did you mean 'mock-3-2b'?"
    assert close_names("tape", IDS) == ""


def test_the_beginning_of_an_id_is_suggested_if_its_number_is_the_same() -> None:
    assert close_names("mok-3", IDS) == "; did you mean 'mock-3'?"
    assert close_names("mock-9", ["mock-3-353a0f91"]) == ""
    assert close_names("mok", IDS) == ""  # `mock` begins several


def test_other_names_are_suggested_too() -> None:
    assert close_names("mock/gp", IDS, ["mock/gpu", "two"]) == "; did you mean 'mock/gpu'?"
    assert close_names("tow", IDS, ["mock/gpu", "two"]) == "; did you mean 'two'?"


def test_a_long_id_is_shortened_to_a_beginning_that_names_it_alone() -> None:
    one, two = "GPU-8f3c2e4a-1b2c-5d6e-8f90-a1b2c3d4e5f6", "GPU-57ce1a13-0f28-196d-f4b2-bf4ecc4781a1"
    slices = ["MIG-8f3c2e4a-1b2c-0000-8f90", "MIG-8f3c2e4a-1b2c-0001-8f90"]
    short = short_ids([one, two, *slices, "mock-3-2b", "x" * 64])
    assert (short[one], short[two]) == ("GPU-8f3c2e4a", "GPU-57ce1a13")
    assert [short[name] for name in slices] == ["MIG-8f3c2e4a-1b2c-0000", "MIG-8f3c2e4a-1b2c-0001"]
    assert (short["mock-3-2b"], short["x" * 64]) == ("mock-3-2b", "x" * 64)
    devices = [NamedDevice("r", name) for name in short]
    assert all([device.id for device in complete_device(short[name], devices)] == [name] for name in short)
