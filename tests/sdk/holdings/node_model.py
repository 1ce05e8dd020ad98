"""A node as the ledger's decisions see it: a kubelet, pods, claims, files that get lost, a daemon that gets killed.

`search` makes random steps and returns how a physical device came to have two exclusive holders, or None.
"""

import random
from collections.abc import Callable, Sequence

import msgspec

from plugwright.attributes import Consumption, CounterSet
from plugwright.model import Device
from plugwright.sdk.holdings.book import Book
from plugwright.sdk.holdings.holding import HoldingSource
from plugwright.sdk.holdings.overlaps import Name
from plugwright.sdk.holdings.records import ClaimRecord, Memory, PodRecord, ServedResource
from plugwright.sdk.serve_settings import ServeMode

__all__ = ["Rules", "search"]

DRIVER = "card.example.com"
HALVES = CounterSet("card-a", {"halves": 2})
A, B = "example.com/card", "example.com/other"
WHOLE_A = Device("GPU-a", physical=("GPU-a",), consumes=[Consumption(HALVES, {"halves": 2})])
# Their ids tell the hardware: after the memory of offers is lost, nothing else does.
HALF = [Device(f"GPU-a/{n}", physical=(f"GPU-a/{n}",), consumes=[Consumption(HALVES, {"halves": 1})]) for n in (0, 1)]
WHOLE_B = Device("GPU-b", physical=("GPU-b",))
SHARES = [Device(f"GPU-b::{n}", physical=("GPU-b",), sharing="x") for n in (0, 1)]
PLUGIN, DRA = ServeMode.DEVICE_PLUGIN, ServeMode.DRA
CONFIGS: Sequence[dict[str, tuple[ServeMode, list[Device]]]] = (
    {A: (PLUGIN, [WHOLE_A, WHOLE_B])},
    {A: (PLUGIN, [*HALF, *SHARES])},
    {A: (PLUGIN, [WHOLE_A, *HALF])},
    {A: (DRA, [WHOLE_A, WHOLE_B])},
    {B: (PLUGIN, [WHOLE_A, *SHARES])},
    {A: (PLUGIN, [WHOLE_A, WHOLE_B]), B: (PLUGIN, [*HALF, *SHARES])},
    {A: (DRA, [WHOLE_A]), B: (PLUGIN, [*HALF, WHOLE_B])},
)


class Rules(msgspec.Struct, frozen=True):
    """The daemon's decisions, and whether it avoids List while an Allocate is open."""

    book: type[Book] = Book
    lists_while_open: bool = False


class Holder(msgspec.Struct, eq=False):
    name: Name
    device: Device
    is_claim: bool = False


