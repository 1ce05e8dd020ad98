"""Two releases on one node, or two pods of one, offer the same hardware in two ways: it has one holder all the same."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from plugwright import Allocation, Device, Plugin, ServeSettings, Settings, Timeouts, serving
from plugwright.dra.device_access import PluginDevices
from plugwright.errors import PluginError, PodRefused, UnhealthyDevice
from plugwright.kubelet import Kubelet, KubeletSettings, Timing
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.holdings.offers import OfferMemory
from plugwright.sdk.holdings.overlaps import Offer
from plugwright.sdk.holdings.records import Memory
from plugwright.sdk.serve_settings import ServeMode
from plugwright.system.inotify import settled_changes
from plugwright.testing import claim_requesting, pod_requesting, running
from plugwright.testing.harness import PluginKubelet

CARD, HALF, LIMIT = "example.com/card", "example.com/half", 30.0
KUBELET = KubeletSettings(timeout=LIMIT, timing=Timing(reconcile=0.05, unprepare_retry=0.1))


class Cards(Plugin):
    """Their ids tell nothing about the hardware."""

    def __init__(self, resource: str, *devices: Device) -> None:
        self.resource, self._devices = resource, devices

    async def discover(self) -> AsyncIterator[Sequence[Device]]:
        yield self._devices

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        return Allocation(env={"DEVICES": ",".join(device.id for device in devices)})


def card() -> Cards:
    return Cards(CARD, Device("slot-7", physical=("card0",)))


def halves() -> Cards:
    return Cards(HALF, *(Device(f"h{n}", physical=(f"card0/{n}",)) for n in (0, 1)))


def settings(tmp_path: Path, release: str) -> Settings:
    timeouts = Timeouts(holders=0.05, in_flight=0.3)
    return Settings(
        release=f"default/{release}",
        state_dir=tmp_path / f"state-{release}",
        node_dir=tmp_path / "node",
        timeouts=timeouts,
    )


@asynccontextmanager
async def neighbour(kubelet: PluginKubelet, tmp_path: Path, plugin: Plugin) -> AsyncIterator[Daemon]:
    """A release beside that of the kubelet's daemon; inside, both know the offers of the other."""
    own, serve = kubelet.daemon.settings, ServeSettings(cdi=str(kubelet.cdi), host_root=None)
    plugin.serve = serve
    second = replace(
        settings(tmp_path, "second"), kubelet_dir=own.kubelet_dir, device_plugins_dir=own.device_plugins_dir
    )
    async with serving(plugin, settings=second) as daemon, asyncio.timeout(LIMIT):
        await until_shared(daemon, plugin)
        for runtime in kubelet.daemon.resources.values():
            await until_shared(kubelet.daemon, runtime.service.plugin)
        yield daemon


async def until_shared(daemon: Daemon, plugin: Plugin) -> None:
    inventory = daemon.resource(plugin.resource).inventory.latest
    snapshot = await inventory.until(lambda snapshot: snapshot is not None)
    assert snapshot is not None
    await daemon.ledger.changed.until(lambda: daemon.ledger.is_shared(plugin.resource, snapshot.devices))
    await inventory.until(lambda now: now is not None and all(device.healthy for device in now.devices.values()))


async def until(daemon: Daemon, resource: str, device_id: str, reason: str) -> None:
    """Until the device is Unhealthy for this reason, or Healthy if it is empty."""
    await daemon.resource(resource).inventory.latest.until(
        lambda now: now is not None and now.devices[device_id].reason == reason
    )


async def refused(daemon: Daemon, resource: str, device_id: str, why: str) -> None:
    with pytest.raises(UnhealthyDevice, match=why):
        await daemon.resource(resource).service.allocate([[device_id]])


