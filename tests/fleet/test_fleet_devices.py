"""Devices of small clusters: what NodeReports add to the API server's objects, and what stays unknown."""

from typing import Any

import pytest

from plugwright.explain.world import ApiObject, World
from plugwright.fleet.fleet_devices import Fleet, FleetDevice, NodeSource, make_fleet
from plugwright.fleet.sums import count_free, select_devices

GPU, DRIVER = "example.com/gpu", "gpu.example.com"


def node(name: str, capacity: int, allocatable: int) -> ApiObject:
    counts = {"cpu": "8"}
    status = {"capacity": counts | {GPU: str(capacity)}, "allocatable": counts | {GPU: str(allocatable)}}
    return {"metadata": {"name": name}, "status": status}


def pod(name: str, gpus: int = 0, on: str = "n1", held: tuple[str, ...] = (), **spec: Any) -> ApiObject:
    container = {"name": "main", "resources": {"limits": {GPU: str(gpus)} if gpus else {}}}
    devices = [{"resourceID": device, "health": "Unhealthy", "message": "hot"} for device in held]
    status = {"allocatedResourcesStatus": [{"name": GPU, "resources": devices}]} if held else {}
    statuses = [{"name": "main", **status}]
    metadata = {"namespace": "team", "name": name, "uid": f"uid-{name}"}
    return {
        "metadata": metadata,
        "spec": {"nodeName": on, "containers": [container]} | spec,
        "status": {"phase": "Running", "containerStatuses": statuses},
    }


def device(device_id: str, health: str = "Healthy", **values: Any) -> dict[str, Any]:
    since = "2026-11-18T20:00:00Z"
    return {"id": device_id, "health": health, "since": since, "api": "device-plugin", "holders": []} | values


def report(*devices: dict[str, Any], is_complete: bool = True, **values: Any) -> NodeSource:
    resource = {"name": GPU, "devices": list(devices)} | values.pop("resource", {})
    document = {"holdings": {"complete": is_complete}, "resources": [resource]} | values
    return NodeSource(node="n1", via="test", report=document)


def slice_of(*names: str, generation: int = 1, taint: str = "") -> ApiObject:
    taints = {"taints": [{"key": taint, "effect": "NoSchedule", "timeAdded": "2026-11-18T19:00:00Z"}]} if taint else {}
    attributes = {"productName": {"string": "H100"}, "resource.kubernetes.io/numaNode": {"int": 1}}
    devices = [{"name": name, "attributes": attributes} | taints for name in names]
    pool = {"name": "n1", "generation": generation}
    spec = {"driver": DRIVER, "nodeName": "n1", "pool": pool, "devices": devices}
    return {"metadata": {"name": f"slice-{generation}"}, "spec": spec}


def claim(name: str, held: str, users: tuple[str, ...] = (), **result: Any) -> ApiObject:
    results = [{"driver": DRIVER, "pool": "n1", "device": held, "request": "r"} | result]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": user} for user in users],
    }
    return {"metadata": {"namespace": "team", "name": name}, "status": status}


def only(fleet: Fleet) -> FleetDevice:
    [found] = fleet.devices
    return found


def test_a_node_report_names_each_device_its_holder_and_what_is_free() -> None:
    holder = {"api": "device-plugin", "podUid": "uid-train", "container": "main", "since": "2026-11-18T20:01:00Z"}
    fleet = make_fleet(
        World((node("n1", 2, 2),), (pod("train", 1),)), [report(device("a", holders=[holder]), device("b"))]
    )
    held, free = fleet.devices
    assert (held.state, held.holders[0].name, held.holders[0].since) == (
        "held",
        "team/train/main",  # the report knew the uid alone
        "2026-11-18T20:01:00Z",
    )
    assert (free.state, fleet.unnamed, fleet.unseen) == ("free", (), ())


