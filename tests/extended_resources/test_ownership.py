"""The owner of a capacity key, from managedFields as a real API server writes them."""

from datetime import UTC, datetime

from plugwright.extended_resources.resources import ManagedFieldsEntry, capacity_owners

HEARTBEAT: dict[str, object] = {'k:{"type":"Ready"}': {"f:lastHeartbeatTime": {}, "f:status": {}}}


def at(minute: int) -> datetime:
    return datetime(2026, 11, 15, 10, minute, tzinfo=UTC)


def entry(manager: str, minute: int, *names: str, heartbeat: bool = False) -> ManagedFieldsEntry:
    status: dict[str, object] = {
        "f:capacity": {f"f:{name}": {} for name in names},
        "f:allocatable": {"f:else/where": {}},
    }
    if heartbeat:
        status["f:conditions"] = HEARTBEAT
    return ManagedFieldsEntry(manager, at(minute), {"f:status": status})


def test_owner_of_a_key_is_the_manager_that_set_it() -> None:
    owners = capacity_owners(
        [entry("kubelet", 5, "mock/gpu", heartbeat=True), entry("kubectl-patch", 3, "example.com/dongle")]
    )
    assert {name: (owner.manager, owner.kubelet) for name, owner in owners.items()} == {
        "mock/gpu": ("kubelet", True),
        "example.com/dongle": ("kubectl-patch", False),
    }
    assert owners["example.com/dongle"].time == at(3)


def test_manager_with_the_heartbeats_is_the_kubelet_whatever_its_name() -> None:
    owners = capacity_owners([entry("k3s", 1, "mock/gpu", heartbeat=True), entry("kubelet", 2, "example.com/dongle")])
    assert (owners["mock/gpu"].kubelet, owners["example.com/dongle"].kubelet) == (True, False)


def test_without_heartbeats_the_kubelet_goes_by_its_name() -> None:
    assert capacity_owners([entry("kubelet", 1, "mock/gpu")])["mock/gpu"].kubelet


def test_shared_key_belongs_to_the_kubelet_or_to_the_last_writer() -> None:
    shared = [entry("b", 2, "x/y"), entry("a", 1, "x/y")]
    assert capacity_owners(shared)["x/y"].manager == "b"
    assert capacity_owners([*shared, entry("kubelet", 0, "x/y", heartbeat=True)])["x/y"].manager == "kubelet"


def test_a_value_is_settled_when_the_kubelet_has_written_since() -> None:
    by_hand = entry("curl", 3, "x/y")
    assert not capacity_owners([by_hand, entry("kubelet", 3, heartbeat=True)])["x/y"].settled
    assert capacity_owners([by_hand, entry("kubelet", 4, heartbeat=True)])["x/y"].settled
    assert not capacity_owners([by_hand])["x/y"].settled


def test_managed_fields_of_another_shape_have_no_owners() -> None:
    odd: list[dict[str, object]] = [{}, {"f:status": "all"}, {"f:status": {"f:capacity": {".": {}, "cpu": {}}}}]
    assert capacity_owners([ManagedFieldsEntry("curl", None, fields) for fields in odd]) == {}
