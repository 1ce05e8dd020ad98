"""The claims of pods in the pod-resources API; numbers in comments are those of the facts."""

from tests.kubelet.dra.driver import DRIVER, ScriptedDriver
from tests.kubelet.dra.stored_claims import StoredClaims
from tests.kubelet.dra.test_claims_of_pods import CLAIM, pod

from plugwright.kubelet import Kubelet
from plugwright.protocol import pod_resources
from plugwright.protocol.dra import PreparedDevice
from plugwright.protocol.pod_resources import ClaimDevice, DynamicResource, HeldClaimDevice


async def claims_of(node: Kubelet, name: str) -> dict[str, tuple[DynamicResource, ...]]:
    async with pod_resources.connect(node.paths.pod_resources_socket) as client:
        listed = next(pod for pod in await client.pods() if pod.name == name)
        assert await client.pod(name, "default") == listed
    return {container.name: container.claims for container in listed.containers}


async def test_a_container_has_all_devices_of_its_claims_in_pod_resources(
    node: Kubelet, driver: ScriptedDriver, api: StoredClaims
) -> None:  # 11.27, 11.28
    api.add(CLAIM)
    driver.answer = [
        PreparedDevice("node", "gpu-0", ("gpu",), ("example.com/gpu=0",)),
        PreparedDevice("node", "nic-0", ("nic",), ("example.com/nic=0",), "s-1"),
    ]
    await node.admit(pod(request="gpu"))
    devices = (
        ClaimDevice(DRIVER, "node", "gpu-0", ("example.com/gpu=0",)),
        ClaimDevice(DRIVER, "node", "nic-0", ("example.com/gpu=0", "example.com/nic=0"), "s-1"),
    )
    assert await claims_of(node, "a") == {"c": (DynamicResource("default", "one", devices),), "none": ()}
    assert await pod_resources.held_claims(node.paths.pod_resources_socket, 5) == [
        HeldClaimDevice(DRIVER, "node", "gpu-0", "default", "one", "a", "c"),
        HeldClaimDevice(DRIVER, "node", "nic-0", "default", "one", "a", "c", "s-1"),
    ]


async def test_a_claim_that_failed_has_no_devices_and_an_unknown_one_is_not_named(
    node: Kubelet, driver: ScriptedDriver, api: StoredClaims
) -> None:  # 11.27
    driver.answer = "no power"
    admitted = await node.admit(pod())
    assert await claims_of(node, "a") == {"c": (), "none": ()}
    api.add(CLAIM)
    await node.start_waiting(admitted)
    assert await claims_of(node, "a") == {"c": (DynamicResource("default", "one"),), "none": ()}
    await node.remove(admitted)
    assert await pod_resources.held_claims(node.paths.pod_resources_socket, 5) == []
