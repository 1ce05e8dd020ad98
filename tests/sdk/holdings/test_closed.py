"""Unknown is never free: devices whose offer has changed wait until every source of holdings is accounted for."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.observed_kubelet import ObservedKubelet
from tests.protocol.held_devices import serve_held_devices
from tests.sdk.holdings.test_ledger import HELD, QUICK, SERVED, SHARED, WHOLE, Cards, Pods, paths, shares, whole

from plugwright import Allocation, Device, Settings, serving
from plugwright.attributes import Consumption, CounterSet
from plugwright.errors import PluginError, PodRefused, UnhealthyDevice
from plugwright.protocol import checkpoint
from plugwright.protocol.checkpoint import Checkpoint, PodDevicesEntry
from plugwright.protocol.paths import KubeletPaths
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.daemon_status import report, unready
from plugwright.sdk.holdings.book import Book
from plugwright.sdk.holdings.holding import HoldingSource
from plugwright.sdk.holdings.ledger import Ledger
from plugwright.sdk.holdings.offers import OfferMemory
from plugwright.sdk.holdings.overlaps import Name, Offer
from plugwright.sdk.holdings.records import ClaimRecord, Memory, PodRecord, ServedResource
from plugwright.sdk.serve_settings import ServeMode
from plugwright.testing import pod_requesting, running

__all__ = ["paths"]

GARBAGE = b"{"


@pytest.fixture
def kept(settings: Settings, tmp_path: Path) -> Settings:
    """Quick, with a state directory."""
    return replace(settings, state_dir=tmp_path / "state", timeouts=replace(settings.timeouts, holders=0.01))


async def devices(daemon: Daemon, resource: str) -> Mapping[str, Device]:
    latest = await daemon.resource(resource).inventory.latest.until(lambda snapshot: snapshot is not None)
    assert latest is not None
    return latest.devices


async def until(daemon: Daemon, resource: str, device_id: str, accept: Callable[[Device], bool]) -> None:
    async with asyncio.timeout(60):
        await daemon.resource(resource).inventory.latest.until(
            lambda snapshot: snapshot is not None and accept(snapshot.devices[device_id])
        )


async def stop(kubelet: ObservedKubelet) -> None:
    """As a daemon in a container sees it, which the kubelet's list of prepared claims is not mounted in."""
    await kubelet.stop()
    (kubelet.paths.root / "dra_manager_state").unlink()


class Sources:
    """The kubelet's checkpoint and pod-resources, which are away until `restore`."""

    def __init__(self, kubelet: ObservedKubelet) -> None:
        self._kubelet, self._path = kubelet, kubelet.paths.checkpoint
        self._content = b""

    async def lose(self) -> None:
        self._content = self._path.read_bytes()
        await stop(self._kubelet)
        self._path.write_bytes(GARBAGE)

    async def restore(self) -> None:
        self._path.write_bytes(self._content)
        await self._kubelet.start()


async def held_whole(kubelet: ObservedKubelet, settings: Settings) -> None:
    async with serving(whole("a", "b"), settings=settings):
        await kubelet.endpoint(WHOLE, count=2)
        await kubelet.kubelet.admit(pod_requesting({WHOLE: 1}, name="g4"))


async def test_a_changed_offer_waits_for_unreadable_sources_and_is_decided_again_when_they_return(
    kubelet: ObservedKubelet, kept: Settings
) -> None:
    sources = Sources(kubelet)
    await held_whole(kubelet, kept)
    await sources.lose()
    async with serving(shares("a", "b"), settings=kept) as daemon:
        listed = await devices(daemon, SHARED)
        assert {device.code for device in listed.values()} == {"holders-unknown"}
        [reason] = {device.reason for device in listed.values()}
        assert "cannot read the kubelet's checkpoint since " in reason
        assert "pod-resources since " in reason
        [line] = [line for line in unready(daemon) if "devices wait" in line]
        assert "the kubelet's checkpoint since " in line
        assert "a::0" in report(daemon)["waiting"][SHARED]
        assert not report(daemon)["ready"]
        await sources.restore()
        await until(daemon, SHARED, "b::0", lambda device: device.healthy)
        await until(daemon, SHARED, "a::0", lambda device: f"({WHOLE}) until it ends" in device.reason)
        assert not [line for line in unready(daemon) if "devices wait" in line]
        assert report(daemon)["waiting"] == {}


