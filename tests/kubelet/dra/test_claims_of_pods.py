"""Claims prepared for pods and unprepared after them; numbers in comments are those of the facts."""

import asyncio
import json
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kubelet.actors import Clock, quick_settings, until_state
from tests.kubelet.dra.driver import DRIVER, ScriptedDriver, registered
from tests.kubelet.dra.stored_claims import StoredClaims

from plugwright.errors import ContainerWaiting, KubeletError
from plugwright.kubelet import Kubelet, Phase, Pod, Timing
from plugwright.kubelet.dra.resource_api import ResourceClaim
from plugwright.protocol.dra import Claim, PreparedDevice

UID = "a-pod"
CLAIM = ResourceClaim("default", "one", "u-1", reserved_for=frozenset({UID, "b-pod"}), drivers=(DRIVER,))


def pod(name: str = "a", *, claim: str = "one", request: str = "") -> dict[str, object]:
    use = {"name": "dev"} | ({"request": request} if request else {})
    return {
        "metadata": {"name": name, "uid": f"{name}-pod"},
        "spec": {
            "resourceClaims": [{"name": "dev", "resourceClaimName": claim}],
            "containers": [{"name": "c", "resources": {"claims": [use]}}, {"name": "none"}],
        },
    }


def waiting(admitted: Pod) -> str:
    with pytest.raises(ContainerWaiting) as raised:
        admitted.container("c")
    assert admitted.phase is Phase.PENDING
    assert raised.value.reason == "ContainerCreating"
    return raised.value.message.removeprefix("prepare dynamic resources: ")


async def test_a_container_gets_the_devices_of_its_claim(
    node: Kubelet, driver: ScriptedDriver, api: StoredClaims
) -> None:  # 11.14, 11.20
    api.add(CLAIM)
    admitted = await node.admit(pod())
    assert driver.prepared == [[Claim("default", "one", "u-1")]]
    assert admitted.container("c").cdi == ("example.com/gpu=0",)
    assert admitted.container("none").cdi == ()


@pytest.mark.parametrize(
    ("claim", "text"),
    [
        (None, 'fetch ResourceClaim one: resourceclaims.resource.k8s.io "one" not found'),
        (replace(CLAIM, reserved_for=frozenset()), "pod a (a-pod) is not allowed to use ResourceClaim one (u-1)"),
        (replace(CLAIM, drivers=None), "ResourceClaim one: not allocated"),
        (replace(CLAIM, drivers=("other.example.com",)), "DRA driver other.example.com is not registered"),
    ],
)
async def test_a_claim_that_is_not_ready_keeps_its_pod_waiting_and_leaves_no_trace(
    node: Kubelet, driver: ScriptedDriver, api: StoredClaims, claim: ResourceClaim | None, text: str
) -> None:  # 11.12
    if claim is not None:
        api.add(claim)
    admitted = await node.admit(pod())
    assert waiting(admitted) == text
    assert not driver.prepared
    assert state(node) == []
    api.add(CLAIM)
    await node.start_waiting(admitted)
    assert admitted.container("c").cdi == ("example.com/gpu=0",)


async def test_a_generated_claim_is_its_pods_alone(node: Kubelet, driver: ScriptedDriver, api: StoredClaims) -> None:
    api.add(CLAIM)
    spec = pod()
    spec["spec"]["resourceClaims"] = [{"name": "dev", "resourceClaimTemplateName": "t"}]  # type: ignore[index]
    early = await node.admit({**spec, "metadata": {"name": "b", "uid": "b-pod"}})
    assert "has not been created for it yet" in waiting(early)
    spec["status"] = {"resourceClaimStatuses": [{"name": "dev", "resourceClaimName": "one"}]}
    admitted = await node.admit(spec)
    assert "was not created for Pod default/a" in waiting(admitted)
    api.add(replace(CLAIM, owner=UID))
    await node.start_waiting(admitted)
    assert admitted.phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("driver", "text"),
    [
        (ScriptedDriver(answer="no power"), "NodePrepareResources failed for ResourceClaim one: no power"),
        (ScriptedDriver(skipped=frozenset({"u-1"})), "NodePrepareResources skipped 1 ResourceClaims"),
        (
            ScriptedDriver(extra={"u-9": ()}),
            "NodePrepareResources returned result for unknown claim UID u-9",
        ),
    ],
    ids=["error", "missing", "unknown"],
)
async def test_a_driver_that_fails_keeps_the_pod_waiting_with_its_words(
    node: Kubelet, api: StoredClaims, driver: ScriptedDriver, text: str
) -> None:  # 11.15
    api.add(CLAIM)
    async with registered(driver, node):
        admitted = await node.admit(pod())
        assert waiting(admitted) == text
        driver.answer, driver.skipped, driver.extra = ScriptedDriver().answer, frozenset(), {}
        await node.start_waiting(admitted)
        assert admitted.container("c").cdi == ("example.com/gpu=0",)
        await node.remove(admitted)


