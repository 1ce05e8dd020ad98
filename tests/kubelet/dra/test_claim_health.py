"""The health of claims in a pod's status; numbers in comments are those of the facts."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.kubelet.actors import Clock
from tests.kubelet.dra.driver import DRIVER, ScriptedDriver
from tests.kubelet.dra.stored_claims import StoredClaims
from tests.kubelet.dra.test_claims_of_pods import CLAIM, pod

from plugwright.kubelet import Kubelet
from plugwright.kubelet.dra.health import ClaimDeviceHealth, ClaimHealth
from plugwright.kubelet.events import StateChange
from plugwright.protocol.dra import PreparedDevice
from plugwright.protocol.dra_health import HealthStatus, ReportedHealth

HOT = ReportedHealth("node", "gpu-0", HealthStatus.UNHEALTHY, "too hot")
GPU = PreparedDevice("node", "gpu-0", ("gpu",), ("example.com/gpu=0", "example.com/more=0"))
NIC = PreparedDevice("node", "nic-0", ("nic",))


@pytest.mark.parametrize(
    ("request_name", "shown"),
    [
        ("", [("claim:dev", "example.com/gpu=0"), ("claim:dev", f"{DRIVER}/node/nic-0")]),
        ("gpu", [("claim:dev/gpu", "example.com/gpu=0")]),
        ("nic", [("claim:dev/nic", f"{DRIVER}/node/nic-0")]),
    ],
)
async def test_devices_are_shown_by_the_claim_as_the_container_names_it(
    node: Kubelet, driver: ScriptedDriver, api: StoredClaims, request_name: str, shown: list[tuple[str, str]]
) -> None:  # 11.26a
    api.add(CLAIM)
    driver.answer = [GPU, NIC]
    health = node.claim_health(await node.admit(pod(request=request_name)))
    assert [(device.resource, device.resource_id) for device in health["c"]] == shown
    assert {device.health for device in health["c"]} == {"Unknown"}
    assert health["none"] == ()


async def test_two_devices_with_one_name_are_shown_once(
    node: Kubelet, driver: ScriptedDriver, api: StoredClaims
) -> None:  # 11.26a
    api.add(CLAIM)
    driver.answer = [GPU, PreparedDevice("node", "gpu-1", ("gpu",), ("example.com/gpu=0",))]
    admitted = await node.admit(pod())
    node._running.claims.health.health_received(DRIVER, [HOT])
    assert node.claim_health(admitted)["c"] == (
        ClaimDeviceHealth("claim:dev", "example.com/gpu=0", "Unhealthy", "too hot"),
    )


async def test_the_pods_that_use_a_device_are_told_of_its_health_once(
    node: Kubelet, driver: ScriptedDriver, api: StoredClaims
) -> None:  # 11.26b
    api.add(CLAIM)
    await node.admit(pod())
    for health in (HOT, HOT, ReportedHealth("node", "gpu-9", HealthStatus.HEALTHY)):
        node._running.claims.health.health_received(DRIVER, [health])
    assert [event.about for event in node.recorded if isinstance(event, StateChange) and event.kind == "health"] == [
        "a-pod"
    ]


def test_a_device_that_is_left_out_becomes_unknown_with_the_next_message(tmp_path: Path) -> None:  # 11.24, 11.26b
    clock, changes = Clock(), list[set[tuple[str, str]]]()
    health = ClaimHealth(clock, lambda _driver, changed: changes.append(changed), tmp_path)

    def say(*devices: ReportedHealth) -> Sequence[set[tuple[str, str]]]:
        changes.clear()
        health.health_received(DRIVER, devices)
        return list(changes)

    assert say(HOT) == [{("node", "gpu-0")}]
    assert say() == []
    clock.advance(30.1)
    assert health.of(DRIVER, "node", "gpu-0") == (HealthStatus.UNKNOWN, "")
    assert say() == [{("node", "gpu-0")}]
    assert say() == []
    assert say(HOT) == [{("node", "gpu-0")}]
    assert say(HOT) == []


def test_further_devices_of_a_driver_are_ignored_until_others_are_forgotten(tmp_path: Path) -> None:  # 11.26d
    clock = Clock()
    health = ClaimHealth(clock, lambda _driver, _changed: None, tmp_path, limit=2)
    devices = [ReportedHealth("node", name, HealthStatus.HEALTHY) for name in ("a", "b", "c")]

    def healthy() -> list[str]:
        return [name for name in "abc" if health.of(DRIVER, "node", name)[0] is HealthStatus.HEALTHY]

    health.health_received(DRIVER, devices)
    assert healthy() == ["a", "b"]
    clock.advance(31)
    health.health_received(DRIVER, devices[1:])
    assert healthy() == ["b"]
    health.health_received(DRIVER, devices[1:])
    assert healthy() == ["b", "c"]
    assert [*json.loads((tmp_path / "dra_health_state").read_bytes())[DRIVER]["Devices"]] == ["node/b", "node/c"]


async def test_health_outlives_the_kubelet_until_it_is_too_old(
    node: Kubelet, driver: ScriptedDriver, clock: Clock
) -> None:  # 11.26c
    health = node._running.claims.health
    health.health_received(DRIVER, [HOT])
    path = node.paths.root / "dra_health_state"
    (entry,) = json.loads(path.read_bytes())[DRIVER]["Devices"].values()
    assert {key: value for key, value in entry.items() if key != "LastUpdated"} == {
        "PoolName": "node",
        "DeviceName": "gpu-0",
        "Health": "Unhealthy",
        "HealthCheckTimeout": 30_000_000_000,
        "Message": "too hot",
    }
    again = ClaimHealth(clock, lambda _driver, _changed: None, node.paths.root)
    assert again.of(DRIVER, "node", "gpu-0") == (HealthStatus.UNKNOWN, "")
    again.load()
    assert again.of(DRIVER, "node", "gpu-0") == (HealthStatus.UNHEALTHY, "too hot")
    clock.advance(31)
    assert again.of(DRIVER, "node", "gpu-0") == (HealthStatus.UNKNOWN, "")
    health.health_lost(DRIVER)  # its stream has ended
    assert json.loads(path.read_bytes()) == {}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', '{"a": {"Devices": {"b": {"Health": "Fine"}}}}'])
async def test_a_damaged_file_of_health_keeps_no_kubelet_from_starting(node: Kubelet, text: str) -> None:  # 11.26c
    (node.paths.root / "dra_health_state").write_text(text)
    await node.restart()
    assert node._running.claims.health.of(DRIVER, "node", "gpu-0") == (HealthStatus.UNKNOWN, "")


async def test_an_extended_resource_served_by_a_claim_is_no_device_of_a_plugin(
    node: Kubelet, driver: ScriptedDriver, api: StoredClaims
) -> None:  # 3.9, 11.22a, 11.26a
    api.add(CLAIM)
    driver.answer = [GPU, NIC]
    mapping = {"containerName": "c", "resourceName": "example.com/gpu", "requestName": "gpu"}
    container = {"name": "c", "resources": {"limits": {"example.com/gpu": "1", "cpu": "1"}}}
    admitted = await node.admit(
        {
            "metadata": {"name": "a", "uid": "a-pod"},
            "spec": {"containers": [container, {"name": "none"}]},
            "status": {"extendedResourceClaimStatus": {"resourceClaimName": "one", "requestMappings": [mapping]}},
        }
    )
    assert admitted.container("c").cdi == GPU.cdi_devices
    assert admitted.spec.requested("example.com/gpu") == 0
    assert node.claim_health(admitted) == {"c": (), "none": ()}
    await node.remove(admitted)
    assert len(driver.unprepared) == 1