def test_a_holder_that_neither_the_kubelet_nor_the_api_server_knows_has_ended() -> None:
    holders = [{"api": "device-plugin", "podUid": "gone"}]
    ended = make_fleet(World((node("n1", 1, 1),)), [report(device("a", holders=holders))])
    assert (only(ended).state, only(ended).holders) == ("free", ())
    unread = World((node("n1", 1, 1),), unseen=("pods of other namespaces cannot be read: they count as free",))
    assert only(make_fleet(unread, [report(device("a", holders=holders))])).state == "held"
    unclear = make_fleet(World((node("n1", 1, 1),)), [report(device("a", holders=holders), is_complete=False)])
    assert only(unclear).state == "unknown"


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (device("a", "Unhealthy", reason="Xid 79", code="xid-79"), "unhealthy"),
        (device("a", "Unhealthy", reason="cordoned: fan", code="cordoned", cordoned="fan"), "cordoned"),
        (device("a", "Unhealthy", code="holders-unknown"), "unknown"),
        (device("a", "Unhealthy", code="held", closed="held by team/x"), "held"),
        (device("a", api=""), "unknown"),  # it moves
        (device("a", holders=[{"api": "dra", "claim": "c", "adminAccess": True}]), "free"),
        (device("a", holders=[{"api": "dra", "claim": "c", "shareId": "1"}]), "shared"),
    ],
)
def test_the_state_of_a_reported_device(found: dict[str, Any], state: str) -> None:
    assert only(make_fleet(World(), [report(found)])).state == state


def test_a_device_without_a_holder_is_unknown_while_a_source_cannot_be_read() -> None:
    fleet = make_fleet(World(), [report(device("a"), is_complete=False)])
    assert only(fleet).state == "unknown"
    [row] = count_free(fleet)
    assert (row.total, row.free, row.unknown) == (1, 0, 1)


def test_a_cordon_has_its_author_and_its_end() -> None:
    cordon = {"resource": GPU, "id": "a", "by": "ops", "until": "2026-12-01T00:00:00Z", "reason": "fan"}
    found = only(make_fleet(World(), [report(device("a", cordoned="fan"), cordons=[cordon])]))
    assert (found.state, found.cordoned_by, found.cordoned_until) == ("cordoned", "ops", "2026-12-01T00:00:00Z")


def test_without_a_report_devices_are_numbers_and_those_that_a_pod_status_names() -> None:
    init = [{"name": "first", "resources": {"limits": {GPU: "3"}}}]
    world = World((node("n1", 8, 7),), (pod("train", 2, held=("a", "b")), pod("big", 1, initContainers=init)))
    fleet = make_fleet(world, [])
    assert [(found.id, found.state, found.health, found.source) for found in fleet.devices] == [
        ("a", "held", "Unhealthy", "pod-status"),
        ("b", "held", "Unhealthy", "pod-status"),
    ]
    [counted] = fleet.unnamed
    assert (counted.capacity, counted.allocatable, counted.requested) == (8, 7, 5)
    [row] = count_free(fleet)
    assert (row.total, row.free, row.held, row.unhealthy) == (8, 2, 5, 1)
    assert "pod statuses, which omit init and sidecar containers" in fleet.unseen[0]


def test_pods_that_cannot_be_read_make_nothing_free() -> None:
    unseen = ("pods of other namespaces cannot be read: what they hold counts as free",)
    [row] = count_free(make_fleet(World((node("n1", 4, 4),), unseen=unseen), []))
    assert (row.free, row.unknown) == (0, 4)


def test_a_report_that_cannot_be_read_is_said_and_the_api_server_is_used() -> None:
    fleet = make_fleet(World((node("n1", 4, 4),)), [NodeSource(node="n1", problem="no permission")])
    assert fleet.unseen[0] == "n1: its NodeReport cannot be read: no permission"
    assert fleet.unnamed[0].capacity == 4


def test_a_device_of_a_slice_is_unknown_while_the_daemon_of_its_node_does_not_answer() -> None:
    world = World((node("n1", 0, 0),), (), slices=(slice_of("gpu-0"),))
    assert only(make_fleet(world, [])).state == "free"
    assert only(make_fleet(world, [NodeSource(node="n1", problem="no answer")])).state == "unknown"


def test_devices_are_in_the_order_of_their_indexes() -> None:
    ids = {"GPU-f": "0", "GPU-a": "1", "GPU-c": "10", "GPU-b": "2"}
    found = report(*(device(name, attributes={"index": index}) for name, index in ids.items()))
    assert [device.index for device in make_fleet(World((node("n1", 4, 4),)), [found]).devices] == ["0", "1", "2", "10"]


