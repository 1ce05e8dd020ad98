"""A driver as a whole: what it publishes, prepares and says, beside an emulated kubelet."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.kubelet.dra.stored_claims import StoredClaims

from plugwright import Allocation, Consumption, CounterSet, Device, Plugin, ServeSettings, Settings, Timeouts
from plugwright.dra.device_placement import MOVING
from plugwright.dra.driver_paths import DriverPaths, may_have_claims, record_resource, recorded_drivers
from plugwright.dra.resource_slices.slice_devices import pool_content, published_devices
from plugwright.errors import ConfigError
from plugwright.kubelet import Kubelet, KubeletSettings
from plugwright.sdk import daemon_status, prometheus
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.serve_settings import ServeMode, Split
from plugwright.serve import serving
from plugwright.system.latest import Latest
from plugwright.testing import claim_requesting, pod_requesting, running
from plugwright.testing.harness import PluginKubelet

TAPE = "example.com/tape"
LIMIT = 30.0


class Tapes(Plugin):
    resource = TAPE

    def __init__(self, *devices: Device) -> None:
        self.lists = Latest(devices)

    async def discover(self) -> AsyncIterator[Sequence[Device]]:
        async for devices in self.lists.changes():
            yield devices

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        return Allocation(env={"TAPES": ",".join(device.id for device in devices)})


def names(kubelet: PluginKubelet) -> list[str]:
    return [device["name"] for one in kubelet.api.slices for device in one["spec"].get("devices") or ()]


async def until_tainted(kubelet: PluginKubelet, expected: list[str]) -> None:
    assert await kubelet.api.until(lambda: taints(kubelet, "st0") == expected, LIMIT)


def taints(kubelet: PluginKubelet, name: str) -> list[str]:
    devices = [device for one in kubelet.api.slices for device in one["spec"].get("devices") or ()]
    [device] = [device for device in devices if device["name"] == name]
    return [f"{taint['key']}:{taint['effect']}" for taint in device.get("taints") or ()]


async def until(kubelet: PluginKubelet, published: list[str]) -> None:
    async with asyncio.timeout(LIMIT):
        assert await kubelet.api.until(lambda: names(kubelet) == published, LIMIT)


def driver(kubelet: PluginKubelet) -> dict[str, Any]:
    [resource] = kubelet.status()["resources"]
    assert resource["driver"] is not None
    return resource["driver"]


def test_the_resource_of_a_driver_is_recorded_though_a_pipe_is_in_its_place(tmp_path: Path) -> None:
    paths = DriverPaths.of(Settings(kubelet_dir=tmp_path), "tape.example.com")
    paths.directory.mkdir(parents=True)
    os.mkfifo(paths.directory / "resource")
    record_resource(paths, TAPE)
    assert recorded_drivers(paths.directory.parent, TAPE) == ["tape.example.com"]


async def test_devices_are_published_in_the_natural_order_of_their_ids(tmp_path: Path) -> None:
    async with running(Tapes(Device("st10"), Device("st9"), Device("st1")), tmp_path, serve="dra") as kubelet:
        await until(kubelet, ["st1", "st9", "st10"])
        [one] = kubelet.api.slices
        assert one["spec"]["driver"] == "tape.example.com"
        assert one["spec"]["pool"]["name"] == one["spec"]["nodeName"] == "node"


async def test_a_device_that_comes_later_is_published(tmp_path: Path) -> None:
    tapes = Tapes(Device("st0"))
    async with running(tapes, tmp_path, serve="dra") as kubelet:
        tapes.lists.publish((Device("st0"), Device("st1")))
        await until(kubelet, ["st0", "st1"])


async def test_a_plugin_without_devices_publishes_an_empty_slice(tmp_path: Path) -> None:
    async with running(Tapes(), tmp_path, serve="dra") as kubelet:
        [one] = kubelet.api.slices
        assert not one["spec"].get("devices")


async def test_slices_come_back_after_the_kubelet_has_wiped_them(tmp_path: Path) -> None:
    async with running(Tapes(Device("st0")), tmp_path, serve="dra") as kubelet:
        await until(kubelet, ["st0"])
        await kubelet.restart()
        await until(kubelet, [])
        await until(kubelet, ["st0"])


async def test_slices_stay_when_the_driver_ends(tmp_path: Path) -> None:
    async with running(Tapes(Device("st0")), tmp_path, serve="dra") as kubelet:
        await until(kubelet, ["st0"])
    assert names(kubelet) == ["st0"]


async def test_an_unhealthy_device_is_tainted_and_recovers(tmp_path: Path) -> None:
    tapes = Tapes(Device("st0"), Device("st1"))
    async with running(tapes, tmp_path, serve="dra") as kubelet:
        await until(kubelet, ["st0", "st1"])
        tapes.lists.publish((Device("st0", "Unhealthy", "the head is dirty", code="dirty"), Device("st1")))
        async with asyncio.timeout(LIMIT):
            await until_tainted(kubelet, ["plugwright.dev/unhealthy:NoSchedule"])
            assert taints(kubelet, "st1") == []
            tapes.lists.publish((Device("st0"), Device("st1")))
            await until_tainted(kubelet, [])


async def test_a_cordon_is_a_taint(tmp_path: Path) -> None:
    async with running(Tapes(Device("st0")), tmp_path, serve="dra") as kubelet:
        await until(kubelet, ["st0"])
        kubelet.daemon.resources[TAPE].inventory.cordon({"st0": "maintenance"})
        async with asyncio.timeout(LIMIT):
            await until_tainted(kubelet, ["plugwright.dev/cordoned:NoSchedule"])


async def test_a_prepared_claim_is_in_the_status(tmp_path: Path) -> None:
    async with running(Tapes(Device("st0"), Device("st1")), tmp_path, serve="dra") as kubelet:
        await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 1}, name="drive")]))
        status = driver(kubelet)
        [claim] = status["claims"]
        assert (claim["namespace"], claim["name"], claim["state"], claim["devices"]) == (
            "default",
            "drive",
            "done",
            ["st0"],
        )
        assert (status["ready"], status["registration"]["state"]) == (True, "registered")
        assert status["slices"]["state"] == "published"
        assert status["devices"]["st0"] == {
            "name": "st0",
            "api": "dra",
            "phase": "published",
            "target": "dra",
            "waits": "",
            "claims": ["default/drive"],
        }


async def test_a_resource_served_by_claims_is_ready_when_its_devices_are_published(tmp_path: Path) -> None:
    async with running(Tapes(Device("st0")), tmp_path, serve="dra") as kubelet:
        assert daemon_status.unready(kubelet.daemon) == []
        [resource] = kubelet.status()["resources"]
        assert (resource["serve"], resource["state"]) == ("dra", "registered")
        await kubelet.stop()
        async with asyncio.timeout(LIMIT):
            await kubelet.daemon.changed.until(lambda: bool(daemon_status.unready(kubelet.daemon)))
        [line] = daemon_status.unready(kubelet.daemon)
        assert line.startswith(f"{TAPE}: DRA driver waiting")
        await kubelet.start()


async def test_metrics_say_whether_the_driver_serves(tmp_path: Path) -> None:
    ready = f'plugwright_dra_driver_ready{{driver="tape.example.com",node="node",resource="{TAPE}"}}'
    async with running(Tapes(Device("st0")), tmp_path, serve="dra") as kubelet:
        await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 1})]))
        page = prometheus.page(kubelet.daemon)
        lines = page()[1].decode().splitlines()
        assert f"{ready} 1.0" in lines
        assert 'plugwright_dra_evictions_held_back{driver="tape.example.com",' in "".join(lines)
        labels = f'method="NodePrepareResources",node="node",outcome="ok",resource="{TAPE}"'
        assert f"plugwright_calls_total{{{labels}}} 1.0" in lines
        failed = f'method="NodePrepareResources",node="node",outcome="failed",resource="{TAPE}"'
        assert f"plugwright_calls_total{{{failed}}} 0.0" in lines
        await kubelet.daemon.ledger.refreshed()
        held = 'api="dra",container="",device="st0",dra_claim_name="pod-1-0",dra_claim_namespace="default"'
        assert held in page()[1].decode()
        await kubelet.stop()
        async with asyncio.timeout(LIMIT):
            await kubelet.daemon.changed.until(lambda: bool(daemon_status.unready(kubelet.daemon)))
        assert f"{ready} 0.0" in page()[1].decode().splitlines()
        await kubelet.start()


async def test_devices_that_cannot_be_published_keep_no_claim_from_ending(tmp_path: Path) -> None:
    one, other = CounterSet("card", {"memory": 4}), CounterSet("card", {"memory": 8})
    tapes = Tapes(Device("st0", consumes=[Consumption(one, {"memory": 1})]))
    async with running(tapes, tmp_path, serve="dra") as kubelet:
        pod = await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 1})]))
        second = Device("st1", consumes=[Consumption(other, {"memory": 1})])
        tapes.lists.publish((*tapes.lists.value, second))
        async with asyncio.timeout(LIMIT):
            await kubelet.daemon.changed.until(lambda: bool(daemon_status.unready(kubelet.daemon)))
        assert "the counter set card must be the same" in daemon_status.unready(kubelet.daemon)[0]
        await kubelet.remove(pod)
        assert driver(kubelet)["claims"] == []


async def until_failed(daemon: Daemon) -> str:
    found = daemon.resources[TAPE].driver
    assert found is not None
    async with asyncio.timeout(LIMIT):
        state = await found.state.until(lambda state: state.state == "failed")
    return state.reason


class Disks(Tapes):
    resource = "example.com/disk"


async def test_without_the_name_of_its_node_a_driver_says_so_and_other_resources_go_on(root: Path) -> None:
    disks, tapes = Disks(Device("sda")), Tapes(Device("st0"))
    tapes.serve = ServeSettings(api=ServeMode.DRA)
    async with (
        Kubelet(root, resource_api=StoredClaims()) as kubelet,
        serving(disks, tapes, settings=Settings(kubelet_dir=root)) as daemon,
    ):
        assert await until_failed(daemon) == "the name of this node is not known: set NODE_NAME or --node-name"
        assert await kubelet.allocatable("example.com/disk", count=1) == 1
        await daemon.changed.until(lambda: len(daemon_status.unready(daemon)) == 1)
        assert "the name of this node is not known" in daemon_status.unready(daemon)[0]


async def test_without_an_api_server_a_driver_says_so(root: Path) -> None:
    settings = Settings(kubelet_dir=root, node_name="n1", kubeconfig=root / "none")
    async with serving(Tapes(Device("st0")), settings=settings, serve="dra") as daemon:
        assert "there is no kubeconfig" in await until_failed(daemon)


@pytest.mark.parametrize("name", ["N1", "../n1", "n" * 254])
async def test_a_name_that_no_node_has_is_refused(root: Path, name: str) -> None:
    settings = Settings(kubelet_dir=root, node_name=name)
    async with serving(Tapes(Device("st0")), settings=settings, serve="dra") as daemon:
        assert "must be that of a Node" in await until_failed(daemon)


async def test_an_operator_moves_a_device(tmp_path: Path) -> None:
    serve = ServeSettings(api=ServeMode.BOTH, split=Split(dra=0))
    async with running(Tapes(Device("st0"), Device("st1")), tmp_path, serve=serve) as kubelet:
        await kubelet.allocatable(TAPE, count=2)
        found = kubelet.daemon.resources[TAPE].driver
        assert found is not None
        assert (await found.command("move", {"device": "st1", "to": "dra"})).startswith("1 devices: ")
        await until(kubelet, ["st1"])
        await kubelet.allocatable(TAPE, count=1)


class Rewound(Tapes):
    """Says in which order its methods were called."""

    def __init__(self, *devices: Device) -> None:
        super().__init__(*devices)
        self.order: list[str] = []

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        self.order += [f"allocated {device.id}" for device in devices]
        return await super().allocate(devices)

    async def release(self, devices: Sequence[Device]) -> None:
        self.order += [f"released {device.id}" for device in devices]


async def test_a_device_that_moved_is_released_before_a_claim_has_it(tmp_path: Path) -> None:
    tapes = Rewound(Device("st0"))
    serve = ServeSettings(api=ServeMode.BOTH, split=Split(dra=0))
    served = Settings(timeouts=Timeouts(holders=0.1, in_flight=0.3))
    async with running(tapes, tmp_path, KubeletSettings(timeout=LIMIT), served, serve=serve) as kubelet:
        pod = await kubelet.admit(pod_requesting({TAPE: 1}))
        found = kubelet.daemon.resources[TAPE].driver
        assert found is not None
        await found.command("move", {"device": "st0", "to": "dra"})
        await kubelet.allocatable(TAPE, count=0)
        await kubelet.remove(pod)
        await until(kubelet, ["st0"])
        claimed = await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 1})]))
        assert tapes.order == ["allocated st0", "released st0", "allocated st0"]
        await kubelet.remove(claimed)
        assert tapes.order[3:] == ["released st0"]


async def test_an_unknown_command_is_refused(tmp_path: Path) -> None:
    async with running(Tapes(Device("st0")), tmp_path, serve="both") as kubelet:
        found = kubelet.daemon.resources[TAPE].driver
        assert found is not None
        for name, arguments in (("fly", {}), ("move", {"device": "st0"}), ("handover", {"to": "x"})):
            with pytest.raises(ConfigError):
                await found.command(name, arguments)


async def test_a_prepared_claim_outlives_the_driver(tmp_path: Path) -> None:
    """The second daemon stands for the same one after a kill: nothing of the first is left but its files."""
    async with running(Tapes(Device("st0"), Device("st1")), tmp_path, serve="dra") as kubelet:
        pod = await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 1})]))
        tapes = kubelet.daemon.resources[TAPE].service.plugin
        await kubelet.daemon.apply([])
        await kubelet.daemon.apply([tapes])
        async with asyncio.timeout(LIMIT):
            await kubelet.daemon.changed.until(lambda: not daemon_status.unready(kubelet.daemon))
        assert [claim["devices"] for claim in driver(kubelet)["claims"]] == [["st0"]]
        other = await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 1})]))
        assert kubelet.container(other).env["TAPES"] == "st1"
        await kubelet.remove(pod)
        assert [claim["devices"] for claim in driver(kubelet)["claims"]] == [["st1"]]


async def test_a_resource_changes_from_one_api_to_the_other(tmp_path: Path) -> None:
    before = Tapes(Device("st0"), Device("st1"))
    async with running(before, tmp_path, KubeletSettings(timeout=LIMIT)) as kubelet:
        holding = await kubelet.admit(pod_requesting({TAPE: 1}))
        held = kubelet.container(holding).env["TAPES"]
        after = Tapes(Device("st0"), Device("st1"))
        after.serve = replace(before.serve, api=ServeMode.DRA)
        await kubelet.daemon.apply([after])
        pod = await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 1})]))
        assert {held, kubelet.container(pod).env["TAPES"]} == {"st0", "st1"}


async def test_a_device_that_a_claim_holds_is_not_given_out_by_the_device_plugin_api(tmp_path: Path) -> None:
    before = Tapes(Device("st0"), Device("st1"))
    async with running(before, tmp_path, KubeletSettings(timeout=LIMIT), serve="dra") as kubelet:
        pod = await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 1})]))
        after = Tapes(Device("st0"), Device("st1"))
        after.serve = replace(before.serve, api=ServeMode.DEVICE_PLUGIN)
        await kubelet.daemon.apply([after])
        async with asyncio.timeout(LIMIT):
            await kubelet.daemon.changed.until(lambda: not daemon_status.unready(kubelet.daemon))
        assert await kubelet.capacity(TAPE, count=2) == 2
        assert await kubelet.allocatable(TAPE, count=0) == 0
        assert driver(kubelet)["devices"]["st0"]["target"] == "device-plugin"
        await kubelet.remove(pod)
        assert pod not in kubelet.pods


async def test_a_driver_that_cannot_begin_keeps_only_devices_of_claims_from_the_device_plugin_api(
    tmp_path: Path,
) -> None:
    before = Tapes(Device("st0"), Device("st1"))
    async with running(before, tmp_path, KubeletSettings(timeout=LIMIT), serve="dra") as kubelet:
        await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 1})]))
        await kubelet.daemon.apply([])
        after = Tapes(Device("st0"), Device("st1"))
        after.serve = replace(before.serve, api=ServeMode.DEVICE_PLUGIN)
        settings = replace(kubelet.daemon.settings, node_name="", kubeconfig=tmp_path / "kubeconfig")
        async with serving(after, settings=settings) as daemon:
            assert "the name of this node is not known" in await until_failed(daemon)
            assert await kubelet.allocatable(TAPE, count=1) == 1
            snapshot = daemon.resources[TAPE].inventory.latest.value
            assert snapshot is not None
            assert list(snapshot.withheld) == ["st0"]


def files(root: Path) -> DriverPaths:
    return DriverPaths.of(Settings(kubelet_dir=root, state_dir=root), "tape.example.com")


def test_a_resource_that_never_had_claims_needs_no_driver(root: Path) -> None:
    assert not may_have_claims(files(root))


@pytest.mark.parametrize("content", ["", "{", "[]", "[" * 100_000, '{"devices": {"st0": {"phase": "tainted"}}}'])
def test_a_driver_is_needed_where_claims_may_have_devices(root: Path, content: str) -> None:
    (root / "split-tape.example.com.json").write_text(content)
    assert may_have_claims(files(root))


def test_a_driver_is_needed_where_serve_dra_was_in_force(root: Path) -> None:
    (root / "split-tape.example.com.lock").touch()
    assert may_have_claims(files(root))


def test_no_driver_is_needed_once_all_devices_are_back(root: Path) -> None:
    (root / "split-tape.example.com.json").write_text('{"devices": {"st0": {"phase": "listed"}}}')
    assert not may_have_claims(files(root))


def test_the_taint_of_a_move_is_beside_the_others() -> None:
    inventory = Inventory(TAPE)
    inventory.update([Device("st0"), Device("st1"), Device("st2")])
    snapshot = inventory.latest.value
    assert snapshot is not None
    failed = {"st0": ({"key": "plugwright.dev/unhealthy", "effect": "NoSchedule"},)}
    content = pool_content(snapshot, {"st0", "st2"}, failed, {"st0": MOVING})
    keys = [(one["name"], [taint["key"] for taint in one.get("taints", ())]) for one in content.devices]
    assert keys == [("st0", ["plugwright.dev/moving", "plugwright.dev/unhealthy"]), ("st2", [])]
    assert published_devices(content) == {"st0": True, "st2": False}
