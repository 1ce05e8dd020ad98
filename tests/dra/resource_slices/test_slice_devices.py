"""Devices as documents of a ResourceSlice."""

import pytest

from plugwright.attributes import Capacity, Consumption, CounterSet, Version
from plugwright.dra.resource_slices.slice_devices import counter_sets, slice_device
from plugwright.errors import InvalidValue
from plugwright.model import Device

TAINT = {"key": "plugwright.dev/unhealthy", "value": "lost", "effect": "NoSchedule"}
CARD = CounterSet("card-0", {"memory": 40 * 2**30, "slices": 7})


def test_a_plain_device_has_its_name_and_its_id() -> None:
    assert slice_device(Device("st0")) == {"name": "st0", "attributes": {"id": {"string": "st0"}}}


def test_attributes_have_types_and_others_stay_with_the_plugin() -> None:
    attributes = {"model": "A", "count": 3, "ecc": True, "driver": Version("570.86.15"), "own": [1], "ratio": 0.5}
    document = slice_device(Device("gpu-0", attributes=attributes))
    assert document["attributes"] == {
        "count": {"int": 3},
        "driver": {"version": "570.86.15"},
        "ecc": {"bool": True},
        "id": {"string": "gpu-0"},
        "model": {"string": "A"},
    }


def test_an_id_that_is_no_label_gets_a_name_and_stays_as_an_attribute() -> None:
    document = slice_device(Device("GPU-1f/0"))
    assert document["name"].startswith("gpu-1f-0-")
    assert document["attributes"]["id"] == {"string": "GPU-1f/0"}


def test_the_numa_node_is_the_standard_attribute() -> None:
    assert slice_device(Device("a", numa=[1]))["attributes"]["resource.kubernetes.io/numaNode"] == {"int": 1}
    assert "resource.kubernetes.io/numaNode" not in slice_device(Device("a", numa=[0, 1]))["attributes"]
    given = Device("a", numa=[1], attributes={"resource.kubernetes.io/numaNode": 0, "id": "own"})
    assert slice_device(given)["attributes"] == {
        "id": {"string": "own"},
        "resource.kubernetes.io/numaNode": {"int": 0},
    }


def test_what_is_added_never_exceeds_the_limit() -> None:
    full = Device("a", numa=[0], attributes={f"a{number}": number for number in range(31)}, capacity={"m": 1})
    assert len(slice_device(full)["attributes"]) == 31
    almost = Device("a", numa=[0], attributes={f"a{number}": number for number in range(30)}, capacity={"m": 1})
    assert "id" in slice_device(almost)["attributes"]
    assert len(slice_device(almost)["attributes"]) == 31
    assert "attributes" not in slice_device(Device("ü" * 40))
    assert slice_device(Device("ü" * 32))["attributes"] == {"id": {"string": "ü" * 32}}  # 64 bytes


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (1024, "1024"), (80 * 2**30, "80Gi"), (2**20, "1Mi"), (2**20 + 1, "1048577"), (10**9, "1000000000")],
)
def test_quantities_are_written_as_people_do(number: int, text: str) -> None:
    assert slice_device(Device("a", capacity={"memory": number}))["capacity"] == {"memory": {"value": text}}


def test_a_shared_device_has_a_request_policy() -> None:
    memory = Capacity("80Gi", default="10Gi", minimum="10Gi", maximum="80Gi", step="10Gi")
    cores = Capacity(100, default=50, values=[25, 50, 100])
    document = slice_device(Device("a", capacity={"memory": memory, "cores": cores}, allow_multiple=True))
    assert document["allowMultipleAllocations"] is True
    assert document["capacity"] == {
        "cores": {"value": "100", "requestPolicy": {"default": "50", "validValues": ["25", "50", "100"]}},
        "memory": {
            "value": "80Gi",
            "requestPolicy": {"default": "10Gi", "validRange": {"min": "10Gi", "max": "80Gi", "step": "10Gi"}},
        },
    }
    assert "allowMultipleAllocations" not in slice_device(Device("a", capacity={"memory": "80Gi"}))


def test_devices_of_one_card_consume_its_counters() -> None:
    half = Device("mig-0", consumes=[Consumption(CARD, {"memory": 20 * 2**30, "slices": 3})])
    other = Device("mig-1", consumes=[Consumption(CARD, {"slices": 4})])
    assert slice_device(half)["consumesCounters"] == [
        {"counterSet": "card-0", "counters": {"memory": {"value": "20Gi"}, "slices": {"value": "3"}}}
    ]
    assert counter_sets([half, other, Device("plain")]) == (
        {"name": "card-0", "counters": {"memory": {"value": "40Gi"}, "slices": {"value": "7"}}},
    )


def test_a_counter_set_that_devices_do_not_agree_on_is_an_error() -> None:
    other = CounterSet("card-0", {"memory": 1})
    devices = [
        Device("a", consumes=[Consumption(CARD, {"slices": 1})]),
        Device("b", consumes=[Consumption(other, {"memory": 1})]),
    ]
    with pytest.raises(InvalidValue, match="the counter set card-0 must be the same for every device, not so for 'b'"):
        counter_sets(devices)


def test_more_taints_than_allowed_are_named_with_the_device() -> None:
    with pytest.raises(InvalidValue, match="'a' must have at most 16 taints, got 17"):
        slice_device(Device("a"), [TAINT] * 17)


def test_taints_are_as_given() -> None:
    assert slice_device(Device("a"), [TAINT])["taints"] == [TAINT]
    assert "taints" not in slice_device(Device("a"))