async def test_an_answer_that_the_kubelet_stores_after_a_restart_closes_its_hardware(
    kubelet: ObservedKubelet, kept: Settings, tmp_path: Path
) -> None:
    """The kubelet stores an answer after those for the other resources of the container (3.45)."""
    slow = Slow("example.com/slow", Device("s"))
    async with serving(slow, settings=replace(kept, state_dir=tmp_path / "other")):
        async with serving(whole("a"), settings=kept):
            await kubelet.endpoint(WHOLE, count=1)
            await kubelet.endpoint(slow.resource, count=1)
            admitting = asyncio.create_task(
                kubelet.kubelet.admit(pod_requesting({WHOLE: 1, slow.resource: 1}, name="g4"))
            )
            await slow.called.wait()
        async with serving(shares("a"), settings=kept) as daemon:
            await kubelet.endpoint(SHARED, count=2)
            await daemon.ledger.refreshed()  # the checkpoint written after that list lacks the answer, too
            slow.go_on.set()
            await admitting
            with pytest.raises(PodRefused):
                await kubelet.kubelet.admit(pod_requesting({SHARED: 1}))
            await until(daemon, SHARED, "a::0", lambda device: f"({WHOLE}) until it ends" in device.reason)


def test_a_changed_offer_is_confirmed_until_a_checkpoint_is_later_than_the_run_before() -> None:
    now = [100.0]
    book = Book(Memory({}, (Offer((WHOLE, "slot-1"), ("a",)),)), clock=lambda: now[0])
    book.take_checkpoint({}, 90.0)
    book.take_claims((), are_complete=True)
    book.settle()
    assert_confirmed(book, {(WHOLE, "slot-1"): (PodRecord("uid", "main"),)})
    book.withdraw(SHARED)
    now[0] = 120.0
    book.take_over()
    assert_confirmed(book, {})


def test_a_resource_that_is_taken_over_leaves_the_doubts_about_those_before() -> None:
    now = [100.0]
    book = Book(Memory(), clock=lambda: now[0])
    book.take_checkpoint({}, 90.0)
    book.take_claims((), are_complete=True)
    book.take_over()
    listed = {"a": Device("a", physical=("GPU-a",))}
    book.offer(WHOLE, listed, ServedResource(ServeMode.DEVICE_PLUGIN, "driver"))
    assert not book.closed(WHOLE, listed)
    now[0] = 110.0
    book.take_over()  # of another resource
    assert book.earlier_run.is_doubtful(WHOLE, listed)
    book.take_checkpoint({}, 120.0)
    assert book.earlier_run.is_doubtful(WHOLE, listed), (
        "another plugin can still delay the kubelet's record of an answer"
    )
    book.take_checkpoint({}, 171.0)
    assert not book.earlier_run.is_doubtful(WHOLE, listed)


def allocate(book: Book, now: list[float], device_id: str) -> None:
    assert not book.refusals(WHOLE, [device_id])
    book.begin_allocate(WHOLE, [device_id])
    now[0] += 0.1
    book.end_allocate(WHOLE, [device_id], is_answered=True)