async def test_hardware_that_a_pod_of_another_release_holds_is_kept_back_until_the_pod_ends(tmp_path: Path) -> None:
    async with (
        running(card(), tmp_path, KUBELET, settings(tmp_path, "first")) as kubelet,
        neighbour(kubelet, tmp_path, halves()) as second,
    ):
        await kubelet.allocatable(HALF, 2)
        pod = await kubelet.admit(pod_requesting({CARD: 1}, name="a"))
        await refused(second, HALF, "h0", "held as slot-7")  # at once, whatever has been read by then
        for device_id in ("h0", "h1"):
            await until(second, HALF, device_id, f"held as slot-7 of {CARD} by default/a")
        await kubelet.remove(pod)
        for device_id in ("h0", "h1"):
            await until(second, HALF, device_id, "")
        await kubelet.allocatable(HALF, 2)
        allocated = await kubelet.admit(pod_requesting({HALF: 1}, name="b"))
        [device_id] = allocated.container("main").env["DEVICES"].split(",")
        await until(kubelet.daemon, CARD, "slot-7", f"held as {device_id} of {HALF} by default/b")


async def test_a_claim_of_another_release_keeps_its_hardware_from_pods(tmp_path: Path) -> None:
    async with (
        running(card(), tmp_path, KUBELET, settings(tmp_path, "first"), "dra") as kubelet,
        neighbour(kubelet, tmp_path, halves()) as second,
    ):
        pod = await kubelet.admit(pod_requesting({}, name="a", claims=[claim_requesting({CARD: 1}, name="c")]))
        assert kubelet.container(pod).env["DEVICES"] == "slot-7"
        await refused(second, HALF, "h0", "held as slot-7 of example.com/card by ResourceClaim default/c")
        await until(second, HALF, "h1", f"held as slot-7 of {CARD} by ResourceClaim default/c")
        await kubelet.remove(pod)
        await until(second, HALF, "h1", "")


async def test_a_claim_waits_for_hardware_that_a_pod_of_another_release_holds(tmp_path: Path) -> None:
    async with (
        running(card(), tmp_path, KUBELET, settings(tmp_path, "first"), "dra") as kubelet,
        neighbour(kubelet, tmp_path, halves()),
    ):
        await kubelet.allocatable(HALF, 2)
        holder = await kubelet.admit(pod_requesting({HALF: 1}, name="a"))
        confirmed = await kubelet.daemon.ledger.confirm(CARD, ["slot-7"])  # whatever has been read by then
        device_id = confirmed["slot-7"].split()[2]
        await until(kubelet.daemon, CARD, "slot-7", f"held as {device_id} of {HALF} by default/a")
        await kubelet.remove(holder)
        # Only the other release has a device list after which the kubelet writes that the pod has ended.
        await until(kubelet.daemon, CARD, "slot-7", "")
        pod = await kubelet.admit(pod_requesting({}, name="b", claims=[claim_requesting({CARD: 1})]))
        assert kubelet.container(pod).env["DEVICES"] == "slot-7"


async def test_what_is_being_given_out_keeps_a_recorded_claim_from_its_hardware(tmp_path: Path) -> None:
    """Two resources of one daemon: the claim was recorded while the Allocate was open."""
    first, second = card(), halves()
    async with running([first, second], tmp_path, KUBELET, settings(tmp_path, "first")) as kubelet:
        ledger = kubelet.daemon.ledger
        ledger.begin_allocate(HALF, ["h0"])
        devices = PluginDevices(kubelet.daemon.resource(CARD), Anything())
        with pytest.raises(PluginError, match=f"held as h0 of {HALF} by a pod that is being admitted"):
            await devices.allocate([Device("slot-7")])
        ledger.end_allocate(HALF, ["h0"], is_answered=False)
        assert (await devices.allocate([Device("slot-7")])).env == {"DEVICES": "slot-7"}


@pytest.mark.parametrize("loss", ["removed", "damaged"])
async def test_a_release_writes_its_lost_memory_again_for_the_others(tmp_path: Path, loss: str) -> None:
    async with running(card(), tmp_path, KUBELET, settings(tmp_path, "first")) as kubelet:
        await kubelet.allocatable(CARD, 1)
        memory = kubelet.daemon.ledger.memory
        assert memory.directory is not None
        path, reader = memory.directory / "default_first.json", OfferMemory(settings(tmp_path, "second"))
        async with aclosing(settled_changes(memory.directory, settle=0.01)) as changes, asyncio.timeout(LIMIT):
            while "default_first" not in reader.others():
                await anext(changes)
            path.unlink() if loss == "removed" else path.write_bytes(b"{")
            while (known := reader.others().get("default_first")) is None:
                await anext(changes)
        assert known.offers[0].physical == ("card0",)