async def test_a_call_that_takes_too_long_is_given_up(root: Path, api: StoredClaims) -> None:
    settings = quick_settings()
    settings = replace(settings, timing=replace(settings.timing, prepare=0.05))
    api.add(CLAIM)
    async with (
        Kubelet(root, settings, resource_api=api) as node,
        registered(ScriptedDriver(held=asyncio.Event()), node),
    ):
        text = waiting(await node.admit(pod()))
    assert text == "NodePrepareResources: rpc error: code = DeadlineExceeded desc = context deadline exceeded"


async def test_a_second_pod_on_a_claim_is_no_second_call_and_the_last_one_ends_it(
    node: Kubelet, driver: ScriptedDriver, api: StoredClaims
) -> None:  # 11.16, 11.19
    api.add(CLAIM)
    first, second = await node.admit(pod("a")), await node.admit(pod("b"))
    assert len(driver.prepared) == 1
    assert second.container("c").cdi == ("example.com/gpu=0",)
    await node.remove(first)
    assert not driver.unprepared
    await node.remove(second)
    assert driver.unprepared == [[Claim("default", "one", "u-1")]]
    assert state(node) == []


async def test_claims_of_one_pod_come_in_one_call_and_pods_side_by_side(
    node: Kubelet, driver: ScriptedDriver, api: StoredClaims
) -> None:  # 11.14
    driver.held = asyncio.Event()
    for name in ("a", "b"):
        for number in (1, 2):
            api.add(replace(CLAIM, name=f"{name}-{number}", uid=f"u-{name}-{number}"))
    specs = []
    for name in ("a", "b"):
        spec = pod(name)
        claims = [{"name": f"d{number}", "resourceClaimName": f"{name}-{number}"} for number in (1, 2)]
        spec["spec"]["resourceClaims"] = claims  # type: ignore[index]
        spec["spec"]["containers"][0]["resources"] = {"claims": [{"name": "d1"}]}  # type: ignore[index]
        specs.append(spec)
    async with asyncio.TaskGroup() as tasks:
        for spec in specs:
            tasks.create_task(node.admit(spec))
        while len(driver.prepared) < 2:
            await asyncio.sleep(0.001)
        driver.held.set()
    assert sorted([claim.uid for claim in call] for call in driver.prepared) == [["u-a-1", "u-a-2"], ["u-b-1", "u-b-2"]]


async def test_a_device_reaches_the_containers_that_name_its_request(
    node: Kubelet, driver: ScriptedDriver, api: StoredClaims
) -> None:  # 11.20
    api.add(CLAIM)
    driver.answer = [
        PreparedDevice("node", "gpu-0", ("gpu",), ("example.com/gpu=0",)),
        PreparedDevice("node", "nic-0", ("nic",), ("example.com/nic=0",)),
        PreparedDevice("node", "both", (), ("example.com/both=0",)),
    ]
    admitted = await node.admit(pod(request="gpu"))
    assert admitted.container("c").cdi == ("example.com/gpu=0", "example.com/both=0")


async def test_a_subrequest_in_the_answer_is_a_finding(
    node: Kubelet, driver: ScriptedDriver, api: StoredClaims
) -> None:  # 11.21
    api.add(CLAIM)
    driver.answer = [PreparedDevice("node", "gpu-0", ("gpu/big",), ("example.com/gpu=0",))]
    admitted = await node.admit(pod(request="gpu"))
    assert admitted.container("c").cdi == ()
    assert [finding.fact for finding in node.findings] == ["11.21"]


async def test_a_pod_whose_claims_cannot_be_unprepared_stays_and_is_tried_again(
    root: Path, api: StoredClaims
) -> None:  # 11.19
    settings = quick_settings()
    api.add(CLAIM)
    settings = replace(settings, timing=replace(settings.timing, unprepare_retry=0.01))
    async with Kubelet(root, settings, resource_api=api) as node, registered(ScriptedDriver(), node) as driver:
        driver.unprepare_error = "still open"
        admitted = await node.admit(pod())
        await node.remove(admitted)
        assert admitted.terminating
        assert admitted in node.pods
        driver.unprepare_error = ""
        await until_state(node, "deleted", "default/a")
        assert node.pods == ()


@pytest.mark.parametrize("version", ["1.36", "1.37"])
async def test_from_1_37_on_no_pod_joins_a_claim_whose_unprepare_has_failed(
    root: Path, api: StoredClaims, version: str
) -> None:  # 11.22
    api.add(CLAIM)
    settings = quick_settings(version=version, clock=Clock())
    async with Kubelet(root, settings, resource_api=api) as node, registered(ScriptedDriver(), node) as driver:
        driver.unprepare_error = "still open"
        await node.remove(await node.admit(pod("a")))
        second = await node.admit(pod("b"))
        if version == "1.37":
            assert waiting(second) == "ResourceClaim one is being unprepared"
        else:
            assert second.container("c").cdi == ("example.com/gpu=0",)


