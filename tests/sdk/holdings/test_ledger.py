"""Hardware that a pod holds is offered in one way at a time, whatever happens to the resources."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.observed_kubelet import ObservedKubelet
from tests.proto.deviceplugin_v1beta1_pb2 import AllocateResponse
from tests.protocol.held_devices import serve_held_devices

from plugwright import Allocation, Device, Plugin, Settings, Timeouts, serving
from plugwright.kubelet import KubeletSettings
from plugwright.protocol import checkpoint, messages
from plugwright.protocol.checkpoint import Checkpoint, PodDevicesEntry
from plugwright.protocol.paths import KubeletPaths
from plugwright.protocol.pod_resources import HeldDevice
from plugwright.sdk.holdings.book import Book
from plugwright.sdk.holdings.ledger import Ledger
from plugwright.sdk.holdings.records import ServedResource
from plugwright.sdk.holdings.sources import UnnamedHolders
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.serve_settings import ServeMode
from plugwright.system.latest import Latest
from plugwright.testing import pod_requesting, running

WHOLE, SHARED = "example.com/gpu", "example.com/gpu-shared"
CARD = ("card-7", "0000:3b:00.0")
QUICK = Settings(timeouts=Timeouts(holders=0.01))


class Cards(Plugin):
    """Lists the given devices, and others when they are published."""

    def __init__(self, resource: str, *devices: Device) -> None:
        self.resource = resource
        self.lists = Latest(devices)

    async def discover(self) -> AsyncIterator[Sequence[Device]]:
        async for devices in self.lists.changes():
            yield devices

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        return Allocation(nodes=["/dev/null"])


def whole(*ids: str) -> Cards:
    return Cards(WHOLE, *(Device(device_id, physical=(device_id, f"pci-{device_id}")) for device_id in ids))


def shares(*ids: str, resource: str = SHARED, kind: str = "quarters") -> Cards:
    names = [f"{device_id}::{number}" for device_id in ids for number in range(2)]
    return Cards(
        resource, *(Device(name, physical=(f"pci-{name.partition('::')[0]}",), sharing=kind) for name in names)
    )


async def test_a_card_that_a_pod_holds_whole_is_unhealthy_in_shares_until_the_pod_ends(tmp_path: Path) -> None:
    async with running(whole("a"), tmp_path, served=QUICK) as kubelet:
        pod = await kubelet.admit(pod_requesting({WHOLE: 1}, name="g4"))
        await kubelet.daemon.apply([shares("a", "b")])
        assert await kubelet.reason(SHARED, "a::0") == f"held by default/g4 ({WHOLE}) until it ends"
        assert await kubelet.reason(SHARED, "b::1", "Healthy") == ""
        assert await kubelet.allocatable(SHARED, 2) == 2
        await kubelet.remove(pod)
        assert await kubelet.reason(SHARED, "a::0", "Healthy") == ""
        assert await kubelet.allocatable(SHARED, 4) == 4


async def test_shares_that_pods_hold_keep_the_card_from_being_offered_whole(tmp_path: Path) -> None:
    async with running(shares("a"), tmp_path, served=QUICK) as kubelet:
        pod = await kubelet.admit(pod_requesting({SHARED: 1}, name="tenant"))
        await kubelet.daemon.apply([whole("a", "b")])
        assert await kubelet.reason(WHOLE, "a") == f"held by default/tenant ({SHARED}) until it ends"
        await kubelet.remove(pod)
        assert await kubelet.reason(WHOLE, "a", "Healthy") == ""


async def test_a_resource_that_changes_how_it_offers_a_card_keeps_it_back_too(tmp_path: Path) -> None:
    async with running(whole("a", "b"), tmp_path, served=QUICK) as kubelet:
        await kubelet.admit(pod_requesting({WHOLE: 1}, name="g4"))
        await kubelet.daemon.apply([shares("a", "b", resource=WHOLE)])
        assert await kubelet.reason(WHOLE, "a::0") == f"held by default/g4 ({WHOLE}) until it ends"
        assert await kubelet.reason(WHOLE, "b::0", "Healthy") == ""


async def test_shares_of_the_same_kind_may_be_held_beside_each_other(tmp_path: Path) -> None:
    """Two replicas become one: the other tenant is no reason to keep it back."""
    plugin = shares("a")
    async with running(plugin, tmp_path, served=QUICK) as kubelet:
        await kubelet.admit(pod_requesting({SHARED: 2}))
        plugin.lists.publish(plugin.lists.value[:1])
        assert await kubelet.reason(SHARED, "a::1") == "gone: discovery no longer finds it"
        assert await kubelet.reason(SHARED, "a::0", "Healthy") == ""
        await kubelet.daemon.apply([shares("a", kind="halves", resource="example.com/halves")])
        assert "until it ends" in await kubelet.reason("example.com/halves", "a::0")


async def test_a_part_that_a_pod_holds_keeps_the_whole_back_and_the_whole_its_parts(tmp_path: Path) -> None:
    parts = Cards("example.com/part", Device("p0", physical=("card/p0",)), Device("p1", physical=("card/p1",)))
    card = Cards(WHOLE, Device("c", physical=("card",)))
    async with running(parts, tmp_path, served=QUICK) as kubelet:
        pod = await kubelet.admit(pod_requesting({parts.resource: 1}))
        await kubelet.daemon.apply([card])
        assert "until it ends" in await kubelet.reason(WHOLE, "c")
        await kubelet.remove(pod)
        assert await kubelet.allocatable(WHOLE, 1) == 1
        await kubelet.admit(pod_requesting({WHOLE: 1}))
        await kubelet.daemon.apply([parts])
        assert "until it ends" in await kubelet.reason(parts.resource, "p1")


async def test_after_a_restart_with_another_file_what_pods_hold_is_known_by_id_and_by_device_node(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    quick = replace(settings, timeouts=replace(settings.timeouts, holders=0.01))
    async with serving(
        whole("GPU-a"), Cards("example.com/stick", Device("AAA", physical=("/dev/null",))), settings=quick
    ):
        await kubelet.endpoint(WHOLE, count=1)
        await kubelet.endpoint("example.com/stick", count=1)
        pod = await kubelet.kubelet.admit(pod_requesting({WHOLE: 1, "example.com/stick": 1}, name="g4"))
    others = Cards(SHARED, Device("GPU-a::0", physical=("GPU-a",), sharing="x"), Device("b", physical=("/dev/null",)))
    async with serving(others, settings=quick):
        endpoint = await kubelet.endpoint(SHARED, count=2)
        assert not any(device.healthy for device in endpoint.lists[0]), "Unhealthy from the first list on"
        await kubelet.kubelet.remove(pod)
        await kubelet.until(lambda _: all(device.healthy for device in endpoint.devices.values()))


@pytest.fixture
def paths(root: Path) -> KubeletPaths:
    paths = KubeletPaths.under(root)
    paths.device_plugins.mkdir()
    paths.pod_resources_socket.parent.mkdir()
    return paths


def ledger_of(
    paths: KubeletPaths,
    timeouts: Timeouts,
    resend: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.time,
) -> Ledger:
    return Ledger(Settings(kubelet_dir=paths.root, timeouts=timeouts), resend, clock)


SERVED = ServedResource(ServeMode.DEVICE_PLUGIN, "driver.example.com")


def allocate(ledger: Ledger, device_id: str) -> None:
    ledger.begin_allocate(WHOLE, [device_id])
    ledger.end_allocate(WHOLE, [device_id], is_answered=True)


def reasons_of(ledger: Ledger, resource: str, devices: Mapping[str, Device]) -> dict[str, str]:
    return {key: closed.reason for key, closed in ledger.closed(resource, devices).items()}


class Pods:
    def __init__(self, *held: HeldDevice) -> None:
        self.held = held
        self.times = 0

    async def held_devices(self) -> Sequence[HeldDevice]:
        self.times += 1
        return self.held


def listed(ledger: Ledger) -> Inventory:
    inventory = Inventory(SHARED, ledger=ledger)
    ledger.changed.subscribe(inventory.compare_holders)
    inventory.update([Device("a::0", physical=CARD, sharing="x")])
    return inventory


def reason(inventory: Inventory) -> str:
    assert inventory.latest.value is not None
    return inventory.latest.value.devices["a::0"].reason


HELD = HeldDevice(WHOLE, "card-7", "default", "g4", "main")


async def test_pods_that_cannot_be_read_leave_everything_as_it_is(paths: KubeletPaths) -> None:
    ledger = ledger_of(paths, Timeouts(holders=0.01))
    async with serve_held_devices(Pods(HELD), paths.pod_resources_socket):
        await ledger.read()
    inventory = listed(ledger)
    await ledger.read()
    assert reason(inventory) == f"held by default/g4 ({WHOLE}) until it ends"
    async with serve_held_devices(Pods(), paths.pod_resources_socket):
        await ledger.read()
        await inventory.latest.until(lambda _: not reason(inventory))
    await ledger.read()
    await asyncio.sleep(0)
    assert reason(inventory) == ""


async def test_two_sources_that_cannot_be_read_are_logged_once_each_and_again_after_a_recovery(
    paths: KubeletPaths, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = ledger_of(paths, Timeouts())
    async with serve_held_devices(Pods(HELD), paths.pod_resources_socket):
        await ledger.read()
    listed(ledger)
    caplog.clear()
    paths.checkpoint.write_text("{")
    for _ in range(3):
        await ledger.read()
    async with serve_held_devices(Pods(HELD), paths.pod_resources_socket):
        await ledger.read()
    await ledger.read()
    sources = [vars(record)["source"] for record in caplog.records if "source" in vars(record)]
    assert sorted(sources) == ["checkpoint", "pod-resources", "pod-resources"]


async def test_what_the_checkpoint_has_is_held_though_pods_are_not_known_yet(paths: KubeletPaths) -> None:
    entry = PodDevicesEntry("0d3c-uid", "main", WHOLE, {-1: ("card-7",)}, b"\xff")
    paths.checkpoint.write_bytes(checkpoint.encode(Checkpoint((entry,), {WHOLE: ()})))
    resent: list[None] = []
    ledger = ledger_of(paths, Timeouts(), lambda: resent.append(None))
    await ledger.read()
    inventory = listed(ledger)
    assert reason(inventory) == f"held by a pod ({WHOLE}) until it ends"
    async with serve_held_devices(Pods(), paths.pod_resources_socket):
        await ledger.read()
        assert reason(inventory), "a kubelet that has just started knows no pods yet"
        assert resent, "one that has freed the device writes that down after a list"
        paths.checkpoint.unlink()
        await ledger.read()
        await inventory.latest.until(lambda _: not reason(inventory))


async def test_a_late_list_of_a_plugin_that_was_replaced_offers_nothing(paths: KubeletPaths) -> None:
    ledger, card = (
        ledger_of(paths, Timeouts()),
        {"card-7": Device("card-7", physical=CARD)},
    )
    async with serve_held_devices(Pods(HELD), paths.pod_resources_socket):
        await ledger.read()
    ledger.offer(WHOLE, card, SERVED)
    ledger.withdraw(WHOLE)
    ledger.offer(WHOLE, card, SERVED)
    inventory = listed(ledger)
    assert reason(inventory) == f"held by default/g4 ({WHOLE}) until it ends"
    ledger.accept(WHOLE)
    ledger.offer(WHOLE, card, SERVED)
    await inventory.latest.until(lambda _: reason(inventory) == f"held as card-7 of {WHOLE} by default/g4")


async def test_nodes_that_a_container_has_beside_its_device_keep_back_nothing_that_several_may_have(
    paths: KubeletPaths,
) -> None:
    answer = messages.encode_allocations([Allocation(nodes=["/dev/infiniband/uverbs0"])])
    [container] = AllocateResponse.FromString(answer).container_responses
    entry = PodDevicesEntry("0d3c-uid", "main", WHOLE, {0: ("GPU-a",)}, container.SerializeToString())
    paths.checkpoint.write_bytes(checkpoint.encode(Checkpoint((entry,), {WHOLE: ()})))
    ledger = ledger_of(paths, Timeouts())
    async with serve_held_devices(Pods(), paths.pod_resources_socket):
        await ledger.read()
    shared, alone = [Device("hca", physical=("/dev/infiniband/uverbs0",), sharing=kind) for kind in ("several", "")]
    ledger.offer(SHARED, {"hca": shared}, SERVED)
    assert reasons_of(ledger, SHARED, {"hca": shared}) == {}
    ledger.offer(SHARED, {"hca": alone}, SERVED)
    assert reasons_of(ledger, SHARED, {"hca": alone}) == {"hca": f"held by a pod ({WHOLE}) until it ends"}


async def test_an_allocation_counts_before_the_kubelet_lists_its_pod(paths: KubeletPaths) -> None:
    now = 1000.0
    ledger = ledger_of(paths, Timeouts(), clock=lambda: now)
    ledger.offer(WHOLE, {"card-7": Device("card-7", physical=CARD)}, SERVED)
    allocate(ledger, "card-7")
    async with serve_held_devices(Pods(), paths.pod_resources_socket):
        await ledger.read()
        ledger.withdraw(WHOLE)
        inventory = listed(ledger)
        assert reason(inventory) == f"held by a pod ({WHOLE}) until it ends"
        now += 61
        await ledger.read()
        await inventory.latest.until(lambda _: not reason(inventory))


async def test_pods_are_not_read_while_nothing_is_kept_back(paths: KubeletPaths) -> None:
    ledger, pods = (
        ledger_of(paths, Timeouts(holders=0.001)),
        Pods(HELD),
    )
    task = asyncio.create_task(ledger.run())
    try:
        async with serve_held_devices(pods, paths.pod_resources_socket):
            await ledger.read()
            ledger.offer(WHOLE, {"card-7": Device("card-7", physical=CARD)}, SERVED)
            ledger.offer("example.com/other", {"b": Device("b", physical=("card-8",))}, SERVED)
            for _ in range(50):
                await asyncio.sleep(0.001)
            assert pods.times == 1
            inventory = listed(ledger)
            assert reason(inventory) == f"held as card-7 of {WHOLE} by default/g4"
            ledger.withdraw(WHOLE)
            await inventory.latest.until(lambda _: reason(inventory) == f"held by default/g4 ({WHOLE}) until it ends")
            pods.held = ()
            await inventory.latest.until(lambda _: not reason(inventory))
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize("version", ["1.30", "1.36"])  # without and with `Get`
@pytest.mark.parametrize("ending", ["removed", "completed"])
async def test_status_shows_the_device_of_an_ended_pod_as_free(tmp_path: Path, version: str, ending: str) -> None:
    """The kubelet writes that down only after a device list (3.60, 4.31)."""
    settings = KubeletSettings(version=version)
    async with running(Cards("example.com/stick", Device("a")), tmp_path, settings, Settings()) as kubelet:
        pod = await kubelet.admit(pod_requesting({"example.com/stick": 1}, name="g4"))
        ledger = kubelet.daemon.ledger
        await ledger.read()
        assert ledger.latest.value.pods("example.com/stick", "a") == ("default/g4",)
        if ending == "removed":
            await kubelet.remove(pod)
        else:
            kubelet.finish(pod)
        assert not (await ledger.refreshed()).holdings


def test_holders_without_names_are_listed_again_at_a_bounded_rate() -> None:
    now = [100.0]
    unnamed = UnnamedHolders(10.0, lambda: now[0])
    names = frozenset({(WHOLE, "card-7")})
    lists = 0
    while now[0] < 3700.0:
        if unnamed.is_due(names):
            lists += 1
            unnamed.take(names)
        now[0] += 1.0
    assert 8 <= lists <= 16
    assert unnamed.is_due(names | {(WHOLE, "card-8")})
    unnamed.take(names | {(WHOLE, "card-8")})
    assert not unnamed.is_due(names)
    now[0] += 13.0
    assert unnamed.is_due(names)
    assert not unnamed.is_due(frozenset())


async def test_holders_that_list_does_not_name_make_the_kubelet_write_once(paths: KubeletPaths) -> None:
    """It has no init containers (6.6): a device of one stays held."""
    entry = PodDevicesEntry("0d3c-uid", "init", WHOLE, {-1: ("card-7",)}, b"\xff")
    paths.checkpoint.write_bytes(checkpoint.encode(Checkpoint((entry,), {WHOLE: ()})))
    resent: list[None] = []
    ledger, pods = ledger_of(paths, Timeouts(), lambda: resent.append(None)), Pods()
    ledger.offer(WHOLE, {"card-7": Device("card-7")}, SERVED)
    async with serve_held_devices(pods, paths.pod_resources_socket):
        [holding] = (await ledger.refreshed()).holdings
        assert (holding.key.device_id, holding.pod) == ("card-7", "")
        await ledger.refreshed()
    assert (pods.times, len(resent)) == (1, 1)


names = st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=3).map("/".join), min_size=1, max_size=3)


def is_part_of(one: str, other: str) -> bool:
    return one.split("/")[: other.count("/") + 1] == other.split("/")


@given(held=names, offered=names, kinds=st.tuples(st.sampled_from(["", "x", "y"]), st.sampled_from(["", "x"])))
def test_hardware_is_kept_back_if_it_is_held_as_a_whole_or_in_part_in_another_way(
    held: list[str], offered: list[str], kinds: tuple[str, str]
) -> None:
    book, other = Book(), {"other": Device("other", physical=offered, sharing=kinds[1])}
    book.take_checkpoint({}, 1.0)
    book.take_pods({})
    book.offer(WHOLE, {"one": Device("one", physical=held, sharing=kinds[0])}, SERVED)
    assert book.closed(WHOLE, {"one": Device("one")}) == {}
    book.begin_allocate(WHOLE, ["one"])
    book.withdraw(WHOLE)
    book.offer(SHARED, other, SERVED)
    related = any(is_part_of(one, other) or is_part_of(other, one) for one in held for other in offered)
    beside = kinds[0] == kinds[1] != ""
    assert bool(book.closed(SHARED, other)) == (related and not beside)
