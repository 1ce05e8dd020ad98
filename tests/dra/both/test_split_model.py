"""Whatever happens in whatever order, no device is offered or held twice, and every move ends when its holders do.

The split is real, with its file; around it are models of a kubelet that reads lists late, of a scheduler whose
allocations take their time, and of an API server. Every step is the choice of hypothesis.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace
from tests import removal
from tests.dra.both.split_actors import DRIVER, NODE, Cluster, Prepared, Tapes, both

from plugwright import Device, Settings
from plugwright.dra.both.holders import ClaimHolders, HolderSources, PodHolders
from plugwright.dra.both.move_settings import MoveSettings
from plugwright.dra.both.split import DeviceSplit
from plugwright.dra.both.split_file import SplitFile
from plugwright.dra.device_placement import DeviceState
from plugwright.errors import HoldersUnknown, PlugwrightError
from plugwright.sdk.holdings.ledger import Ledger
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.plugin_calls import StallDetector
from plugwright.sdk.resource_runtime import ResourceRuntime
from plugwright.sdk.serve_settings import ResourceDriver, ServeMode, ServeSettings
from plugwright.system.inotify import Directory

T = TypeVar("T")
IDS = ("st0", "st1", "st2")
SETTINGS = MoveSettings(in_flight=30, interval=10, longest=60, asked=120, arrival=0, readmission=60, stored=5)
some_device = st.sampled_from(IDS)
some_side = st.sampled_from([ServeMode.DRA, ServeMode.DEVICE_PLUGIN])


class World:
    """What outlives the daemon: the kubelet, the scheduler, the API server, the clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.seen: dict[str, bool] = {}  # the health of devices as the kubelet knows it
        self.answered: set[str] = set()  # allocations that the kubelet has yet to store
        self.pods: set[str] = set()  # devices that pods hold
        self.stored: set[str] = set()  # the checkpoint, which may have ended pods
        self.readable = True
        self.cluster, self.prepared = Cluster(page=100), Prepared()
        self.choices: dict[str, float] = {}  # devices that the scheduler has chosen and not written, and when

    def clock(self) -> float:
        return self.now

    def settle_kubelet(self, inventory: Inventory) -> None:
        """The kubelet reads the list, stores what it was answered, and writes its checkpoint (4.31)."""
        snapshot = inventory.latest.value
        assert snapshot is not None
        self.seen = {key: listed(snapshot, key) for key in snapshot.devices}
        self.cluster.allocatable = sum(self.seen.values())
        self.pods |= self.answered
        self.answered.clear()
        self.stored = set(self.pods)


def listed(snapshot: Any, device_id: str) -> bool:
    device = snapshot.listed(device_id)
    return device is not None and device.healthy


class ModelHolders(PodHolders):
    """Reads the model. To have the checkpoint rewritten takes the kubelet a while, in which it reads the list."""

    def __init__(self, runtime: ResourceRuntime, world: World) -> None:
        super().__init__(runtime, SETTINGS.stored, world.clock)
        self._world, self._inventory = world, runtime.inventory

    async def pods(self) -> dict[str, str]:
        if not self._world.readable:
            raise HoldersUnknown("pod-resources cannot be read")
        return dict.fromkeys(self._world.pods, "default/pod")

    async def stored(self) -> frozenset[str]:
        if not self._world.readable:
            raise HoldersUnknown("the checkpoint cannot be read")
        return frozenset(self._world.stored)

    async def of(self, candidates: Any) -> dict[str, str]:
        pods = await self.pods()
        self._world.settle_kubelet(self._inventory)
        held = {
            **dict.fromkeys(await self.stored(), "default/stored"),
            **pods,
            **dict.fromkeys(self._just_allocated(), ""),
        }
        return {key: held[key] or "a pod" for key in candidates if key in held}


class Process:
    """The daemon: it can be killed at any time."""

    def __init__(self, world: World, directory: Path, serve: ServeSettings) -> None:
        plugin = Tapes(*(Device(key) for key in IDS), serve=serve)
        ledger = Ledger(Settings(kubelet_dir=directory))
        self.stalls = StallDetector(10.0)
        self.runtime = ResourceRuntime(plugin, Settings(), Directory(directory), self.stalls, ledger, _no_driver)
        self.runtime.inventory._elapsed = world.clock
        claims = ClaimHolders(world.cluster, DRIVER, NODE)
        sources = HolderSources(ModelHolders(self.runtime, world), claims, world.prepared)
        file, settings = SplitFile(directory / "split.json", directory / "boot"), replace(SETTINGS, clock=world.clock)
        self.split = DeviceSplit(self.runtime, file, sources, settings)
        self.runtime.inventory.update([Device(key) for key in IDS])

    async def round(self) -> None:
        await self.split.round()

    def end(self) -> None:
        self.split.close()
        self.stalls.close()


