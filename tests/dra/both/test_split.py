"""Each device is offered by one API at a time, and moves between them when nobody holds it: over real sockets."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.dra.both.split_actors import (
    DRIVER,
    NODE,
    QUICK,
    TAPE,
    Cluster,
    Prepared,
    SplitDriver,
    Tapes,
    both,
    claim_document,
    served,
    split_of,
    until,
)
from tests.plugin_client import connect_plugin

from plugwright import Device
from plugwright.dra.both.holders import ClaimHolders, PodHolders, allocated_devices
from plugwright.dra.both.operators import waits_for
from plugwright.dra.device_placement import DeviceState
from plugwright.errors import ConfigError, HoldersUnknown, MalformedMessage, PeerRefused, PodRefused
from plugwright.kubelet import Kubelet
from plugwright.kubelet.events import StateChange
from plugwright.sdk.serve_settings import ServeMode
from plugwright.testing import pod_requesting


def tapes(*ids: str, **split: object) -> Tapes:
    return Tapes(*(Device(device_id) for device_id in ids), serve=both(**split))


async def phase(driver: SplitDriver, device_id: str, wanted: DeviceState) -> None:
    await until(driver, lambda split: split.placements.value[device_id].state is wanted)


async def test_the_operators_split_is_published_and_the_rest_listed(root: Path) -> None:
    cluster = Cluster()
    async with (
        Kubelet(root / "k") as kubelet,
        served(tapes("st0", "st1", "st2", dra=1), kubelet, cluster, Prepared()) as driver,
    ):
        await phase(driver, "st2", DeviceState.PUBLISHED)
        assert await kubelet.allocatable(TAPE, 2) == 2
        assert await kubelet.capacity(TAPE, 3) == 3
        await cluster.slices.until(lambda slices: slices == {"st2": False})


async def test_a_free_device_moves_when_asked_and_back(root: Path) -> None:
    cluster = Cluster()
    async with Kubelet(root / "k") as kubelet, served(tapes("st0", "st1"), kubelet, cluster, Prepared()) as driver:
        await kubelet.allocatable(TAPE, 2)
        await driver.split.move("st1", ServeMode.DRA)
        await cluster.slices.until(lambda slices: slices == {"st1": False})
        assert await kubelet.allocatable(TAPE, 1) == 1
        await driver.split.move("st1", ServeMode.DEVICE_PLUGIN)
        await cluster.slices.until(lambda slices: slices == {"st1": True})
        await cluster.slices.until(lambda slices: slices == {})
        assert await kubelet.allocatable(TAPE, 2) == 2
        assert cluster.lists == 1


async def test_a_device_that_a_pod_holds_moves_when_the_pod_ends(root: Path) -> None:
    cluster = Cluster()
    async with Kubelet(root / "k") as kubelet, served(tapes("st0"), kubelet, cluster, Prepared()) as driver:
        await kubelet.allocatable(TAPE, 1)
        pod = await kubelet.admit(pod_requesting({TAPE: 1}, name="reader"))
        await driver.split.hand_over(ServeMode.DRA)
        await until_held(driver, "st0", "default/reader")
        assert cluster.slices.value == {}
        await kubelet.remove(pod)
        await cluster.slices.until(lambda slices: slices == {"st0": False})
        assert await kubelet.allocatable(TAPE, 0) == 0


async def until_held(driver: SplitDriver, device_id: str, pod: str) -> None:
    async with asyncio.timeout(60):
        await driver.split.rounds.until(lambda: driver.split.observations.pod(device_id) == pod)


async def test_a_device_that_the_scheduler_still_counts_comes_back_for_the_pod_that_it_binds(root: Path) -> None:
    cluster = Cluster(allocatable=1)
    async with Kubelet(root / "k") as kubelet, served(tapes("st0"), kubelet, cluster, Prepared()) as driver:
        await kubelet.allocatable(TAPE, 1)
        pod = await kubelet.admit(pod_requesting({TAPE: 1}, name="first"))
        await driver.split.move("st0", ServeMode.DRA)
        await kubelet.allocatable(TAPE, 0)
        await kubelet.remove(pod)
        await kubelet.allocatable(TAPE, 1)
        assert waits(driver, "st0").startswith("another free device")
        pod = await kubelet.admit(pod_requesting({TAPE: 1}, name="second"))
        await kubelet.allocatable(TAPE, 0)
        cluster.allocatable = 0
        await driver.split.rounds.until(lambda: not driver.split.observations.evidence(("st0",)).counted)
        await kubelet.remove(pod)
        await cluster.slices.until(lambda slices: slices == {"st0": False})


async def test_the_last_free_device_leaves_the_list_when_nobody_takes_it(root: Path) -> None:
    cluster = Cluster(allocatable=1)
    settings = replace(QUICK, counted=0.2)
    async with Kubelet(root / "k") as kubelet, served(tapes("st0"), kubelet, cluster, Prepared(), settings) as driver:
        await kubelet.allocatable(TAPE, 1)
        await driver.split.move("st0", ServeMode.DRA)
        await driver.split.rounds.until(lambda: waits(driver, "st0").startswith("another free device"))
        await phase(driver, "st0", DeviceState.WITHHELD)
        assert waits(driver, "st0").startswith("the scheduler, which counts it")
        await phase(driver, "st0", DeviceState.PUBLISHED)


async def test_an_allocation_in_flight_keeps_its_device_from_being_published(root: Path) -> None:
    cluster, plugin = Cluster(), tapes("st0")
    async with Kubelet(root / "k") as kubelet, served(plugin, kubelet, cluster, Prepared()) as driver:
        await kubelet.allocatable(TAPE, 1)
        plugin.allocating.publish(False)
        admitting = asyncio.create_task(kubelet.admit(pod_requesting({TAPE: 1}, name="slow")))
        await plugin.calls.until(bool)
        await driver.split.move("st0", ServeMode.DRA)
        async with asyncio.timeout(60):
            await driver.split.problem.until(lambda text: "the kubelet allocates devices" in text)
        plugin.allocating.publish(True)
        await admitting
        await until_held(driver, "st0", "default/slow")
        assert cluster.slices.value == {}


async def test_allocate_of_a_device_of_claims_is_refused(root: Path) -> None:
    cluster = Cluster()
    async with Kubelet(root / "k") as kubelet, served(tapes("st0", dra=1), kubelet, cluster, Prepared()):
        await cluster.slices.until(lambda slices: slices == {"st0": False})
        await kubelet.allocatable(TAPE, 0)
        with pytest.raises(PeerRefused, match="served by DRA"):
            await kubelet.allocate(TAPE, ["st0"])


async def test_a_claim_for_a_free_device_of_the_plugin_gets_it_and_it_goes_back_afterwards(root: Path) -> None:
    cluster, prepared = Cluster(claims={"default/late": ("st0",)}), Prepared()
    async with Kubelet(root / "k") as kubelet, served(tapes("st0"), kubelet, cluster, prepared) as driver:
        await kubelet.allocatable(TAPE, 1)
        assert await driver.prepare("default/late", "st0") == ""
        assert split_of(driver) == {"st0": "tainted"}
        assert await kubelet.allocatable(TAPE, 0) == 0
        cluster.claims.clear()
        prepared.remove("default/late")
        assert await kubelet.allocatable(TAPE, 1) == 1
        assert cluster.slices.value == {}


async def test_a_claim_for_a_device_that_a_pod_holds_waits_with_the_reason_and_is_served_later(root: Path) -> None:
    cluster, prepared = Cluster(claims={"default/late": ("st0",)}), Prepared()
    async with Kubelet(root / "k") as kubelet, served(tapes("st0"), kubelet, cluster, prepared) as driver:
        await kubelet.allocatable(TAPE, 1)
        pod = await kubelet.admit(pod_requesting({TAPE: 1}, name="reader"))
        refusal = await driver.prepare("default/late", "st0")
        assert refusal.startswith("st0 is held by default/reader through the device plugin API; the claim gets it when")
        await kubelet.remove(pod)
        await phase(driver, "st0", DeviceState.TAINTED)
        assert await driver.prepare("default/late", "st0") == ""


async def test_a_device_that_a_claim_has_moves_when_the_claim_is_gone(root: Path) -> None:
    cluster, prepared = Cluster(claims={"default/c": ("st0",), "default/d": (), "default/e": ()}, expire=1), Prepared()
    async with Kubelet(root / "k") as kubelet, served(tapes("st0", dra=1), kubelet, cluster, prepared) as driver:
        await phase(driver, "st0", DeviceState.PUBLISHED)
        assert await driver.prepare("default/c", "st0") == ""
        await driver.split.hand_over(ServeMode.DEVICE_PLUGIN)
        await cluster.slices.until(lambda slices: slices == {"st0": True})
        assert waits(driver, "st0") == "held by the claim default/c"
        prepared.remove("default/c")  # its pod has ended, and the claim is still allocated
        async with asyncio.timeout(60):
            await driver.split.rounds.until(lambda: driver.split.observations.claims("st0") == ("default/c",))
        assert split_of(driver) == {"st0": "tainted"}
        cluster.claims.clear()
        assert await kubelet.allocatable(TAPE, 1) == 1
        assert cluster.slices.value == {}


async def test_admin_access_holds_no_device() -> None:
    document = claim_document("default/monitor", ["st0"], admin=True)
    assert list(allocated_devices([document, {"status": {}}], DRIVER, NODE)) == []


@pytest.mark.parametrize(
    "claim",
    [
        None,
        {"status": 7},
        {"status": {"allocation": [1]}},
        {"status": {"allocation": {"devices": {"results": {}}}}},
        {"status": {"allocation": {"devices": {"results": "st0"}}}},
    ],
)
def test_a_claim_that_cannot_be_read_may_hold_any_device(claim: object) -> None:
    with pytest.raises(MalformedMessage, match="each claim must have its allocation"):
        list(allocated_devices([claim], DRIVER, NODE))


async def test_an_empty_list_of_another_kind_leaves_holders_of_devices_unknown() -> None:
    cluster = Cluster(kind="List")
    with pytest.raises(HoldersUnknown, match="must be a ResourceClaimList, got 'List'"):
        await ClaimHolders(cluster, DRIVER, NODE).by_device()


async def test_claims_that_may_not_be_listed_leave_their_holders_unknown() -> None:
    cluster = Cluster(claims={"default/a": ("st0",)}, refusal="Forbidden")
    with pytest.raises(HoldersUnknown, match="claims cannot be listed: not allowed"):
        await ClaimHolders(cluster, DRIVER, NODE).by_device()
    assert cluster.lists == 1


async def test_claims_are_listed_in_pages_that_are_small_enough() -> None:
    cluster = Cluster(claims={"default/a": ("st0",), "default/b": ("st1",)}, page=1, largest=3)
    holders = await ClaimHolders(cluster, DRIVER, NODE).by_device()
    assert holders == {"st0": ["default/a"], "st1": ["default/b"]}
    cluster.largest = 0
    with pytest.raises(HoldersUnknown, match="at most 3145728 bytes"):
        await ClaimHolders(cluster, DRIVER, NODE).by_device()


async def test_devices_stay_where_they_are_while_the_api_server_is_away(root: Path) -> None:
    cluster = Cluster()
    async with Kubelet(root / "k") as kubelet, served(tapes("st0", dra=1), kubelet, cluster, Prepared()) as driver:
        await phase(driver, "st0", DeviceState.PUBLISHED)
        await driver.split.move("st0", ServeMode.DEVICE_PLUGIN)
        await cluster.slices.until(lambda slices: slices == {"st0": True})
        cluster.away = True
        async with asyncio.timeout(60):
            await driver.split.problem.until(bool)
        assert waits(driver, "st0").startswith("devices stay where they are: claims cannot be listed: cannot reach")
        assert await kubelet.allocatable(TAPE, 0) == 0
        cluster.away = False
        assert await kubelet.allocatable(TAPE, 1) == 1


async def test_devices_stay_where_they_are_while_pods_cannot_be_read(root: Path) -> None:
    cluster = Cluster()
    async with Kubelet(root / "k") as kubelet, served(tapes("st0"), kubelet, cluster, Prepared()) as driver:
        await kubelet.allocatable(TAPE, 1)
        await kubelet.stop()
        await driver.split.move("st0", ServeMode.DRA)
        async with asyncio.timeout(60):
            await driver.split.problem.until(lambda text: "pod-resources cannot be read" in text)
        assert (split_of(driver), cluster.slices.value) == ({"st0": "listed"}, {})
        await kubelet.start()
        await cluster.slices.until(lambda slices: slices == {"st0": False})


async def test_a_restart_keeps_every_device_on_its_side_and_goes_on_with_moves(root: Path) -> None:
    cluster, prepared = Cluster(), Prepared()
    async with Kubelet(root / "k") as kubelet:
        async with served(tapes("st0", "st1", "st2", dra=1), kubelet, cluster, prepared) as driver:
            await phase(driver, "st2", DeviceState.PUBLISHED)
            pod = await kubelet.admit(pod_requesting({TAPE: 1}))
            await driver.split.move("st0", ServeMode.DRA)
            await phase(driver, "st0", DeviceState.WITHHELD)
            before = split_of(driver)
        async with served(tapes("st0", "st1", "st2", dra=1), kubelet, cluster, prepared) as driver:
            assert split_of(driver) == before == {"st0": "withheld", "st1": "listed", "st2": "published"}
            assert await kubelet.allocatable(TAPE, 1) == 1
            await kubelet.remove(pod)
            await phase(driver, "st0", DeviceState.PUBLISHED)


async def test_no_list_after_a_restart_offers_a_device_of_claims(root: Path) -> None:
    cluster, prepared = Cluster(), Prepared()
    async with Kubelet(root / "k") as kubelet:
        async with served(tapes("st0", dra=1), kubelet, cluster, prepared) as driver:
            await phase(driver, "st0", DeviceState.PUBLISHED)
            await kubelet.allocatable(TAPE, 0)
        before = sum(isinstance(event, StateChange) and event.kind == "list" for event in kubelet.recorded)
        async with served(tapes("st0", dra=1), kubelet, cluster, prepared) as driver:
            await kubelet.allocatable(TAPE, 0)
            with pytest.raises(PodRefused):
                await kubelet.admit(pod_requesting({TAPE: 1}))
        lists = [event.text for event in kubelet.recorded if isinstance(event, StateChange) and event.kind == "list"]
        assert set(lists[before:]) == {"1 devices, 0 healthy"}


async def test_after_a_reboot_a_pod_gets_its_device_again_though_it_was_to_move(root: Path) -> None:
    cluster, prepared, state = Cluster(), Prepared(), root / "state"
    state.mkdir()
    (state / "boot").write_text("one")
    async with Kubelet(root / "k") as kubelet:
        async with served(tapes("st0"), kubelet, cluster, prepared) as driver:
            await kubelet.allocatable(TAPE, 1)
            pod = await kubelet.admit(pod_requesting({TAPE: 1}, name="reader"))
            await driver.split.hand_over(ServeMode.DRA)
            await until_held(driver, "st0", "default/reader")
        (state / "boot").write_text("two")
        await kubelet.stop()
        async with served(tapes("st0"), kubelet, cluster, prepared) as driver:
            assert split_of(driver) == {"st0": "listed"}
            await kubelet.start()
            assert await kubelet.allocatable(TAPE, 1) == 1
            await phase(driver, "st0", DeviceState.WITHHELD)
            await kubelet.remove(pod)
            await phase(driver, "st0", DeviceState.PUBLISHED)


async def test_a_device_that_both_hold_is_given_to_nobody_until_one_has_ended(root: Path) -> None:
    cluster, prepared = Cluster(), Prepared()
    async with Kubelet(root / "k") as kubelet:
        async with served(tapes("st0"), kubelet, cluster, prepared):
            await kubelet.allocatable(TAPE, 1)
            pod = await kubelet.admit(pod_requesting({TAPE: 1}))
        prepared.add("default/other", ["st0"])
        async with served(tapes("st0"), kubelet, cluster, prepared) as driver:
            assert split_of(driver) == {"st0": "disputed"}
            assert "it is not clear who holds it" in driver.split.refusal("st0")
            assert (await kubelet.allocatable(TAPE, 0), cluster.slices.value) == (0, {})
            await kubelet.remove(pod)
            await phase(driver, "st0", DeviceState.TAINTED)


async def test_a_damaged_state_is_put_aside_and_every_device_looked_up(root: Path) -> None:
    cluster, prepared, path = Cluster(claims={"default/c": ("st1",)}), Prepared(), root / "state" / "split.json"
    path.parent.mkdir()
    path.write_bytes(b'{"version": 1, "boot":')
    async with Kubelet(root / "k") as kubelet, served(tapes("st0", "st1"), kubelet, cluster, prepared) as driver:
        await phase(driver, "st0", DeviceState.LISTED)
        await phase(driver, "st1", DeviceState.TAINTED)
        assert path.with_name("split.json.damaged").exists()
        assert await kubelet.allocatable(TAPE, 1) == 1


async def test_a_second_daemon_follows_the_first_and_then_decides(root: Path, tmp_path: Path) -> None:
    cluster, prepared = Cluster(), Prepared()
    async with Kubelet(root / "k") as kubelet, AsyncExitStack() as first:
        driver = await first.enter_async_context(served(tapes("st0", "st1", dra=1), kubelet, cluster, prepared))
        await phase(driver, "st1", DeviceState.PUBLISHED)
        async with served(tapes("st0", "st1", dra=1), kubelet, Cluster(), prepared) as second:
            assert split_of(second) == {"st0": "listed", "st1": "published"}
            with pytest.raises(ConfigError, match="not known yet"):
                await second.split.move("st0", ServeMode.DRA)
            await first.aclose()
            async with asyncio.timeout(60):
                await second.split.problem.until(lambda text: not text)
            await second.split.move("st0", ServeMode.DRA)
            await phase(second, "st0", DeviceState.PUBLISHED)


async def test_a_state_that_cannot_be_written_moves_nothing(root: Path) -> None:
    cluster = Cluster()
    async with Kubelet(root / "k") as kubelet, served(tapes("st0"), kubelet, cluster, Prepared()) as driver:
        await kubelet.allocatable(TAPE, 1)
        state = root / "state"
        state.rename(root / "away")
        state.write_text("")  # no directory
        with pytest.raises(ConfigError, match=r"devices stay where they are: .*split.json cannot be written"):
            await driver.split.move("st0", ServeMode.DRA)
        assert split_of(driver) == {"st0": "listed"}
        state.unlink()
        await driver.split.move("st0", ServeMode.DRA)
        await phase(driver, "st0", DeviceState.PUBLISHED)


async def test_the_policy_keeps_devices_free_on_each_side(root: Path) -> None:
    cluster, prepared = Cluster(), Prepared()
    names = ("st0", "st1", "st2", "st3")
    async with Kubelet(root / "k") as kubelet, served(tapes(*names, keep_free=1), kubelet, cluster, prepared) as driver:
        await phase(driver, "st3", DeviceState.PUBLISHED)
        assert await kubelet.allocatable(TAPE, 3) == 3
        assert await driver.prepare("default/c", "st3") == ""
        await phase(driver, "st2", DeviceState.PUBLISHED)
        pods = [await kubelet.admit(pod_requesting({TAPE: 1})) for _ in range(2)]
        await asyncio.sleep(0)
        assert split_of(driver)["st2"] == "published"  # the last one there: it stays
        for pod in pods:
            await kubelet.remove(pod)


async def test_devices_of_one_card_move_together(root: Path) -> None:
    plugin = Tapes(
        Device("whole", physical=("card",)),
        Device("part", physical=("card/1",)),
        Device("other", physical=("disc/1",)),
        serve=both(),
    )
    cluster = Cluster()
    async with Kubelet(root / "k") as kubelet, served(plugin, kubelet, cluster, Prepared()) as driver:
        await kubelet.allocatable(TAPE, 3)
        await driver.split.move("part", ServeMode.DRA)
        await cluster.slices.until(lambda slices: slices == {"part": False, "whole": False})
        assert await kubelet.allocatable(TAPE, 1) == 1


async def test_devices_that_are_found_later_follow_the_handover(root: Path) -> None:
    plugin, cluster = tapes("st0"), Cluster()
    async with Kubelet(root / "k") as kubelet, served(plugin, kubelet, cluster, Prepared()) as driver:
        await kubelet.allocatable(TAPE, 1)
        await driver.split.hand_over(ServeMode.DRA)
        plugin.lists.publish((Device("st0"), Device("st1")))
        await cluster.slices.until(lambda slices: slices == {"st0": False, "st1": False})
        await driver.split.hand_over(ServeMode.BOTH)
        assert await kubelet.allocatable(TAPE, 2) == 2


async def test_other_settings_replace_what_operators_have_asked_for(root: Path) -> None:
    cluster, prepared = Cluster(), Prepared()
    async with Kubelet(root / "k") as kubelet:
        async with served(tapes("st0", "st1"), kubelet, cluster, prepared) as driver:
            await driver.split.hand_over(ServeMode.DRA)
            await phase(driver, "st0", DeviceState.PUBLISHED)
        async with served(tapes("st0", "st1", dra=1), kubelet, cluster, prepared) as driver:
            await phase(driver, "st0", DeviceState.LISTED)
            assert (driver.split.state.handover, split_of(driver)["st1"]) == (None, "published")


async def test_under_a_split_by_number_free_devices_move_in_place_of_held_ones(root: Path) -> None:
    """Claims have got the devices that belong to pods, and the split's own are free: pods would wait for nothing."""
    names, cluster, prepared = ("st0", "st1", "st2", "st3"), Cluster(), Prepared()
    async with Kubelet(root / "k") as kubelet:
        async with served(tapes(*names, dra=4), kubelet, cluster, prepared) as driver:
            for name in names:
                await phase(driver, name, DeviceState.PUBLISHED)
            cluster.claims = {"default/c": ("st0",), "default/d": ("st1",)}
            assert [await driver.prepare(claim, device) for claim, [device] in cluster.claims.items()] == ["", ""]
        async with served(tapes(*names, dra=2), kubelet, cluster, prepared) as driver:
            assert await kubelet.allocatable(TAPE, 2) == 2
            assert list(split_of(driver).values()) == ["published", "published", "listed", "listed"]
            pods = [await kubelet.admit(pod_requesting({TAPE: 1})) for _ in range(2)]
            await driver.split.move("st2", ServeMode.DRA)
            await driver.split.move("st0", ServeMode.DEVICE_PLUGIN)
            await phase(driver, "st2", DeviceState.WITHHELD)
            await phase(driver, "st0", DeviceState.TAINTED)
            cluster.claims.pop("default/d")
            prepared.remove("default/d")
            seen = driver.split.rounds.count
            await driver.split.rounds.until(lambda: driver.split.rounds.count > seen + 1)
            found = split_of(driver)
            assert (found["st0"], found["st1"]) == ("tainted", "published"), "an operator has chosen these devices"
            for pod in pods:
                await kubelet.remove(pod)


def waits(driver: SplitDriver, device_id: str) -> str:
    return waits_for(driver.split, device_id, driver.split.placements.value[device_id])


async def test_a_just_allocated_device_counts_as_held(root: Path) -> None:
    """The answer has reached the kubelet, which shows it in neither pod-resources nor its checkpoint yet."""
    async with Kubelet(root / "k") as kubelet, served(tapes("st0"), kubelet, Cluster(), Prepared()) as driver:
        await kubelet.allocatable(TAPE, 1)
        paths = kubelet.paths
        [socket] = [path for path in paths.device_plugins.glob("*.sock") if path != paths.kubelet_socket]
        async with connect_plugin(socket) as plugin:
            await plugin.allocate(["st0"])
        holders = PodHolders(driver.runtime, QUICK.stored, clock=lambda: 0.0)
        assert await holders.of(["st0"]) == {"st0": "a pod that is being admitted"}
