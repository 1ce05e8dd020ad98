"""A device that is gone stays listed until nobody can be holding it."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.observed_kubelet import ObservedKubelet
from tests.protocol.held_devices import serve_held_devices
from tests.sdk.actors import ListingPlugin, LogRecorder, recorded_log
from tests.system.frozen_file import frozen

from plugwright import Device, Plugin, Settings, Timeouts, serving
from plugwright.protocol import checkpoint, pod_resources, transport
from plugwright.protocol.checkpoint import Checkpoint, PodDevicesEntry
from plugwright.protocol.paths import KubeletPaths
from plugwright.protocol.pod_resources import HeldDevice
from plugwright.protocol.transport import Unary
from plugwright.sdk.holdings.kubelet_checkpoint import KubeletCheckpoint
from plugwright.sdk.holdings.ledger import Ledger
from plugwright.sdk.holdings.resource_holdings import ResourceHoldings
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.removed_devices import RemovedDevices
from plugwright.testing import pod_requesting

TAPE = "example.com/tape"
PATIENCE = 0.05


@pytest.fixture
def paths(root: Path) -> KubeletPaths:
    paths = KubeletPaths.under(root)
    paths.device_plugins.mkdir()
    paths.pod_resources_socket.parent.mkdir()
    return paths


@pytest.fixture
def inventory() -> Inventory:
    """Two drives were found, then st0 was gone."""
    inventory = Inventory(TAPE)
    inventory.update([Device("st0"), Device("st1")])
    inventory.update([Device("st1")])
    return inventory


def removed_devices(inventory: Inventory, paths: KubeletPaths, patience: float) -> RemovedDevices:
    timeouts = Timeouts(departed=patience)
    settings = Settings(kubelet_dir=paths.root, timeouts=timeouts)
    return RemovedDevices(inventory, ResourceHoldings(TAPE, Ledger(settings), inventory.resend), timeouts)


class Node:
    """Tells who holds what, and that it was asked."""

    def __init__(self, *holdings: HeldDevice) -> None:
        self.held = holdings
        self.asked = asyncio.Condition()
        self.times = 0

    async def held_devices(self) -> Sequence[HeldDevice]:
        async with self.asked:
            self.times += 1
            self.asked.notify_all()
        return self.held

    async def is_asked_twice_more(self) -> None:
        wanted = self.times + 2  # when it is asked again, the answer before has been dealt with
        async with self.asked:
            await self.asked.wait_for(lambda: self.times >= wanted)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[LogRecorder]:
    with recorded_log("plugwright.sdk.removed_devices", caplog) as log:
        yield log


def write_checkpoint(paths: KubeletPaths, devices: dict[int, tuple[str, ...]], resource: str = TAPE) -> None:
    entry = PodDevicesEntry("0d3c-uid", "main", resource, devices, b"")
    paths.checkpoint.write_bytes(checkpoint.encode(Checkpoint((entry,), {resource: ()})))


@asynccontextmanager
async def forgetting(inventory: Inventory, paths: KubeletPaths, patience: float = PATIENCE) -> AsyncIterator[None]:
    running = asyncio.create_task(removed_devices(inventory, paths, patience).run())
    try:
        async with asyncio.timeout(60):
            yield
    finally:
        running.cancel()
        (ended,) = await asyncio.gather(running, return_exceptions=True)
    assert isinstance(ended, asyncio.CancelledError), ended


def listed(inventory: Inventory) -> set[str]:
    assert inventory.latest.value is not None
    return set(inventory.latest.value.devices)


async def forgotten(inventory: Inventory, device_id: str) -> None:
    await inventory.latest.until(lambda snapshot: snapshot is not None and device_id not in snapshot.devices)


async def held_by_pods(socket: Path) -> set[str]:
    held = await pod_resources.held_devices(socket, 60)
    return {device.device_id for device in held if device.resource == TAPE}


async def test_a_removed_device_that_no_pod_holds_is_forgotten_after_a_while(paths: KubeletPaths) -> None:
    inventory, times = Inventory(TAPE), []
    async with serve_held_devices(Node(), paths.pod_resources_socket), forgetting(inventory, paths):
        inventory.update([Device("st0"), Device("st1")])
        inventory.update([Device("st1")])
        gone = inventory.removed_since["st0"]
        inventory.latest.subscribe(lambda: times.append(time.monotonic()))
        await forgotten(inventory, "st0")
    assert listed(inventory) == {"st1"}
    assert times[0] - gone >= PATIENCE


async def test_a_device_that_comes_back_in_time_stays(paths: KubeletPaths, inventory: Inventory) -> None:
    node = Node()
    async with serve_held_devices(node, paths.pod_resources_socket), forgetting(inventory, paths):
        inventory.update([Device("st0")])
        await forgotten(inventory, "st1")
    assert listed(inventory) == {"st0"}


@pytest.mark.parametrize("nodes", [{-1: ("st0",)}, {0: ("st0",), 1: ("st0", "st1")}])
async def test_a_device_that_the_checkpoint_names_is_kept(
    nodes: dict[int, tuple[str, ...]], paths: KubeletPaths, inventory: Inventory
) -> None:
    node = Node()
    write_checkpoint(paths, nodes)
    async with serve_held_devices(node, paths.pod_resources_socket), forgetting(inventory, paths):
        await node.is_asked_twice_more()
        assert listed(inventory) == {"st0", "st1"}
        write_checkpoint(paths, {-1: ("st1",)})
        await forgotten(inventory, "st0")


async def test_a_device_that_pod_resources_name_is_kept(paths: KubeletPaths, inventory: Inventory) -> None:
    node = Node(HeldDevice(TAPE, "st0", "default", "backup", "main"))
    async with serve_held_devices(node, paths.pod_resources_socket), forgetting(inventory, paths):
        await node.is_asked_twice_more()
        assert listed(inventory) == {"st0", "st1"}
        node.held = ()
        await forgotten(inventory, "st0")


async def test_a_held_device_of_another_resource_keeps_nothing(paths: KubeletPaths, inventory: Inventory) -> None:
    write_checkpoint(paths, {-1: ("st0",)}, resource="example.com/disk")
    node = Node(HeldDevice("example.com/disk", "st0", "default", "backup", "main"))
    async with serve_held_devices(node, paths.pod_resources_socket), forgetting(inventory, paths):
        await forgotten(inventory, "st0")


async def test_of_several_devices_only_those_that_are_held_are_kept(paths: KubeletPaths) -> None:
    inventory = Inventory(TAPE)
    inventory.update([Device(f"st{number}") for number in range(4)])
    inventory.update([Device("st3")])
    write_checkpoint(paths, {0: ("st1",)})
    node = Node(HeldDevice(TAPE, "st2", "default", "backup", "main"))
    async with serve_held_devices(node, paths.pod_resources_socket), forgetting(inventory, paths):
        await forgotten(inventory, "st0")
        await node.is_asked_twice_more()
    assert listed(inventory) == {"st1", "st2", "st3"}


def _corrupt(paths: KubeletPaths) -> None:
    write_checkpoint(paths, {-1: ("st7",)})
    paths.checkpoint.write_bytes(paths.checkpoint.read_bytes().replace(b"st7", b"st8"))


UNREADABLE: dict[str, Callable[[KubeletPaths], object]] = {
    "corrupt": _corrupt,
    "empty": lambda paths: paths.checkpoint.write_bytes(b""),
    "a directory": lambda paths: paths.checkpoint.mkdir(),
    "a link to itself": lambda paths: paths.checkpoint.symlink_to(paths.checkpoint),
    "in a directory that is gone": lambda paths: paths.device_plugins.rmdir(),
}


@pytest.mark.parametrize("spoil", UNREADABLE.values(), ids=UNREADABLE)
async def test_a_checkpoint_that_cannot_be_read_keeps_everything(
    spoil: Callable[[KubeletPaths], object], paths: KubeletPaths, inventory: Inventory, log: LogRecorder
) -> None:
    spoil(paths)
    async with serve_held_devices(Node(), paths.pod_resources_socket), forgetting(inventory, paths):
        await log.until("removed devices stay listed: cannot read which devices pods hold", times=2)
        assert listed(inventory) == {"st0", "st1"}


async def test_pod_resources_that_cannot_be_read_keep_everything_until_they_can(
    paths: KubeletPaths, inventory: Inventory, log: LogRecorder
) -> None:
    async with forgetting(inventory, paths):
        await log.until("removed devices stay listed: cannot read which devices pods hold", times=2)
        assert listed(inventory) == {"st0", "st1"}
        async with serve_held_devices(Node(), paths.pod_resources_socket):
            await forgotten(inventory, "st0")


async def test_pod_resources_that_answer_nonsense_keep_everything(
    paths: KubeletPaths, inventory: Inventory, log: LogRecorder
) -> None:
    async def nonsense(_: bytes) -> bytes:
        return b"\x0a\xff"

    async with (
        transport.serve(paths.pod_resources_socket, [Unary("/v1.PodResourcesLister/List", nonsense)]),
        forgetting(inventory, paths),
    ):
        await log.until("removed devices stay listed: cannot read which devices pods hold", times=2)
        assert listed(inventory) == {"st0", "st1"}


async def test_no_checkpoint_yet_means_that_nothing_was_allocated(paths: KubeletPaths) -> None:
    assert (await KubeletCheckpoint(paths.checkpoint, 60).read()).held.get(TAPE, {}) == {}
    async with serve_held_devices(Node(), paths.pod_resources_socket):
        assert await held_by_pods(paths.pod_resources_socket) == set()


async def test_checkpoint_and_pod_resources_are_both_read(paths: KubeletPaths) -> None:
    write_checkpoint(paths, {0: ("st0", "st1"), 1: ("st1",), -1: ("st2",)})
    assert (await KubeletCheckpoint(paths.checkpoint, 60).read()).held.get(TAPE, {}) == {
        "st0": (0,),
        "st1": (0, 1),
        "st2": (),
    }
    node = Node(
        HeldDevice(TAPE, "st3", "default", "backup", "main"), HeldDevice("example.com/disk", "sd0", "a", "b", "c")
    )
    async with serve_held_devices(node, paths.pod_resources_socket):
        assert await held_by_pods(paths.pod_resources_socket) == {"st3"}


async def test_an_inventory_without_removed_devices_reads_neither(paths: KubeletPaths) -> None:
    inventory, node = Inventory(TAPE), Node()
    inventory.update([Device("st0")])
    async with serve_held_devices(node, paths.pod_resources_socket), forgetting(inventory, paths, 0.001):
        for _ in range(50):
            await asyncio.sleep(0.001)
    assert node.times == 0


class Tape(Plugin):
    """Finds one drive of the two that there were."""

    resource = TAPE

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Device("st1", numa=[0])]


async def test_devices_that_pods_hold_at_the_start_are_listed_as_unhealthy_with_their_numa_nodes(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    write_checkpoint(kubelet.paths, {0: ("st0",), 1: ("st0", "st1")})
    await kubelet.restart()
    async with serving(Tape(), settings=settings) as daemon:
        tape = await kubelet.endpoint(TAPE)
        assert tape.lists[0] == [Device("st0", "Unhealthy", numa=[0, 1]), Device("st1", numa=[0])]
        snapshot = daemon.resources[TAPE].inventory.latest.value
        assert snapshot is not None
        assert (
            snapshot.devices["st0"].reason == "a pod holds it, but it is not found, or no longer in the configuration"
        )


async def test_a_checkpoint_that_cannot_be_read_at_the_start_does_not_delay_serving(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    kubelet.paths.checkpoint.write_bytes(b"{")
    async with serving(Tape(), settings=settings):
        tape = await kubelet.endpoint(TAPE)
        assert tape.lists[0] == [Device("st1", numa=[0])]


async def test_devices_that_pods_held_at_the_start_are_forgotten_when_the_pods_have_ended(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    quick = replace(settings, timeouts=replace(settings.timeouts, departed=PATIENCE))
    async with serving(ListingPlugin(TAPE, "st0", "st2"), settings=quick):
        await kubelet.endpoint(TAPE, count=2)
        backup, restore = [await kubelet.kubelet.admit(pod_requesting({TAPE: 1})) for _ in range(2)]
    [[of_backup], [of_restore]] = [call.asked for call in kubelet.kubelet.calls if call.method == "Allocate"]
    async with serving(Tape(), settings=quick):
        tape = await kubelet.endpoint(TAPE, count=3)
        assert set(tape.devices) == {of_backup, of_restore, "st1"}
        await kubelet.kubelet.remove(backup)
        await kubelet.until(lambda _: set(tape.devices) == {of_restore, "st1"})  # read while a pod holds one of two
        assert not tape.devices[of_restore].healthy
        await kubelet.kubelet.remove(restore)
        await kubelet.until(lambda _: tape.lists[-1] == [Device("st1", numa=[0])])


async def test_a_list_is_sent_once_more_so_that_the_kubelet_writes_down_what_it_has_freed(
    paths: KubeletPaths, inventory: Inventory
) -> None:
    write_checkpoint(paths, {0: ("st0",)})
    async with serve_held_devices(Node(), paths.pod_resources_socket), forgetting(inventory, paths):
        await inventory.latest.until(lambda snapshot: snapshot is not None and snapshot.resent > 0)
        assert listed(inventory) == {"st0", "st1"}
        write_checkpoint(paths, {})
        await inventory.latest.until(lambda _: listed(inventory) == {"st1"})


async def test_what_cannot_be_read_is_warned_of_once_and_shown_until_it_can(
    paths: KubeletPaths, inventory: Inventory, log: LogRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    removed = removed_devices(inventory, paths, PATIENCE)
    running = asyncio.create_task(removed.run())
    await log.until("removed devices stay listed", times=3)
    assert removed.unreadable.value.startswith("pod-resources cannot be read: ")
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert [record.getMessage() for record in warnings] == [
        "removed devices stay listed: cannot read which devices pods hold"
    ]
    async with serve_held_devices(Node(), paths.pod_resources_socket):
        await forgotten(inventory, "st0")
    assert removed.unreadable.value == ""
    running.cancel()
    await asyncio.wait([running])


async def test_a_checkpoint_that_hangs_blocks_nothing_and_holds_one_thread(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    file = kubelet.paths.checkpoint.with_name("file")
    file.touch()
    kubelet.paths.checkpoint.unlink(missing_ok=True)
    os.link(file, kubelet.paths.checkpoint)  # under its own name it stays when the kubelet writes its checkpoint
    quick = replace(settings, timeouts=replace(settings.timeouts, checkpoint=0.05, departed=PATIENCE))
    plugin = ListingPlugin(TAPE, "st0", "st1")
    before = set(threading.enumerate())  # among them one of an earlier test, perhaps, that is about to end
    with frozen(file):
        async with serving(plugin, settings=quick) as daemon:
            await kubelet.endpoint(TAPE, count=2)
            unreadable = daemon.resources[TAPE].removed_devices.unreadable
            assert f"read of {kubelet.paths.checkpoint} did not end within 0.05 s" in unreadable.value
            plugin.ids.publish(("st0",))
            await kubelet.health(TAPE, "st1", "Unhealthy")
            threads = [thread for thread in {*threading.enumerate()} - before if thread.name.startswith("read of ")]
            assert len(threads) == 1
    while threads[0].name.startswith("read of ") and threads[0].is_alive():
        await asyncio.sleep(0.001)