def test_a_checkpoint_proves_nothing_while_another_plugin_can_delay_the_record_of_an_answer() -> None:
    """The kubelet stores the answers of a container together (3.45), and also writes after each device list (4.31)."""
    now = [100.0]
    book = Book(Memory(), clock=lambda: now[0])
    book.take_claims((), are_complete=True)
    listed = {key: Device(key, physical=(key,)) for key in ("card", "card/half", "other")}
    book.offer(WHOLE, listed, SERVED)
    book.take_checkpoint({}, 100.0)
    assert not book.closed(WHOLE, listed)
    allocate(book, now, "card")
    book.take_checkpoint({}, 120.0)
    assert book.closed(WHOLE, listed).keys() == {"card/half"}
    now[0] = 130.0
    allocate(book, now, "other")  # for another container: the kubelet admits one after the other
    book.take_checkpoint({(WHOLE, "other"): (PodRecord("uid", "main"),)}, 132.0)
    assert not book.closed(WHOLE, listed)
    allocate(book, now, "card")
    now[0] += 1.0
    book.take_pods({(WHOLE, "card"): ("default", "g4")}, now[0] - 2.0)  # of before it was answered
    book.take_checkpoint({}, now[0] + 1.0)
    book.take_pods({})
    assert book.closed(WHOLE, listed).keys() == {"card/half"}
    book.take_pods({(WHOLE, "card"): ("default", "g4")}, now[0] - 0.1)
    book.take_pods({})
    book.take_checkpoint({}, now[0] + 1.0)
    assert not book.closed(WHOLE, listed), "its container had all its devices"
    allocate(book, now, "card")
    book.take_checkpoint({}, now[0] + 61)
    assert not book.closed(WHOLE, listed), "every call has ended by then"


@pytest.mark.parametrize("api", [ServeMode.DEVICE_PLUGIN, ServeMode.DRA])
def test_a_card_once_held_as_a_share_is_held_whole_when_it_is_given_out_whole(api: ServeMode) -> None:
    """The id stays: the first share of a card has that of the card."""
    now, name = [100.0], (WHOLE, "card")
    book = Book(Memory(), clock=lambda: now[0])
    share, card = Device("card", physical=("GPU-a",), sharing="x"), Device("card", physical=("GPU-a",))
    book.take_claims((), are_complete=True)
    book.take_pods({})
    for listed in (share, card):
        book.take_checkpoint({name: (PodRecord("uid", "main"),)}, now[0])
        book.offer(WHOLE, {"card": listed}, ServedResource(api, "driver"))
        assert not book.closed(WHOLE, {"card": listed})
        book.settle()
    now[0] += 10
    book.take_checkpoint({}, now[0])
    if api is ServeMode.DRA:
        book.take_claims([ClaimRecord("driver", "card", "card", uid="u")], are_complete=True)
    else:
        allocate(book, now, "card")
    book.offer(SHARED, {"card::1": Device("card::1", physical=("GPU-a",), sharing="x")}, SERVED)
    assert book.refusals(SHARED, ["card::1"])
    book.settle()
    assert book.memory is not None
    assert [offer.sharing for offer in book.memory.offers if offer.name == name] == [""]


def test_a_node_with_claims_alone_forgets_earlier_offers_although_no_checkpoint_follows() -> None:
    now = [100.0]
    new = Device("new", physical=("GPU-a",))
    memory = Memory({WHOLE: (ServeMode.DRA, "driver")}, (Offer((WHOLE, "old"), ("GPU-a",)),))
    book = Book(memory, clock=lambda: now[0])
    book.take_claims((), are_complete=True)
    book.take_checkpoint({}, 50.0)
    book.offer(WHOLE, {"new": new}, ServedResource(ServeMode.DRA, "driver"))
    book.closed(WHOLE, {"new": new})
    assert remembered(book) == {"old", "new"}
    now[0] = 161.0
    assert remembered(book) == {"new"}


def remembered(book: Book) -> set[str]:
    book.settle()
    assert book.memory is not None
    return {offer.name[1] for offer in book.memory.offers}


def assert_confirmed(book: Book, stored: Mapping[Name, tuple[PodRecord, ...]]) -> None:
    """The next checkpoint, which contains `stored`, decides about a share of the card."""
    listed = {"a::0": Device("a::0", physical=("a",), sharing="x")}
    book.take_checkpoint({}, 95.0)
    book.offer(SHARED, listed, ServedResource(ServeMode.DEVICE_PLUGIN, "driver"))
    assert not book.closed(SHARED, listed)
    assert book.earlier_run.is_doubtful(SHARED, listed)
    book.fail(HoldingSource.CHECKPOINT, "unreadable")
    assert "unreadable" in book.conflicts(SHARED, listed, book.offers)["a::0"]
    book.take_checkpoint(stored, 190.0)
    book.settle()
    assert not book.earlier_run.is_doubtful(SHARED, listed)
    assert len(book.conflicts(SHARED, listed, book.offers)) == len(stored)


