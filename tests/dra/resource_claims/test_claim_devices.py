"""The devices of a claim between its allocation, the plugin and the CDI spec."""

from pathlib import Path

import pytest

from plugwright.dra.resource_claims import claim_devices
from plugwright.dra.resource_claims.claim_files import ClaimFiles
from plugwright.dra.resource_claims.claims import AllocatedClaim, AllocatedDevice
from plugwright.dra.resource_claims.prepared_claims import ClaimedDevice
from plugwright.model import Allocation, Device
from plugwright.sdk import cdi


@pytest.mark.parametrize(
    ("driver", "kind"),
    [("tape.example.com", "tape.example.com/claim"), ("3d.example.com", "dra-3d.example.com/claim")],
)
def test_the_kind_of_a_drivers_claims_is_one_that_runtimes_take(driver: str, kind: str) -> None:
    assert claim_devices.cdi_kind(driver) == kind
    assert cdi.qualified_name(kind, "u-1-st0")


def test_two_shares_of_one_device_in_one_request_are_one_device_with_both() -> None:
    results = tuple(
        AllocatedDevice("part", "node-1", "card", share_id=f"s-{number}", consumed={"memory": number})
        for number in (10, 20)
    )
    claim = AllocatedClaim("default", "one", "u-1", results)
    card = Device("card", capacity={"memory": 80, "slots": 4}, allow_multiple=True)
    (given,) = claim_devices.devices_by_request(claim, {"card": card})["part"]
    assert {name: amount.value for name, amount in given.capacity.items()} == {"memory": 30, "slots": 4}
    assert (given.id, given.allow_multiple) == ("card", True)


def test_a_device_keeps_its_capacity_where_the_claim_has_all_of_it() -> None:
    device = Device("card", capacity={"memory": 80})
    assert claim_devices.device_of_claim(device, {}, {}).capacity == device.capacity


def test_device_nodes_are_looked_for_on_the_host(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/there").touch()
    (tmp_path / "dev/link").symlink_to("/dev/only-on-the-host")
    allocations = [Allocation(nodes=["/dev/there", "/dev/b"]), Allocation(nodes=["/dev/link", "/dev/a"])]
    assert claim_devices.missing_nodes(allocations, tmp_path) == ["/dev/a", "/dev/b"]


def test_names_that_would_be_the_same_differ() -> None:
    results = [("watch", "a"), ("b", "a"), ("other", "a-b")]
    claim = AllocatedClaim(
        "default", "one", "u", tuple(AllocatedDevice(request, "node-1", device) for request, device in results)
    )
    allocations = {request: Allocation(env={"X": request}) for request, _ in results}
    made = claim_devices.spec_of("d.example.com", claim, allocations, {})
    assert made.spec is not None
    names = [name for names in made.names.values() for name in names]
    assert len(set(names)) == 3 == len(made.spec.devices)


def test_cdi_names_in_annotations_are_passed_on_too() -> None:
    claim = AllocatedClaim("default", "one", "u", (AllocatedDevice("tape", "node-1", "st0"),))
    allocation = Allocation(annotations={"cdi.k8s.io/tape": "example.com/tape=st0", "other": "text"})
    made = claim_devices.spec_of("d.example.com", claim, {"tape": allocation}, {})
    assert (made.spec, made.names) == (None, {"tape": ("example.com/tape=st0",)})


def test_names_are_with_the_first_device_of_their_request() -> None:
    devices = [ClaimedDevice(name, name, "node-1", request) for name, request in [("a", "x"), ("b", "y"), ("c", "x")]]
    named = claim_devices.with_names(devices, {"x": ("k/c=1",), "y": ()})
    assert [device.cdi for device in named] == [("k/c=1",), (), ()]


UID = "0d3c0d3c-0000-4000-8000-000000000001"


def test_the_spec_names_every_device_of_a_request(tmp_path: Path) -> None:
    """It may be all that is left of the claim: a device that it does not name would be given to a pod."""
    results = [AllocatedDevice("four", "node-1", f"st{number}") for number in range(4)]
    monitor = AllocatedDevice("monitor", "node-1", "st9", admin_access=True)
    claim = AllocatedClaim("default", "one", UID, (*results, monitor))
    files = ClaimFiles("d.example.com", cdi.SpecDirectory(tmp_path, owner="plugwright-dra"))
    made = files.write(claim, {"four": Allocation(env={"A": "b"})}, {})
    assert list(made.names.values()) == [(f"d.example.com/claim={UID}-st0",)]
    [found] = files.find()
    assert [device.name for device in found.devices] == ["st0", "st1", "st2", "st3"]