async def test_a_claim_of_a_pod_that_vanished_is_unprepared_by_a_later_look(
    root: Path, api: StoredClaims
) -> None:  # 11.19a
    api.add(CLAIM)
    settings = quick_settings(clock=Clock())
    async with Kubelet(root, settings, resource_api=api) as before, registered(ScriptedDriver(), before):
        await before.admit(pod("a"))
        await before.admit(pod("b"))
    driver = ScriptedDriver(unprepare_error="still open")
    settings = replace(settings, timing=replace(settings.timing, claim_reconcile=0.02))
    async with Kubelet(root, settings, resource_api=api) as node, registered(driver, node):
        # Both were force-deleted while no kubelet ran. The driver fails at first.
        await until_state(node, "reconciling", "b-pod")
        driver.unprepare_error = ""
        await until_state(node, "unprepared", "default/one")
        assert state(node) == []
        assert (await node.admit(pod("a"))).container("c").cdi == ("example.com/gpu=0",)


async def test_claims_of_pods_that_run_are_left_alone(root: Path, api: StoredClaims) -> None:  # 11.19a
    api.add(CLAIM)
    api.add(replace(CLAIM, name="two", uid="u-2"))
    settings = quick_settings(clock=Clock())
    settings = replace(settings, timing=replace(settings.timing, claim_reconcile=0.02))
    async with Kubelet(root, settings, resource_api=api) as node, registered(ScriptedDriver(), node) as driver:
        await node.admit(pod("a"))
        vanished = await node.admit(pod("b", claim="two"))
        node._table.remove(vanished.uid)
        await until_state(node, "unprepared", "default/two")
        assert driver.unprepared == [[Claim("default", "two", "u-2")]]


async def test_after_a_restart_running_pods_are_left_alone_and_a_new_sandbox_is_prepared_again(
    node: Kubelet, driver: ScriptedDriver, api: StoredClaims
) -> None:  # 11.16, 11.17
    api.add(CLAIM)
    admitted = await node.admit(pod())
    driver.registered.publish(None)
    await node.restart()
    await driver.until_registered()
    assert len(driver.prepared) == 1
    assert node.granted(admitted, "c").cdi == ("example.com/gpu=0",)
    node.stop_container(admitted, "c")
    node.stop_container(admitted, "none")
    await node.start_waiting(admitted)
    assert len(driver.prepared) == 2


async def test_a_claim_made_again_under_its_name_waits_for_the_old_one(
    node: Kubelet, driver: ScriptedDriver, api: StoredClaims
) -> None:
    api.add(CLAIM)
    await node.admit(pod("a"))
    api.add(replace(CLAIM, uid="u-2"))
    assert waiting(await node.admit(pod("b"))).startswith("old ResourceClaim with same name one and different UID u-1")


@pytest.mark.parametrize(("version", "finds"), [("1.36", ["11.22"]), ("1.37", [])])
async def test_a_pod_that_never_had_the_claim_prepared_ends_it_for_another_before_1_37(
    root: Path, clock: Clock, api: StoredClaims, version: str, finds: list[str]
) -> None:  # 11.22
    api.add(replace(CLAIM, drivers=(DRIVER,)))
    async with (
        Kubelet(root, quick_settings(clock=clock, version=version), resource_api=api) as node,
        registered(ScriptedDriver(), node) as driver,
    ):
        await node.admit(pod("a"))
        api.add(replace(CLAIM, drivers=(DRIVER, "other.example.com")))
        refused = await node.admit(pod("b"))
        assert waiting(refused) == "DRA driver other.example.com is not registered"
        await node.remove(refused)
        assert len(driver.unprepared) == len(finds)
        assert len(state(node)) == 1 - len(finds)
        assert [finding.fact for finding in node.findings] == finds


def state(kubelet: Kubelet) -> list[dict[str, object]]:
    """The claims in the kubelet's file."""
    document = json.loads((kubelet.paths.root / "dra_manager_state").read_bytes())
    assert document["Checksum"] == zlib.crc32(document["Data"].encode())
    data = json.loads(document["Data"])
    assert (data["kind"], data["apiVersion"]) == ("DRACheckpoint", "checkpoint.dra.kubelet.k8s.io/v1")
    return list(data["ClaimInfoStateList"])


async def test_the_file_is_the_kubelets(node: Kubelet, driver: ScriptedDriver, api: StoredClaims) -> None:  # 11.13
    api.add(CLAIM)
    await node.admit(pod())
    assert state(node) == [
        {
            "ClaimUID": "u-1",
            "ClaimName": "one",
            "Namespace": "default",
            "PodUIDs": {"a-pod": {}},
            "DriverState": {
                DRIVER: {
                    "Devices": [
                        {
                            "PoolName": "node",
                            "DeviceName": "gpu-0",
                            "ShareID": None,
                            "RequestNames": ["gpu"],
                            "CDIDeviceIDs": ["example.com/gpu=0"],
                        }
                    ]
                }
            },
        }
    ]


async def test_a_damaged_file_ends_the_start(node: Kubelet) -> None:  # 11.18
    await node.stop()
    (node.paths.root / "dra_manager_state").write_text('{"Data": "{}", "Checksum": 1}')
    with pytest.raises(KubeletError, match="dra_manager_state is damaged"):
        await node.start()
    (node.paths.root / "dra_manager_state").unlink()
    await node.start()


def test_the_retries_are_the_kubelets() -> None:
    timing = Timing()
    assert (timing.prepare, timing.wipe, timing.health_retry) == (45.0, 30.0, 5.0)
