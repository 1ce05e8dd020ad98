"""Names that DRA allows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.errors import ConfigError
from plugwright.grammars import DNS_LABEL, DNS_SUBDOMAIN
from plugwright.sdk.driver_names import check_driver_name, class_name, device_name, driver_name

PARTS = st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", fullmatch=True)
DOMAINS = st.from_regex(
    r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?){0,4}", fullmatch=True
)


def test_a_driver_is_named_after_its_resource() -> None:
    assert driver_name("example.com/tape") == "tape.example.com"
    assert class_name("example.com/tape") == "tape.example.com"


def test_a_resource_of_nvidia_gets_no_driver_name_of_nvidia() -> None:
    assert driver_name("nvidia.com/gpu") == "gpu.nvidia.plugwright.dev"


def test_resources_that_differ_in_case_or_punctuation_have_different_drivers() -> None:
    names = [
        "example.com/tape_x",
        "example.com/tape-x",
        "example.com/Tape-x",
        "example.com/tape.x",
        "x.example.com/tape",
    ]
    assert len({driver_name(name) for name in names}) == len(names)


@given(DOMAINS, PARTS)
def test_every_resource_has_a_valid_driver_name(domain: str, name: str) -> None:
    driver = driver_name(f"{domain}/{name}")
    assert DNS_SUBDOMAIN.fullmatch(driver)
    assert len(driver) <= 63
    assert driver == driver_name(f"{domain}/{name}")


def test_an_id_that_is_a_label_is_the_name_of_its_device() -> None:
    assert device_name("gpu-0") == "gpu-0"


def test_another_id_is_readable_in_its_name() -> None:
    assert device_name("GPU-5c_1").startswith("gpu-5c-1-")
    assert device_name("GPU-5c_1") != device_name("GPU-5c-1")


@given(st.text(min_size=1, max_size=200))
def test_every_id_has_a_name_that_is_a_label(device_id: str) -> None:
    assert DNS_LABEL.fullmatch(device_name(device_id))


@pytest.mark.parametrize("name", ["", "Tape.example.com", "tape..com", "x" * 64, "tape.example.com/x", "../x"])
def test_a_driver_name_that_the_api_refuses_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match="DNS name"):
        check_driver_name(name)


def test_a_driver_name_may_have_63_bytes() -> None:
    longest = "x" * 51 + ".example.com"
    assert len(longest) == 63
    assert check_driver_name(longest) == longest
    assert driver_name(f"example.com/{'x' * 51}") == longest


def test_the_driver_names_of_nvidia_are_refused() -> None:
    with pytest.raises(ConfigError, match="NVIDIA's own"):
        check_driver_name("gpu.nvidia.com")