async def test_an_offer_that_cannot_be_recorded_is_closed_while_an_earlier_one_is_on_disk(
    kubelet: ObservedKubelet, kept: Settings
) -> None:
    """The next run would take a card held as a share for one that is held whole."""
    async with serving(whole("a", "b"), settings=kept) as daemon:
        await kubelet.endpoint(WHOLE, count=2)
        ledger, earlier = daemon.ledger, Offer((WHOLE, "a"), ("a", "pci-a"))
        ledger.memory.outdated = Memory(offers=(earlier,))
        ledger.changed.notify()
        await until(daemon, WHOLE, "b", lambda device: "cannot be written" in device.reason)
        assert (await devices(daemon, WHOLE))["a"].healthy
        assert "b: its offer cannot be written" in report(daemon)["waiting"][WHOLE]
        assert ledger.must_confirm(WHOLE, ["a"])
        assert list(await ledger.confirm(WHOLE, ["a", "b"])) == ["b"]
        ledger.memory.outdated = None
        ledger.changed.notify()
        await until(daemon, WHOLE, "b", lambda device: device.healthy)


async def test_offers_on_disk_are_outdated_while_later_ones_cannot_be_written(kept: Settings) -> None:
    memory, (earlier, later) = OfferMemory(kept), (Memory(), Memory(claimed=((WHOLE, "a"),)))
    assert memory.directory is not None
    path = memory.directory / "plugwright.json"
    assert await memory.write(earlier)
    path.unlink()
    path.mkdir()
    assert not await memory.write(later)
    outdated = [memory.outdated]
    assert await memory.write(earlier)  # nothing is to be written
    outdated.append(memory.outdated)
    assert outdated == [earlier, None]
    assert not await memory.write(later)
    path.rmdir()
    assert await memory.write(later)
    assert memory.outdated is None


async def test_an_unchanged_offer_is_open_whatever_can_be_read(kubelet: ObservedKubelet, kept: Settings) -> None:
    await held_whole(kubelet, kept)
    await Sources(kubelet).lose()
    async with serving(whole("a", "b"), settings=kept) as daemon:
        assert all(device.healthy for device in (await devices(daemon, WHOLE)).values())


async def test_an_offer_that_returns_after_it_waited_in_vain_is_open(kubelet: ObservedKubelet, kept: Settings) -> None:
    """A rollback: the changed offer was never open, so the memory is still that of the first."""
    await held_whole(kubelet, kept)
    await Sources(kubelet).lose()
    async with serving(shares("a", "b"), settings=kept) as daemon:
        assert not any(device.healthy for device in (await devices(daemon, SHARED)).values())
    async with serving(whole("a", "b"), settings=kept) as daemon:
        assert all(device.healthy for device in (await devices(daemon, WHOLE)).values())


@pytest.mark.parametrize("loss", ["removed", "damaged"])
async def test_a_lost_memory_makes_devices_wait(kubelet: ObservedKubelet, kept: Settings, loss: str) -> None:
    sources = Sources(kubelet)
    await held_whole(kubelet, kept)
    assert kept.state_dir is not None
    memory = kept.state_dir / "offers" / "plugwright.json"
    memory.unlink() if loss == "removed" else memory.write_bytes(GARBAGE)
    await sources.lose()
    async with serving(whole("a", "b"), settings=kept) as daemon:
        assert {device.code for device in (await devices(daemon, WHOLE)).values()} == {"holders-unknown"}
        await sources.restore()
        for device_id in ("a", "b"):
            await until(daemon, WHOLE, device_id, lambda device: device.healthy)


class Named(Cards):
    """Names its hardware to containers."""

    def __init__(self, *devices: Device, by_cdi: bool) -> None:
        super().__init__(WHOLE, *devices)
        self._by_cdi = by_cdi

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        names = [device.physical[0] for device in devices]
        if self._by_cdi:
            return Allocation(cdi=[f"example.com/gpu={name}" for name in names])
        return Allocation(env={"VISIBLE": ",".join(names)})


