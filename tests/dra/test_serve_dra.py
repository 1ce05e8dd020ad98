"""`serve: dra` where the device plugin API served the resource before: what its pods hold belongs to no claim."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from plugwright import Allocation, Device, Plugin, Settings, Timeouts
from plugwright.errors import ConfigError
from plugwright.kubelet import KubeletSettings, Pod
from plugwright.sdk.serve_settings import ServeMode, Split
from plugwright.system.latest import Latest
from plugwright.testing import claim_requesting, pod_requesting, running
from plugwright.testing.harness import PluginKubelet

TAPE, LIMIT = "example.com/tape", 30.0
QUICK = Settings(timeouts=Timeouts(holders=0.1, in_flight=0.3))


class Tapes(Plugin):
    resource = TAPE

    def __init__(self, *devices: Device) -> None:
        self.lists = Latest(devices)

    async def discover(self) -> AsyncIterator[Sequence[Device]]:
        async for devices in self.lists.changes():
            yield devices

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        return Allocation(env={"TAPES": ",".join(device.id for device in devices)})


def published(kubelet: PluginKubelet) -> list[str]:
    return [device["name"] for one in kubelet.api.slices for device in one["spec"].get("devices") or ()]


def driver(kubelet: PluginKubelet) -> dict[str, Any]:
    found = kubelet.daemon.resources[TAPE].driver
    assert found is not None
    return dict(found.status())


async def until_waits(kubelet: PluginKubelet, device_id: str, reason: str) -> None:
    async with asyncio.timeout(LIMIT):
        while driver(kubelet).get("devices", {}).get(device_id, {}).get("waits") != reason:
            await asyncio.sleep(0.01)


async def until_published(kubelet: PluginKubelet, names: list[str]) -> None:
    assert await kubelet.api.until(lambda: published(kubelet) == names, LIMIT)


async def serve_again(kubelet: PluginKubelet, api: ServeMode, split: Split | None = None) -> Tapes:
    """The same devices through another API, by a driver that has only the files of the one before."""
    old = kubelet.daemon.resources[TAPE].service.plugin
    assert isinstance(old, Tapes)
    others = [one.service.plugin for name, one in kubelet.daemon.resources.items() if name != TAPE]
    await kubelet.daemon.apply(others)
    again = Tapes(*old.lists.value)
    again.serve = replace(old.serve, api=api, split=split or Split())
    await kubelet.daemon.apply([*others, again])
    return again


async def end(kubelet: PluginKubelet, pod: Pod, device_id: str) -> None:
    """The kubelet does not write its checkpoint when a pod ends (3.60), and no other device list changes."""
    await until_waits(kubelet, device_id, f"held by {pod.spec.key}")
    await kubelet.remove(pod)


@pytest.mark.parametrize("before", ["device-plugin", "both"])
async def test_a_device_that_a_pod_holds_is_published_when_the_pod_ends(tmp_path: Path, before: str) -> None:
    async with running(Tapes(Device("st0")), tmp_path, KubeletSettings(timeout=LIMIT), QUICK) as kubelet:
        if before == "both":
            await serve_again(kubelet, ServeMode.BOTH, Split(dra=0))
        await kubelet.allocatable(TAPE, count=1)
        pod = await kubelet.admit(pod_requesting({TAPE: 1}, name="reader"))
        again = await serve_again(kubelet, ServeMode.DRA)
        again.lists.publish((Device("st0"), Device("st1")))
        await until_published(kubelet, ["st1"])
        assert driver(kubelet)["devices"]["st0"]["phase"] == "withheld"
        await end(kubelet, pod, "st0")
        await until_published(kubelet, ["st0", "st1"])
        claimed = await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: ["st0"]})]))
        assert kubelet.container(claimed).env["TAPES"] == "st0"
        await kubelet.daemon.resources[TAPE].service.streams.until(lambda streams: not streams.open)


async def test_a_device_of_a_pod_that_ended_before_the_driver_started_is_published(tmp_path: Path) -> None:
    async with running(Tapes(Device("st0")), tmp_path, KubeletSettings(timeout=LIMIT), QUICK) as kubelet:
        pod = await kubelet.admit(pod_requesting({TAPE: 1}))
        await kubelet.daemon.apply([])
        await kubelet.remove(pod)
        again = Tapes(Device("st0"))
        again.serve = replace(again.serve, api=ServeMode.DRA)
        await kubelet.daemon.apply([again])
        await until_published(kubelet, ["st0"])


async def test_a_device_of_an_init_container_is_published_when_its_pod_ends(tmp_path: Path) -> None:
    """Pod-resources do not list it (6.6), so it is the checkpoint that counts."""
    async with running(Tapes(Device("st0")), tmp_path, KubeletSettings(timeout=LIMIT), QUICK) as kubelet:
        pod = await kubelet.admit(pod_requesting({"main": {"cpu": 1}}, init={"setup": {TAPE: 1}}))
        await serve_again(kubelet, ServeMode.DRA)
        await until_waits(kubelet, "st0", "held by a pod that the kubelet's checkpoint has")
        async with asyncio.timeout(LIMIT):  # a second reading follows only if the first one has found the device held
            lists = kubelet.daemon.resources[TAPE].inventory.latest
            await lists.until(lambda snapshot: snapshot is not None and snapshot.resent >= 2)
        assert published(kubelet) == []
        await kubelet.remove(pod)
        await until_published(kubelet, ["st0"])


async def test_the_parts_of_held_hardware_wait_with_it(tmp_path: Path) -> None:
    card = Device("card", physical=["card0"])
    async with running(Tapes(card), tmp_path, KubeletSettings(timeout=LIMIT), QUICK) as kubelet:
        pod = await kubelet.admit(pod_requesting({TAPE: 1}))
        again = await serve_again(kubelet, ServeMode.DRA)
        again.lists.publish((card, Device("half", physical=["card0/0"]), Device("other")))
        await until_published(kubelet, ["other"])
        await end(kubelet, pod, "card")
        await until_published(kubelet, ["card", "half", "other"])


async def test_nothing_is_published_while_it_is_not_known_what_pods_hold(tmp_path: Path) -> None:
    async with running(Tapes(Device("st0")), tmp_path, KubeletSettings(timeout=LIMIT), QUICK) as kubelet:
        checkpoint = kubelet.paths.checkpoint
        content = checkpoint.read_bytes()
        checkpoint.write_bytes(b"{")
        await serve_again(kubelet, ServeMode.DRA)
        async with asyncio.timeout(LIMIT):
            while "the checkpoint cannot be read" not in driver(kubelet).get("problem", ""):
                await asyncio.sleep(0.01)
        assert published(kubelet) == []
        checkpoint.write_bytes(content)
        await until_published(kubelet, ["st0"])


async def test_no_device_moves_from_claims(tmp_path: Path) -> None:
    async with running(Tapes(Device("st0")), tmp_path, serve="dra") as kubelet:
        found = kubelet.daemon.resources[TAPE].driver
        assert found is not None
        for name, arguments in (("move", {"device": "st0", "to": "dra"}), ("handover", {"to": "both"})):
            with pytest.raises(ConfigError, match="is served by dra alone"):
                await found.command(name, arguments)


async def test_serve_dra_neither_writes_a_split_file_nor_loads_what_moves_devices(tmp_path: Path) -> None:
    """In a process of its own: others may have loaded it in this one."""
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ALONE, str(tmp_path), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await program.communicate()
    assert output.decode().splitlines() == ["loaded []", "split files []"]


ALONE = """
import asyncio, sys
from pathlib import Path
from plugwright import Allocation, Device, Plugin
from plugwright.testing import claim_requesting, pod_requesting, running