async def test_a_memory_lost_while_it_is_written_is_written_again(tmp_path: Path) -> None:
    memory = OfferMemory(settings(tmp_path, "first"))
    assert memory.directory is not None
    path = memory.directory / "default_first.json"
    assert await memory.read() is None
    writing = asyncio.create_task(memory.write(Memory()))
    await asyncio.sleep(0)
    while not path.exists():  # its thread writes, and this loop does not see the end of the call
        pass
    path.unlink()
    assert memory.others() == {}
    await writing
    await memory.write(Memory())
    assert path.exists()


@asynccontextmanager
async def two_pods(root: Path, tmp_path: Path, after: Plugin) -> AsyncIterator[tuple[Kubelet, Daemon, Daemon]]:
    """A rolling update with maxSurge that changes the configuration: until the old pod ends, both serve."""
    own, before = replace(settings(tmp_path, "gpus"), kubelet_dir=root), card()
    before.serve = after.serve = ServeSettings(cdi=str(tmp_path / "cdi"), host_root=None)
    async with (
        Kubelet(root, KubeletSettings(version="1.37", timing=KUBELET.timing)) as kubelet,
        serving(before, settings=replace(own, pod_uid="uid-1")) as old,
    ):
        await kubelet.allocatable(CARD, 1)
        async with serving(after, settings=replace(own, pod_uid="uid-2")) as new, asyncio.timeout(LIMIT):
            await until_shared(new, after)
            await until_shared(old, before)
            await kubelet.allocatable(after.resource, 2)
            yield kubelet, old, new


@pytest.mark.parametrize("order", [(CARD, HALF), (HALF, CARD)], ids=["old first", "new first"])
async def test_two_pods_of_one_release_know_what_the_other_gives_out(
    root: Path, tmp_path: Path, order: tuple[str, str]
) -> None:
    async with two_pods(root, tmp_path, halves()) as (kubelet, _, _):
        first, second = order
        await kubelet.admit(pod_requesting({first: 1}, name="a"))
        with pytest.raises(PodRefused):
            await kubelet.admit(pod_requesting({second: 1}, name="b"))


async def test_an_allocate_of_the_old_pod_keeps_the_hardware_from_the_new_one(root: Path, tmp_path: Path) -> None:
    """The new one serves the same resource, with other devices."""
    after = Cards(CARD, *(Device(f"h{n}", physical=(f"card0/{n}",)) for n in (0, 1)))
    async with two_pods(root, tmp_path, after) as (_, old, new):
        await old.resource(CARD).service.allocate([["slot-7"]])
        await refused(new, CARD, "h0", "held as slot-7 by a pod")


async def test_the_next_start_joins_what_processes_of_the_release_have_left(tmp_path: Path) -> None:
    own = settings(tmp_path, "gpus")
    memories = [Memory({resource: (ServeMode.DEVICE_PLUGIN, "d")}, (Offer((resource, "x")),)) for resource in "ab"]
    first, second = OfferMemory(own), OfferMemory(own)
    for file, memory in zip((first, second), memories, strict=True):
        await file.read()
        await file.write(memory)
    assert first.others() == {"~default_gpus~1": memories[1]}
    second.close()
    third = OfferMemory(own)
    joined = await third.read()
    assert joined is not None
    assert (sorted(joined.resources), {offer.name[0] for offer in joined.offers}) == (["a", "b"], {"a", "b"})
    await third.write(joined)
    assert third.others() == {"~default_gpus": memories[0]}
    first.close()
    third.close()
    last = OfferMemory(own)
    assert await last.read() == joined
    await last.write(joined)
    assert last.others() == {}
    last.close()


class Anything:
    """Claims may have every device."""

    async def arriving(self, names: Collection[str]) -> None:
        return None

    def refusal(self, device_id: str) -> str:
        return ""