@pytest.mark.parametrize("by_cdi", [False, True], ids=["variable", "CDI device"])
async def test_after_a_lost_memory_hardware_is_known_by_what_its_container_was_given(
    kubelet: ObservedKubelet, kept: Settings, *, by_cdi: bool
) -> None:
    async with serving(Named(Device("0", physical=("GPU-a",)), by_cdi=by_cdi), settings=kept):
        await kubelet.endpoint(WHOLE, count=1)
        await kubelet.kubelet.admit(pod_requesting({WHOLE: 1}, name="g4"))
    assert kept.state_dir is not None
    (kept.state_dir / "offers" / "plugwright.json").unlink()
    for _ in range(2):  # the next start knows it as well
        async with serving(whole("GPU-a", "GPU-b"), settings=kept) as daemon:
            listed = await devices(daemon, WHOLE)
            assert (listed["GPU-a"].code, listed["GPU-b"].healthy) == ("held", True)


async def test_after_a_lost_memory_a_device_that_nothing_identifies_may_be_any_of_its_resource(
    kubelet: ObservedKubelet, kept: Settings
) -> None:
    async with serving(Cards(WHOLE, Device("card", physical=("GPU-a",))), settings=kept):
        await kubelet.endpoint(WHOLE, count=1)
        pod = await kubelet.kubelet.admit(pod_requesting({WHOLE: 1}, name="g4"))
    assert kept.state_dir is not None
    (kept.state_dir / "offers" / "plugwright.json").unlink()
    halves = [Device(f"half-{number}", physical=(f"GPU-{card}",)) for number, card in enumerate("ab")]
    for _ in range(2):  # the next start knows it as well
        async with serving(Cards(WHOLE, *halves), shares("x"), settings=kept) as daemon:
            for device_id in ("half-0", "half-1"):
                assert (await devices(daemon, WHOLE))[device_id].code == "held"
            assert all(device.healthy for device in (await devices(daemon, SHARED)).values())  # of another resource
    async with serving(Cards(WHOLE, *halves), settings=kept) as daemon:
        await kubelet.endpoint(WHOLE, count=3)
        await kubelet.kubelet.remove(pod)
        for device_id in ("half-0", "half-1"):
            await until(daemon, WHOLE, device_id, lambda device: device.healthy)


class Unidentified(Cards):
    """Gives containers a variable that does not tell the hardware."""

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        return Allocation(env={"KIND": "whole"})


@pytest.mark.parametrize("after", [WHOLE, SHARED], ids=["same name", "renamed"])
async def test_after_a_lost_memory_a_variable_does_not_identify_hardware_by_itself(
    kubelet: ObservedKubelet, kept: Settings, after: str
) -> None:
    async with serving(Unidentified(WHOLE, Device("card", physical=("GPU-a",))), settings=kept):
        await kubelet.endpoint(WHOLE, count=1)
        pod = await kubelet.kubelet.admit(pod_requesting({WHOLE: 1}, name="g4"))
    assert kept.state_dir is not None
    (kept.state_dir / "offers" / "plugwright.json").unlink()
    shared = [Device(f"half-{number}", physical=("GPU-a",), sharing="halves") for number in (0, 1)]
    for _ in range(2):  # the next start knows it as well
        async with serving(Unidentified(after, *shared), settings=kept) as daemon:
            for _ in range(2):
                listed = await devices(daemon, after)
                assert (listed["half-0"].code, listed["half-1"].code) == ("held", "held")
                await daemon.ledger.read()
    async with serving(Unidentified(after, *shared), settings=kept) as daemon:
        await kubelet.endpoint(after, count=3 if after == WHOLE else 2)  # with the held one
        await kubelet.kubelet.remove(pod)
        await until(daemon, after, "half-0", lambda device: device.healthy)


async def test_after_a_lost_memory_the_other_shares_of_a_card_are_open(
    kubelet: ObservedKubelet, kept: Settings
) -> None:
    listed = [Device(f"a::{number}", physical=("GPU-a",), sharing="halves") for number in (0, 1)]
    async with serving(Named(*listed, by_cdi=False), settings=kept):
        await kubelet.endpoint(WHOLE, count=2)
        await kubelet.kubelet.admit(pod_requesting({WHOLE: 1}, name="g4"))
    assert kept.state_dir is not None
    (kept.state_dir / "offers" / "plugwright.json").unlink()
    async with serving(Named(*listed, by_cdi=False), settings=kept) as daemon:
        assert all(device.healthy for device in (await devices(daemon, WHOLE)).values())