class Tapes(Plugin):
    resource = "example.com/tape"

    async def discover(self):
        yield [Device("st0")]

async def main(directory):
    async with running(Tapes(), directory, serve="dra") as kubelet:
        await kubelet.admit(pod_requesting({}, claims=[claim_requesting({"example.com/tape": 1})]))
    print("loaded", sorted(name for name in sys.modules if name.startswith("plugwright.dra.both")))
    print("split files", [path.name for path in directory.rglob("split*.json")])

asyncio.run(main(Path(sys.argv[1])))
"""


async def test_a_split_file_of_before_is_removed(tmp_path: Path) -> None:
    async with running(Tapes(Device("st0")), tmp_path, served=QUICK, serve="both") as kubelet:
        await until_published(kubelet, ["st0"])
        split = kubelet.paths.plugins / "tape.example.com" / "split.json"
        assert split.exists()
        await serve_again(kubelet, ServeMode.DRA)
        async with asyncio.timeout(LIMIT):
            while split.exists():
                await asyncio.sleep(0.01)
        assert published(kubelet) == ["st0"]


async def test_a_device_of_serve_dra_is_listed_when_claims_are_known_not_to_have_it(tmp_path: Path) -> None:
    async with running(Tapes(Device("st0")), tmp_path, KubeletSettings(timeout=LIMIT), QUICK, serve="dra") as kubelet:
        await until_published(kubelet, ["st0"])
        await serve_again(kubelet, ServeMode.BOTH, Split(dra=0))
        assert await kubelet.api.until(lambda: taints(kubelet) == [["plugwright.dev/moving"]], LIMIT)
        await until_published(kubelet, [])
        assert await kubelet.allocatable(TAPE, count=1) == 1


def taints(kubelet: PluginKubelet) -> list[list[str]]:
    devices = [device for one in kubelet.api.slices for device in one["spec"].get("devices") or ()]
    return [[taint["key"] for taint in device.get("taints") or ()] for device in devices]
