"""The device plugin API after claims: their driver stays until the last one is unprepared, without an API server."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from plugwright import Allocation, Device, Plugin, Settings, Timeouts, serving
from plugwright.dra import driver_paths
from plugwright.dra.driver_paths import DriverPaths, PlacementLock
from plugwright.dra.resource_claims.prepared_claims import ClaimedDevice, PreparedClaim, PreparedClaims, State
from plugwright.errors import PlugwrightError
from plugwright.kubelet import KubeletSettings, Timing
from plugwright.protocol import dra
from plugwright.protocol.dra import Claim
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.daemon_status import is_ready, report
from plugwright.sdk.serve_settings import ServeMode
from plugwright.system.boot import boot_id
from plugwright.system.latest import Latest
from plugwright.testing import claim_requesting, pod_requesting, running
from plugwright.testing.harness import PluginKubelet

TAPE, DRIVER, LIMIT = "example.com/tape", "tape.example.com", 30.0
KUBELET = KubeletSettings(timeout=LIMIT, timing=Timing(wipe=0.3, reconcile=0.05))
QUICK = Settings(timeouts=Timeouts(holders=0.1, in_flight=0.3, wiped=0.6))


class Tapes(Plugin):
    resource = TAPE

    def __init__(self, *devices: Device) -> None:
        self.lists, self.released = Latest(devices), list[str]()

    async def discover(self) -> AsyncIterator[Sequence[Device]]:
        async for devices in self.lists.changes():
            yield devices

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        return Allocation(env={"TAPES": ",".join(device.id for device in devices)})

    async def release(self, devices: Sequence[Device]) -> None:
        self.released += [device.id for device in devices]


@asynccontextmanager
async def as_device_plugin(kubelet: PluginKubelet, *devices: Device) -> AsyncIterator[Daemon]:
    """A daemon without an API server, as a pod without a token, after the one of the claims has ended."""
    before = kubelet.daemon.resources[TAPE].service.plugin if kubelet.daemon.resources else None
    serve = before.serve if before is not None else Tapes().serve
    await kubelet.daemon.apply([])
    after = Tapes(*devices)
    after.serve = replace(serve, api=ServeMode.DEVICE_PLUGIN, driver="")
    async with serving(after, settings=replace(kubelet.daemon.settings, node_name="")) as daemon:
        yield daemon


def driver(daemon: Daemon) -> dict[str, Any]:
    found = daemon.resources[TAPE].driver
    assert found is not None
    return dict(found.status())


async def until_state(daemon: Daemon, reason: str) -> None:
    async with asyncio.timeout(LIMIT):
        await daemon.changed.until(lambda: reason in driver(daemon)["reason"])


@pytest.mark.parametrize("serve", ["dra", "both"])
async def test_a_claim_keeps_its_driver_and_its_device_until_its_pod_ends(tmp_path: Path, serve: str) -> None:
    async with running(Tapes(Device("st0"), Device("st1")), tmp_path, KUBELET, QUICK, serve) as kubelet:
        pod = await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: ["st1"]})], name="reader"))
        async with as_device_plugin(kubelet, Device("st0"), Device("st1")) as daemon:
            await kubelet.allocatable(TAPE, count=1)
            (row,) = [device for device in report(daemon)["resources"][0]["devices"] if device["claims"]]
            assert row["id"] == "st1"
            assert driver(daemon)["leaving"] == [f"{row['claims'][0]} (st1)"]
            taken = await kubelet.admit(pod_requesting({TAPE: 1}, name="writer"))
            assert kubelet.container(taken).env["TAPES"] == "st0"
            with pytest.raises(PlugwrightError):
                await kubelet.admit(pod_requesting({TAPE: 1}, name="another"))
            await until_state(daemon, "driver registered")
            assert kubelet.api.slices == []  # the kubelet has removed them before
            assert is_ready(daemon.resource(TAPE))
            await kubelet.remove(pod)
            await until_state(daemon, "no claim of earlier is left")
            await kubelet.allocatable(TAPE, count=2)
            plugin = daemon.resources[TAPE].service.plugin
            assert isinstance(plugin, Tapes)
            assert plugin.released == ["st1"]
            assert not list(kubelet.paths.plugins_registry.glob("*.sock"))
            assert list(kubelet.cdi.glob("*")) == []
        async with as_device_plugin(kubelet, Device("st0")) as daemon:
            assert daemon.resources[TAPE].driver is None  # a later start needs none


async def test_another_pod_starts_with_a_claim_whose_cdi_file_was_lost(tmp_path: Path) -> None:
    async with running(Tapes(Device("st0"), Device("st1")), tmp_path, KUBELET, QUICK, "dra") as kubelet:
        claim = claim_requesting({TAPE: ["st0"]}, name="shared")
        first = await kubelet.admit(pod_requesting({}, claims=[claim], name="first"))
        for file in kubelet.cdi.glob("*"):
            file.unlink()  # as a reboot does
        async with as_device_plugin(kubelet, Device("st0"), Device("st1")) as daemon:
            await until_state(daemon, "driver registered")
            second = await kubelet.admit(pod_requesting({}, claims=[claim], name="second"))
            assert kubelet.container(second).env["TAPES"] == "st0"
            assert len(list(kubelet.cdi.glob("*"))) == 1
            for pod in (first, second):
                await kubelet.remove(pod)
            await until_state(daemon, "no claim of earlier is left")


async def test_a_driver_with_a_name_of_its_own_is_found_again(tmp_path: Path) -> None:
    async with running(Tapes(Device("st0"), Device("st1")), tmp_path, KUBELET, QUICK) as kubelet:
        paths = DriverPaths.of(kubelet.daemon.settings, "named.example.com")
        driver_paths.record_resource(paths, TAPE)
        held = ClaimedDevice("st1", "st1", "node", "tapes")
        async with PreparedClaims(paths.checkpoint, boot_id()).transaction() as transaction:
            await transaction.run(
                lambda: transaction.put(PreparedClaim("uid-1", "default", "old", State.DONE, boot_id(), (held,)))
            )
        async with as_device_plugin(kubelet, Device("st0"), Device("st1")) as daemon:
            await kubelet.allocatable(TAPE, count=1)
            await until_state(daemon, "driver registered")
            assert (driver(daemon)["name"], driver(daemon)["leaving"]) == ("named.example.com", ["default/old (st1)"])


async def test_a_claim_of_an_earlier_boot_is_set_up_again_from_the_record(tmp_path: Path) -> None:
    held = ClaimedDevice("st0", "st0", "node", "tapes")
    async with running(Tapes(Device("st0")), tmp_path, KUBELET, QUICK) as kubelet:
        paths = DriverPaths.of(kubelet.daemon.settings, DRIVER)
        async with PreparedClaims(paths.checkpoint, "earlier").transaction() as transaction:
            await transaction.run(
                lambda: transaction.put(PreparedClaim("uid-1", "default", "old", State.DONE, "earlier", (held,)))
            )
        async with as_device_plugin(kubelet, Device("st0")) as daemon:
            await until_state(daemon, "driver registered")
            (socket,) = paths.directory.glob("*.sock")
            async with dra.connect(socket) as client:
                claims = [Claim("default", "old", "uid-1"), Claim("default", "new", "uid-2")]
                answers = await client.prepare(claims, timeout=LIMIT)
                assert not isinstance(answers["uid-1"], str)
                assert "new claims are refused" in str(answers["uid-2"])
                assert len(list(kubelet.cdi.glob("*"))) == 1
                assert await client.unprepare(claims, timeout=LIMIT) == {"uid-1": "", "uid-2": ""}
            await until_state(daemon, "no claim of earlier is left")
            await kubelet.allocatable(TAPE, count=1)


async def test_a_claim_that_the_kubelet_has_unprepared_ends_with_the_pods_that_it_was_kept_for(tmp_path: Path) -> None:
    """A kubelet of 1.36 does not ask again; the names of the pods are from the API server that was there then."""
    held = ClaimedDevice("st1", "st1", "node", "tapes")
    kept = PreparedClaim("uid-1", "default", "old", State.ENDED, boot_id(), (held,), pods=("first", "second"))
    async with running(Tapes(Device("st0"), Device("st1")), tmp_path, KUBELET, QUICK) as kubelet:
        pod = await kubelet.admit(pod_requesting({TAPE: 1}, name="second"))
        paths = DriverPaths.of(kubelet.daemon.settings, DRIVER)
        async with PreparedClaims(paths.checkpoint, boot_id()).transaction() as transaction:
            await transaction.run(lambda: transaction.put(kept))
        async with as_device_plugin(kubelet, Device("st0"), Device("st1")) as daemon:
            await until_state(daemon, "driver registered")
            assert driver(daemon)["leaving"] == ["default/old (st1)"]
            await kubelet.remove(pod)
            await until_state(daemon, "no claim of earlier is left")
            await kubelet.allocatable(TAPE, count=2)


async def test_parts_of_hardware_that_a_claim_holds_are_kept_back_with_it(tmp_path: Path) -> None:
    card, half = Device("card", physical=["card0"]), Device("half", physical=["card0/0"])
    async with running(Tapes(card), tmp_path, KUBELET, QUICK, "dra") as kubelet:
        await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 1})]))
        async with as_device_plugin(kubelet, card, half, Device("other")):
            await kubelet.allocatable(TAPE, count=1)


async def test_nothing_is_offered_while_the_earlier_daemon_still_serves_claims(tmp_path: Path) -> None:
    async with running(Tapes(Device("st0")), tmp_path, KUBELET, QUICK, "dra") as kubelet:
        lock = PlacementLock(DriverPaths.of(kubelet.daemon.settings, DRIVER).lock)
        assert lock.take(shared=True)
        async with as_device_plugin(kubelet, Device("st0")) as daemon:
            await until_state(daemon, "another process of the daemon decides until it ends")
            await kubelet.allocatable(TAPE, count=0)
            lock.close()
            await kubelet.allocatable(TAPE, count=1)