def test_a_slice_shows_its_devices_with_the_pods_and_containers_of_their_claims() -> None:
    entry = {"resourceClaims": [{"name": "dev", "resourceClaimName": "c1"}]}
    container = {"name": "main", "resources": {"claims": [{"name": "dev"}]}}
    user = {**pod("user"), "spec": {"nodeName": "n1", "containers": [{"name": "log"}, container]} | entry}
    world = World(
        pods=(user,),
        slices=(slice_of("old", "a"), slice_of("a", "b", "c", generation=2)),
        claims=(claim("c1", "a", ("user",)), claim("c2", "b"), claim("watch", "c", adminAccess=True)),
    )
    held, leaked, watched = make_fleet(world, []).devices
    assert (held.state, held.holders[0].name, held.model, held.numa) == ("held", "team/user/main", "H100", (1,))
    assert (leaked.state, leaked.holders[0].name) == ("held", "claim team/c2")  # allocated, and no pod uses it
    assert (watched.state, watched.holders[0].admin_access) == ("free", True)


def test_a_device_of_which_a_claim_has_a_share_is_shared_and_a_tainted_one_is_not_free() -> None:
    shared = make_fleet(World(slices=(slice_of("a"),), claims=(claim("c", "a", shareID="x"),)), [])
    assert only(shared).state == "shared"
    tainted = only(make_fleet(World(slices=(slice_of("a", taint="xid"),)), []))
    assert (tainted.state, tainted.taints, tainted.since) == ("tainted", ("xid:NoSchedule",), "2026-11-18T19:00:00Z")


def test_claims_that_cannot_be_read_make_no_device_of_a_slice_free() -> None:
    unseen = ("claims of other namespaces cannot be read: devices that they hold count as free",)
    assert only(make_fleet(World(slices=(slice_of("a"),), unseen=unseen), [])).state == "unknown"


def test_the_devices_of_a_driver_with_a_report_are_not_counted_twice() -> None:
    resource = {"driver": {"name": DRIVER}}
    fleet = make_fleet(World(slices=(slice_of("a"),)), [report(device("a", api="dra"), resource=resource)])
    assert only(fleet).source == "node-report"


def test_devices_are_found_by_resource_id_hardware_pod_and_the_beginning_of_an_id() -> None:
    holder = {"api": "device-plugin", "namespace": "team", "pod": "train"}
    devices = make_fleet(
        World(), [report(device("GPU-1a", physical=["0000:3b:00.0"], holders=[holder]), device("GPU-2b"))]
    ).devices
    ids = {
        what: [found.id for found in select_devices(devices, what, namespace)]
        for what, namespace in [(GPU, ""), ("GPU-2", ""), ("0000:3b:00.0", ""), ("team/train", ""), ("train", "team")]
    }
    assert ids == {
        GPU: ["GPU-1a", "GPU-2b"],
        "GPU-2": ["GPU-2b"],
        "0000:3b:00.0": ["GPU-1a"],
        "team/train": ["GPU-1a"],
        "train": ["GPU-1a"],
    }
    assert select_devices(devices, "train", "other") == []
    assert select_devices(devices, "", "") == []


def test_an_index_is_no_beginning_of_an_id_and_a_whole_part_comes_before_longer_ones() -> None:
    listed = [device("0000:3b:00.0"), device("0000:5e:00.0", attributes={"index": "0"})]
    devices = make_fleet(World(), [report(*listed, device("mock-1-a"), device("mock-10-b"))]).devices
    ids = [found.id for found in select_devices(devices, "0", by_index=True)]
    assert ids == ["0000:5e:00.0"]
    assert [found.id for found in select_devices(devices, "0")] == ["0000:3b:00.0", "0000:5e:00.0"]
    assert [found.id for found in select_devices(devices, "mock-1")] == ["mock-1-a"]


def test_devices_are_found_by_the_claim_that_holds_them() -> None:
    claimed = {"api": "dra", "namespace": "team", "claim": "two"}
    devices = make_fleet(World(), [report(device("a", holders=[claimed]), device("b"))]).devices
    assert [found.id for found in select_devices(devices, "team/two")] == ["a"]
    assert [found.id for found in select_devices(devices, "two", "team")] == ["a"]
    assert select_devices(devices, "two", "other") == []
    assert select_devices(devices, "team/") == []


def test_free_devices_are_counted_by_model_node_and_numa_node() -> None:
    fleet = make_fleet(
        World(),
        [report(device("a", numa=[0], attributes={"model": "H100"}), device("b", "Unhealthy", numa=[1]))],
    )
    rows = {
        by: [(row.by, row.free, row.unhealthy) for row in count_free(fleet, by)] for by in ("model", "node", "numa")
    }
    assert rows == {
        "model": [("-", 0, 1), ("H100", 1, 0)],
        "node": [("n1", 1, 1)],
        "numa": [("n1 0", 1, 0), ("n1 1", 0, 1)],
    }
