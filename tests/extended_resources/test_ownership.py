"""Who set a capacity key, from records such as a real API server writes them."""

from datetime import UTC, datetime

from plugwright.extended_resources.resources import Entry, setters

HEARTBEAT: dict[str, object] = {'k:{"type":"Ready"}': {"f:lastHeartbeatTime": {}, "f:status": {}}}


def at(minute: int) -> datetime:
    return datetime(2026, 11, 15, 10, minute, tzinfo=UTC)


def entry(manager: str, minute: int, *names: str, heartbeat: bool = False) -> Entry:
    status: dict[str, object] = {
        "f:capacity": {f"f:{name}": {} for name in names},
        "f:allocatable": {"f:else/where": {}},
    }
    if heartbeat:
        status["f:conditions"] = HEARTBEAT
    return Entry(manager, at(minute), {"f:status": status})


def test_a_key_belongs_to_who_set_it() -> None:
    found = setters([entry("kubelet", 5, "mock/gpu", heartbeat=True), entry("kubectl-patch", 3, "example.com/dongle")])
    assert {name: (each.manager, each.kubelet) for name, each in found.items()} == {
        "mock/gpu": ("kubelet", True),
        "example.com/dongle": ("kubectl-patch", False),
    }
    assert found["example.com/dongle"].time == at(3)


def test_who_sends_the_heartbeats_is_the_kubelet_whatever_its_name() -> None:
    found = setters([entry("k3s", 1, "mock/gpu", heartbeat=True), entry("kubelet", 2, "example.com/dongle")])
    assert (found["mock/gpu"].kubelet, found["example.com/dongle"].kubelet) == (True, False)


def test_without_heartbeats_the_kubelet_goes_by_its_name() -> None:
    assert setters([entry("kubelet", 1, "mock/gpu")])["mock/gpu"].kubelet


def test_of_two_owners_the_kubelet_counts_else_the_later_one() -> None:
    shared = [entry("b", 2, "x/y"), entry("a", 1, "x/y")]
    assert setters(shared)["x/y"].manager == "b"
    assert setters([*shared, entry("kubelet", 0, "x/y", heartbeat=True)])["x/y"].manager == "kubelet"


def test_a_value_is_settled_when_the_kubelet_has_written_since() -> None:
    by_hand = entry("curl", 3, "x/y")
    assert not setters([by_hand, entry("kubelet", 3, heartbeat=True)])["x/y"].settled
    assert setters([by_hand, entry("kubelet", 4, heartbeat=True)])["x/y"].settled
    assert not setters([by_hand])["x/y"].settled


def test_records_of_another_shape_are_no_owners() -> None:
    odd: list[dict[str, object]] = [{}, {"f:status": "all"}, {"f:status": {"f:capacity": {".": {}, "cpu": {}}}}]
    assert setters([Entry("curl", None, fields) for fields in odd]) == {}