class Node:
    def __init__(self, seed: int, rules: Rules) -> None:
        self.random, self.rules, self.now = random.Random(seed), rules, 1000.0
        self.trace: list[str] = []
        self.holders: list[Holder] = []  # running pods and prepared claims: the truth
        self.records: dict[Name, list[Holder]] = {}  # the kubelet's, of ended pods too
        self.in_use: set[Name] = set()
        self.forgotten: set[Name] = set()  # held, but free for the kubelet, which was listed while it allocated (3.58)
        self.open: list[Holder] = []  # Allocate has been called and has not returned
        self.lists: dict[str, dict[str, Device]] = {}  # healthy devices by resource, as the kubelet has them
        self.checkpoint: dict[Name, tuple[PodRecord, ...]] = {}
        self.written = self.now
        self.memory: Memory | None = None
        self.has_claim_files = self.can_read_checkpoint = self.can_list = True
        self.book: Book | None = None
        self.config = CONFIGS[0]

    def step(self) -> None:
        self.now += self.random.random() * 3
        steps: list[tuple[int, Callable[[], None]]] = [
            (8, self.begin_pod), (8, self.finish_allocate), (5, self.end_pod), (6, self.read), (6, self.publish),
            (2, self.prepare), (2, self.unprepare), (2, self.start), (1, self.kill), (1, self.lose_memory),
            (1, self.lose_claim_files), (2, self.toggle_checkpoint), (2, self.toggle_pods), (1, self.foreign_list),
            (1, self.reboot),
        ]  # fmt: skip
        [(_, step)] = self.random.choices(steps, [weight for weight, _ in steps])
        self.trace.append(step.__name__)
        step()

    # The kubelet.

    def begin_pod(self) -> None:
        candidates = [
            (resource, device)
            for resource, devices in self.lists.items()
            for device in devices.values()
            if (resource, device.id) not in self.in_use
        ]
        if self.book is None or not candidates:
            return
        self.collect()
        resource, device = self.random.choice(candidates)
        name = resource, device.id
        if name in self.in_use or self.book.refusals(resource, [device.id]):
            return
        self.trace[-1] += f" {name}"
        self.book.begin_allocate(resource, [device.id])
        self.forgotten.discard(name)
        self.in_use.add(name)
        self.open.append(Holder(name, device))

    def finish_allocate(self) -> None:
        if not self.open or self.book is None:
            return
        holder = self.open.pop(0)
        self.book.end_allocate(holder.name[0], [holder.name[1]], is_answered=True)
        self.holders.append(holder)
        self.records.setdefault(holder.name, []).append(holder)
        self.trace[-1] += f" {holder.name}"
        if self.random.random() < 0.7:
            self.write_checkpoint()

    def end_pod(self) -> None:
        if pods := [holder for holder in self.holders if not holder.is_claim]:
            self.holders.remove(self.random.choice(pods))

    def collect(self) -> None:
        """Frees the devices of ended pods; only records count as in use then (3.57)."""
        self.records = {
            name: kept
            for name, holders in self.records.items()
            if (kept := [holder for holder in holders if holder in self.holders])
        }
        self.in_use = (set(self.records) | {holder.name for holder in self.open}) - self.forgotten

    def foreign_list(self) -> None:
        """Somebody else calls List: what is being allocated is no longer in use (3.58)."""
        self.collect()
        self.in_use = set(self.records)

    def write_checkpoint(self) -> None:
        self.now += 0.01
        self.checkpoint = {name: (PodRecord("uid", "main"),) for name in self.records}
        self.written = self.now

    # The daemon.

    def start(self) -> None:
        """Takes longer than the kubelet needs to store an answer."""
        self.kill()
        self.write_checkpoint()
        self.config = self.random.choice(CONFIGS)
        self.book = self.rules.book(self.memory, keeps_memory=True, clock=lambda: self.now)
        self.read()
        for resource, (api, devices) in self.config.items():
            self.book.offer(
                resource, {device.id: device for device in devices}, ServedResource(api, driver(resource), api is DRA)
            )
        self.trace[-1] += f" {CONFIGS.index(self.config)}"
        self.publish()

    def kill(self) -> None:
        """The kubelet gives nothing out without a plugin.

        It fails the pods whose Allocate has not returned. An answer may have arrived just before: then the pod runs,
        and neither the ended daemon nor a checkpoint knows of it yet.
        """
        self.book, self.lists = None, {}
        for holder in self.open:
            if self.random.random() < 0.5:
                self.holders.append(holder)
                self.records.setdefault(holder.name, []).append(holder)
                self.trace[-1] += f" answered {holder.name}"
            else:
                self.in_use.discard(holder.name)
        self.open.clear()

    def reboot(self) -> None:
        """The kubelet knows only its checkpoint: pods that it does not contain lose their devices.

        Claims stay prepared for their pods, because the driver's files survive.
        """
        self.kill()
        self.records = {name: holders for name, holders in self.records.items() if name in self.checkpoint}
        recorded = [holder for holders in self.records.values() for holder in holders]
        self.holders = [holder for holder in self.holders if holder.is_claim or holder in recorded]
        self.forgotten.clear()
        self.in_use = set(self.records)
        self.start()

    def read(self) -> None:
        book = self.book
        if book is None:
            return
        if self.can_read_checkpoint:
            book.take_checkpoint(self.checkpoint, self.written)
        else:
            book.fail(HoldingSource.CHECKPOINT, "unreadable")
        claims = [holder for holder in self.holders if holder.is_claim]
        records = [ClaimRecord(driver(holder.name[0]), holder.name[1], holder.name[1], uid="u") for holder in claims]
        is_listed = self.can_list and (not self.open or self.rules.lists_while_open)
        known = records if self.has_claim_files or is_listed else list(book.claims)
        book.take_claims(known, are_complete=self.has_claim_files)
        if is_listed:
            self.forgotten |= {holder.name for holder in self.open}
            self.foreign_list()
            book.take_pods(dict.fromkeys(self.records, ("default", "pod")))
            self.write_checkpoint()
            if self.can_read_checkpoint:
                book.take_checkpoint(self.checkpoint, self.written)
        elif not self.can_list:
            book.fail(HoldingSource.POD_RESOURCES, "unreadable")
        book.settle()

    def publish(self) -> None:
        if self.book is None:
            return
        for resource, (api, devices) in self.config.items():
            listed = {device.id: device for device in devices}
            closed = self.book.closed(resource, listed)
            if api is PLUGIN:
                self.lists[resource] = {key: device for key, device in listed.items() if key not in closed}
        self.memory = self.book.memory
        if self.random.random() < 0.5:
            self.write_checkpoint()

    def prepare(self) -> None:
        """A driver publishes nothing while the checkpoint is unreadable, nor what a pod holds under the same name.

        The scheduler gives no device to two claims: it knows the allocations of all claims from the API server.
        """
        book, allocated = self.book, {holder.name for holder in self.holders if holder.is_claim}
        if book is None or HoldingSource.CHECKPOINT in book.missing:
            return
        for resource, (api, devices) in self.config.items():
            closed = book.closed(resource, {device.id: device for device in devices})
            taken = book.held | allocated
            free = [device for device in devices if device.id not in closed and (resource, device.id) not in taken]
            if api is DRA and free:
                device = self.random.choice(free)
                self.holders.append(Holder((resource, device.id), device, is_claim=True))
                self.has_claim_files = True
                self.trace[-1] += f" {device.id}"
                self.read_claims()

    def unprepare(self) -> None:
        if claims := [holder for holder in self.holders if holder.is_claim]:
            self.holders.remove(self.random.choice(claims))

    def read_claims(self) -> None:
        """What the driver in this process records is known at the same time."""
        assert self.book is not None
        claims = [holder for holder in self.holders if holder.is_claim]
        records = [ClaimRecord(driver(holder.name[0]), holder.name[1], holder.name[1], uid="u") for holder in claims]
        self.book.take_claims(records, are_complete=True)

    # Faults.

    def lose_memory(self) -> None:
        self.memory = None

    def lose_claim_files(self) -> None:
        self.has_claim_files = False

    def toggle_checkpoint(self) -> None:
        self.can_read_checkpoint = not self.can_read_checkpoint

    def toggle_pods(self) -> None:
        self.can_list = not self.can_list

    def violation(self) -> str:
        """Two exclusive holders of one physical device."""
        for index, one in enumerate(self.holders):
            for other in self.holders[:index]:
                if _overlap(one.device, other.device):
                    return f"{one.name} and {other.name} are held: {' → '.join(self.trace[-40:])}"
        return ""


def driver(resource: str) -> str:
    return f"{resource.rpartition('/')[2]}.example.com"


def _overlap(one: Device, other: Device) -> bool:
    if one.sharing and one.sharing == other.sharing:
        return False
    return any(
        f"{first}/".startswith(f"{second}/") or f"{second}/".startswith(f"{first}/")
        for first in one.physical
        for second in other.physical
    )


def search(steps: int, seed: int, rules: Rules) -> str | None:
    """How the invariant is broken within so many steps; a node lives for 200 of them."""
    node = Node(seed, rules)
    for number in range(steps):
        if number % 200 == 0:
            node = Node(seed + number, rules)
            node.trace.append("start")
            node.start()
        node.step()
        if violation := node.violation():
            return f"step {number}: {violation}"
    return None