def _no_driver(runtime: ResourceRuntime) -> ResourceDriver:
    return None  # type: ignore[return-value]


class Split(RuleBasedStateMachine):
    keep_free = 0

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.folder = TemporaryDirectory(dir="/dev/shm")  # every step syncs a file
        self.directory = Path(self.folder.name)
        (self.directory / "boot").write_text("boot 0")
        self.world = World()
        self.claims = 0
        self.start()
        self.look()

    def do(self, step: Coroutine[Any, Any, T]) -> T:
        return self.loop.run(step)

    def start(self) -> None:
        async def begin() -> Process:
            return Process(self.world, self.directory, both(keep_free=self.keep_free))

        self.process = self.do(begin())

    @property
    def split(self) -> DeviceSplit:
        return self.process.split

    @property
    def inventory(self) -> Inventory:
        return self.process.runtime.inventory

    @rule()
    def look(self) -> None:
        self.do(self.process.round())

    @rule(seconds=st.sampled_from([1.0, 12.0, 31.0, 130.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds
        # The scheduler writes what it has chosen within the time that is allowed for.
        for key, when in list(self.world.choices.items()):
            if when + SETTINGS.in_flight <= self.world.now:
                self.write_allocation(key)

    @rule()
    def kubelet_reads_the_list(self) -> None:
        self.world.settle_kubelet(self.inventory)

    @rule(key=some_device)
    def kubelet_calls_allocate(self, key: str) -> None:
        world = self.world
        if world.seen.get(key) and key not in world.pods | world.answered:
            try:
                self.do(self.process.runtime.service.allocate([[key]]))
            except PlugwrightError:
                return
            world.answered.add(key)

    @rule(key=some_device, stored=st.booleans())
    def pod_comes(self, key: str, stored: bool) -> None:
        self.kubelet_reads_the_list()
        self.kubelet_calls_allocate(key)
        if stored:
            self.kubelet_reads_the_list()

    @rule(key=some_device)
    def claim_comes(self, key: str) -> None:
        """At once for a device in a slice, or late for one that has moved since."""
        self.scheduler_ignores_everything(key)
        for claim, devices in sorted(self.world.cluster.claims.items()):
            if devices == (key,) and not self.prepare(claim):
                self.look()
                self.prepare(claim)

    @rule(key=some_device, to=some_side, waited=st.booleans())
    def device_moves(self, key: str, to: ServeMode, waited: bool) -> None:
        self.look()
        self.operator_moves(key, to)
        for _ in range(3):
            self.look()
            self.publisher_writes()
            self.publisher_hears()
            if waited:
                self.time_passes(31.0)

    @rule(key=some_device)
    def pod_ends(self, key: str) -> None:
        self.world.pods.discard(key)

    @rule(key=some_device)
    def scheduler_chooses(self, key: str) -> None:
        world = self.world
        allocated = {device for devices in world.cluster.claims.values() for device in devices}
        if world.cluster.slices.value.get(key) is False and key not in allocated and key not in world.choices:
            world.choices[key] = world.now

    @rule(key=some_device)
    def scheduler_writes(self, key: str) -> None:
        if key in self.world.choices:
            self.write_allocation(key)

    @rule(key=some_device)
    def scheduler_ignores_everything(self, key: str) -> None:
        """A claim for any device, as by a scheduler that has not seen a taint or tolerates it."""
        allocated = {device for devices in self.world.cluster.claims.values() for device in devices}
        if key not in allocated and key not in self.world.choices:
            self.write_allocation(key)

    def write_allocation(self, key: str) -> None:
        self.world.choices.pop(key, None)
        self.claims += 1
        self.world.cluster.claims[f"default/c{self.claims}"] = (key,)

    @precondition(lambda self: self.world.cluster.claims)
    @rule(data=st.data())
    def kubelet_prepares(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(sorted(self.world.cluster.claims)))
        self.prepare(claim)

    def prepare(self, claim: str) -> bool:
        (key,) = self.world.cluster.claims[claim]
        self.do(self.split.arriving([key]))
        if self.split.refusal(key) or self.world.prepared.held().get(key, [claim]) != [claim]:
            return False
        self.world.prepared.add(claim, [key])
        return True

    @precondition(lambda self: self.world.cluster.claims)
    @rule(data=st.data(), unprepared=st.booleans())
    def claim_ends(self, data: st.DataObject, unprepared: bool) -> None:
        claim = data.draw(st.sampled_from(sorted(self.world.cluster.claims)))
        if unprepared or claim not in self.world.prepared.claims:
            self.world.prepared.remove(claim)
            del self.world.cluster.claims[claim]
        else:
            self.world.prepared.remove(claim)  # its pod is gone, the claim is not

    @rule()
    def publisher_writes(self) -> None:
        if not self.world.cluster.away and self.split.placements.value:
            taints = self.split.taints()
            self.world.cluster.slices.publish({key: key in taints for key in sorted(self.split.in_slices({}) or ())})

    @rule()
    def publisher_hears(self) -> None:
        if not self.world.cluster.away:
            self.split.confirm(self.world.cluster.slices.value)

    @rule(key=some_device, to=some_side)
    def operator_moves(self, key: str, to: ServeMode) -> None:
        if self.split.is_deciding:
            self.do(self.split.move(key, to))

    @rule(to=some_side)
    def operator_hands_over(self, to: ServeMode) -> None:
        if self.split.is_deciding:
            self.do(self.split.hand_over(to))

    @rule(pods=st.booleans(), away=st.booleans())
    def sources_change(self, pods: bool, away: bool) -> None:
        self.world.readable, self.world.cluster.away = pods, away

    @rule()
    def daemon_is_killed(self) -> None:
        self.process.end()
        self.start()

    @rule()
    def node_reboots(self) -> None:
        """The pods of plugins are admitted again with what the checkpoint has; those of claims are prepared again."""
        self.process.end()
        self.claims += 1
        (self.directory / "boot").write_text(f"boot {self.claims}")
        self.world.answered.clear()
        self.world.pods = set(self.world.stored) & self.world.pods
        self.world.seen = {}
        self.start()

    @invariant()
    def nothing_is_offered_twice(self) -> None:
        snapshot = self.inventory.latest.value
        slices = self.world.cluster.slices.value
        both = [key for key in IDS if snapshot is not None and listed(snapshot, key) and slices.get(key) is False]
        assert not both, (both, self.split.placements.value)

    @invariant()
    def nothing_is_held_twice(self) -> None:
        held = {device for devices in self.world.prepared.claims.values() for device in devices}
        both = held & (self.world.pods | self.world.answered)
        assert not both, (both, self.split.placements.value)

    def teardown(self) -> None:
        try:
            self.everything_ends()
        finally:
            self.process.end()
            self.loop.close()
            removal.remove(self.folder)

    def everything_ends(self) -> None:
        """Then every device gets where it is to be."""
        world = self.world
        world.readable, world.cluster.away = True, False
        for _ in range(12):
            world.settle_kubelet(self.inventory)
            world.pods.clear()
            world.prepared.claims.clear()
            world.cluster.claims.clear()
            world.choices.clear()
            world.prepared.latest.publish(0)
            world.now += 130
            self.look()
            self.publisher_writes()
            self.publisher_hears()
            self.nothing_is_offered_twice()
        placements: Mapping[str, Any] = self.split.placements.value
        assert all(placement.state.offered_by is placement.target for placement in placements.values()), placements
        assert set(placements) == set(IDS)


class BalancedSplit(Split):
    keep_free = 1


TestSplit: Callable[..., object] = Split.TestCase
TestBalancedSplit: Callable[..., object] = BalancedSplit.TestCase
Split.TestCase.settings = hypothesis_settings(max_examples=40, stateful_step_count=40, deadline=None)
BalancedSplit.TestCase.settings = hypothesis_settings(max_examples=20, stateful_step_count=40, deadline=None)


@contextmanager
def sequence(machine: Callable[[], Split]) -> Iterator[Split]:
    """One that the search has found: the promises are checked by hand between its steps."""
    split = machine()
    try:
        yield split
        split.nothing_is_offered_twice()
        split.nothing_is_held_twice()
    finally:
        split.teardown()


def test_a_pod_is_refused_a_claimed_device_before_a_restarted_daemon_knows_its_split() -> None:
    with sequence(Split) as split:
        split.claim_comes("st0")
        split.daemon_is_killed()
        split.pod_comes("st0", stored=False)


def test_slices_that_are_read_before_the_split_is_known_are_not_taken_for_empty() -> None:
    with sequence(BalancedSplit) as split:
        split.device_moves("st0", ServeMode.DRA, waited=True)
        split.operator_moves("st0", ServeMode.DEVICE_PLUGIN)
        split.daemon_is_killed()
        split.publisher_hears()
        split.look()
        split.time_passes(31.0)
        split.look()


def test_a_daemon_that_followed_another_knows_the_slices_when_it_decides() -> None:
    with sequence(Split) as split:
        split.device_moves("st0", ServeMode.DRA, waited=True)
        deciding = split.process
        split.start()  # follows, since the other has the lock
        for _ in range(2):
            split.look()
            split.publisher_writes()
            split.publisher_hears()
        following, split.process = split.process, deciding
        split.operator_moves("st0", ServeMode.DEVICE_PLUGIN)
        split.process = following
        split.look()
        deciding.end()
        split.look()
        split.time_passes(31.0)
        split.look()
        # Nothing was written: the scheduler may still choose it.
        assert split.split.placements.value["st0"].state is DeviceState.TAINTED