async def test_a_recorded_device_stays_healthy_while_the_others_wait(kubelet: ObservedKubelet, kept: Settings) -> None:
    """After a reboot the kubelet fails pods whose recorded devices are not Healthy."""
    await held_whole(kubelet, kept)
    assert kept.state_dir is not None
    (kept.state_dir / "offers" / "plugwright.json").unlink()
    await stop(kubelet)
    async with serving(whole("a", "b"), settings=kept) as daemon:
        listed = await devices(daemon, WHOLE)
        assert (listed["a"].healthy, listed["b"].code) == (True, "holders-unknown")


async def test_a_checkpoint_alone_does_not_account_for_claims(kubelet: ObservedKubelet, kept: Settings) -> None:
    await held_whole(kubelet, kept)
    await stop(kubelet)
    async with serving(shares("b"), settings=kept) as daemon:
        [reason] = {device.reason for device in (await devices(daemon, SHARED)).values()}
        assert "pod-resources since " in reason
        assert "checkpoint" not in reason


async def test_no_checkpoint_in_a_readable_directory_means_that_no_pod_holds_a_device(
    kubelet: ObservedKubelet, kept: Settings
) -> None:
    async with serving(shares("a"), settings=kept) as daemon:
        assert all(device.healthy for device in (await devices(daemon, SHARED)).values())


def half(number: int) -> Device:
    taken = [Consumption(CARD, {"halves": 1})]
    return Device(f"half-{number}", physical=(f"card0/{number}",), consumes=taken)


CARD = CounterSet("card0", {"halves": 2})
ALL = Device("whole", physical=("card0",), consumes=[Consumption(CARD, {"halves": 2})])
RESOURCE = "example.com/card"


async def test_a_card_and_its_halves_in_one_list_are_never_held_together(tmp_path: Path) -> None:
    plugin = Cards(RESOURCE, ALL, half(0), half(1))
    async with running(plugin, tmp_path, served=QUICK) as kubelet:
        first = await kubelet.admit(pod_requesting({RESOURCE: 1}, name="a"))
        assert await kubelet.reason(RESOURCE, "whole") != ""
        await until(kubelet.daemon, RESOURCE, "whole", lambda device: device.reason == "held as half-0 by default/a")
        service = kubelet.daemon.resource(RESOURCE).service
        with pytest.raises(UnhealthyDevice, match="held as half-0 by"):
            await service.allocate([["whole"]])
        second = await kubelet.admit(pod_requesting({RESOURCE: 1}, name="b"))
        await kubelet.daemon.ledger.read()  # a pod that ends before that may still be about to start
        with pytest.raises(PodRefused):
            await kubelet.admit(pod_requesting({RESOURCE: 1}, name="c"))
        for pod in (first, second):
            await kubelet.remove(pod)
        await until(kubelet.daemon, RESOURCE, "whole", lambda device: device.healthy)


async def test_one_request_never_gets_a_card_and_its_half(tmp_path: Path) -> None:
    async with running(Cards(RESOURCE, ALL, half(0)), tmp_path, served=QUICK) as kubelet:
        service = kubelet.daemon.resource(RESOURCE).service
        for containers in ([["whole", "half-0"]], [["whole"], ["half-0"]]):
            with pytest.raises(UnhealthyDevice, match="by this very request"):
                await service.allocate(containers)
        await service.allocate([["half-0"]])


async def test_counters_keep_devices_back_without_names_of_hardware(tmp_path: Path) -> None:
    devices = [Device(f"d{n}", consumes=[Consumption(CARD, {"halves": n})]) for n in (1, 2)]
    async with running(Cards(RESOURCE, *devices), tmp_path, served=QUICK) as kubelet:
        await kubelet.admit(pod_requesting({RESOURCE: 1}, name="a"))
        assert "held as d1" in await kubelet.reason(RESOURCE, "d2")


async def test_whole_and_parts_of_two_resources_are_never_held_together(tmp_path: Path) -> None:
    parts = Cards("example.com/part", Device("p0", physical=("card/p0",)), Device("p1", physical=("card/p1",)))
    card = Cards(WHOLE, Device("c", physical=("card",)))
    async with running([parts, card], tmp_path, served=QUICK) as kubelet:
        pod = await kubelet.admit(pod_requesting({WHOLE: 1}, name="a"))
        for device_id in ("p0", "p1"):
            assert f"held as c of {WHOLE}" in await kubelet.reason(parts.resource, device_id)
        await kubelet.remove(pod)
        await until(kubelet.daemon, parts.resource, "p1", lambda device: device.healthy)


async def test_a_list_that_stays_after_a_reload_never_gives_out_a_card_and_its_half(tmp_path: Path) -> None:
    async with running(Cards(RESOURCE, ALL, half(0)), tmp_path, served=QUICK) as kubelet:
        silent = Silent(RESOURCE)
        silent.serve = kubelet.daemon.resource(RESOURCE).service.plugin.serve
        await kubelet.daemon.apply([silent])
        await kubelet.admit(pod_requesting({RESOURCE: 1}, name="a"))
        await until(kubelet.daemon, RESOURCE, "whole", lambda device: device.reason == "held as half-0 by default/a")
        with pytest.raises(PodRefused):
            await kubelet.admit(pod_requesting({RESOURCE: 1}, name="b"))


class Silent(Cards):
    """Does not find out which devices there are."""

    async def discover(self) -> AsyncIterator[Sequence[Device]]:
        await asyncio.Event().wait()
        yield []


async def test_a_failed_allocate_keeps_nothing_back(tmp_path: Path) -> None:
    plugin = Failing(RESOURCE, ALL, half(0))
    async with running(plugin, tmp_path, served=QUICK) as kubelet:
        with pytest.raises(PodRefused):
            await kubelet.admit(pod_requesting({RESOURCE: 1}))
        await until(kubelet.daemon, RESOURCE, "whole", lambda device: device.healthy)


class Failing(Cards):
    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        raise PluginError("broken")


async def test_a_device_whose_allocate_has_not_returned_is_refused(tmp_path: Path) -> None:
    plugin = Slow(RESOURCE, ALL)
    async with running(plugin, tmp_path, served=QUICK) as kubelet:
        service = kubelet.daemon.resource(RESOURCE).service
        first = asyncio.create_task(service.allocate([["whole"]]))
        await plugin.called.wait()
        with pytest.raises(UnhealthyDevice, match="its previous Allocate has not returned"):
            await service.allocate([["whole"]])
        plugin.go_on.set()
        await first
        await service.allocate([["whole"]])


class Slow(Cards):
    def __init__(self, resource: str, *devices: Device) -> None:
        super().__init__(resource, *devices)
        self.called, self.go_on = asyncio.Event(), asyncio.Event()

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        self.called.set()
        await self.go_on.wait()
        return Allocation()


async def test_status_never_lists_pods_while_an_allocate_is_open(paths: KubeletPaths) -> None:
    entry = PodDevicesEntry("0d3c-uid", "main", WHOLE, {-1: ("card-7",)}, b"")
    paths.checkpoint.write_bytes(checkpoint.encode(Checkpoint((entry,), {WHOLE: ()})))
    ledger, pods = Ledger(Settings(kubelet_dir=paths.root)), Pods(HELD)
    async with serve_held_devices(pods, paths.pod_resources_socket):
        ledger.allocating.begin()
        holdings = await ledger.refreshed()
        assert (pods.times, holdings.pods(WHOLE, "card-7")) == (0, ())
        assert "allocates devices" in holdings.unknown[HoldingSource.POD_RESOURCES].reason
        waiting = asyncio.create_task(ledger.list_pods())
        await asyncio.sleep(0)
        ledger.allocating.end()
        await waiting
        assert (pods.times, ledger.latest.value.pods(WHOLE, "card-7")) == (1, ())
        await ledger.read()
        assert ledger.latest.value.pods(WHOLE, "card-7") == ("default/g4",)
