"""A node as the ledger's decisions see it: a kubelet, two releases of plugwright, pods, claims, files that get lost.

`search` makes random steps and returns how a physical device came to have two exclusive holders, or None. The releases
offer the same hardware under different resources. Each has a daemon that is killed and started with other settings.
"""

import random
from collections.abc import Callable, Collection, Sequence

import msgspec
from tests.sdk.holdings.node_parts import (
    BOTH,
    DRA,
    FIRST,
    PLUGIN,
    SECOND,
    VERSIONS,
    Holder,
    Release,
    driver,
    overlap,
    renamed,
)

from plugwright.model import Device
from plugwright.sdk.driver_names import device_name
from plugwright.sdk.holdings.book import Book
from plugwright.sdk.holdings.holding import HoldingSource
from plugwright.sdk.holdings.overlaps import Name
from plugwright.sdk.holdings.records import ClaimRecord, PodRecord, ServedResource

__all__ = ["Rules", "search"]


class Rules(msgspec.Struct, frozen=True):
    """The daemon's decisions, and what its parts do around them."""

    book: type[Book] = Book
    lists_while_open: bool = False  # calls List while an Allocate is open
    confirms_allocate: bool = True  # decides again when an Allocate is recorded, if another release offers the device
    confirms_claims: bool = True  # decides again when a claim is recorded
    reads_again: bool = True  # for that decision
    keeps_offers: bool = True  # of a list that stays until the plugins of another configuration have listed devices
    arbitrates: bool = True  # with `serve: both` a device is on one side


class Node:
    def __init__(self, seed: int, rules: Rules) -> None:
        self.random, self.rules, self.now = random.Random(seed), rules, 1000.0
        self.reloads = (
            random.Random(f"{seed} reloads").random() < 0.3
        )  # in the other lives only restarts change settings
        [self.version] = self.random.choices(VERSIONS, (1, 1, 4, 4))
        self.slow = random.Random(f"{seed} slow")
        self.has_slow_plugin = self.slow.random() < 0.3  # of another resource in the same containers
        # In some lives the ids of the second release are names of its own, and its memory is never lost.
        self.has_own_names = self.random.random() < 0.5
        self.trace: list[str] = [self.version.name]
        self.holders: list[Holder] = []  # running pods and prepared claims: the truth
        self.records: dict[Name, list[Holder]] = {}  # the kubelet's, of ended pods too
        self.in_use: set[Name] = set()
        self.forgotten: set[Name] = set()  # held, but free for the kubelet, which was listed while it allocated (3.58)
        self.open: list[tuple[Release, Holder]] = []  # Allocate has been called and has not returned
        self.unstored: list[tuple[float, Book | None, Holder]] = []  # answered, while the slow plugin has not answered
        self.recorded: list[tuple[Release, Holder]] = []  # claims that are on disk and not prepared yet
        self.lists: dict[str, dict[str, Device]] = {}  # healthy devices by resource, as the kubelet has them
        self.checkpoint: dict[Name, tuple[PodRecord, ...]] = {}
        self.written = self.now
        self.has_claim_files = self.can_read_checkpoint = self.can_list = True
        second = [renamed(config) for config in SECOND] if self.has_own_names else SECOND
        self.releases = [Release(1, FIRST)]
        if self.random.random() < 0.6:
            self.releases.append(Release(2, second))

    def step(self) -> None:
        self.now += self.random.random() * 3
        if self.unstored and (self.slow.random() < 0.1 or self.now > self.unstored[0][0] + 50):
            self.store_answers()
        steps: list[tuple[int, Callable[[], None]]] = [
            (10, self.begin_pod), (10, self.finish_allocate), (5, self.end_pod), (6, self.read_one),
            (6, self.publish_one), (5, self.record_claim), (4, self.finish_claim), (2, self.unprepare),
            (3, self.start_one), (1, self.kill_one), (2, self.lose_memory), (2, self.lose_claim_files),
            (1, self.lose_split), (2, self.toggle_checkpoint), (2, self.toggle_pods), (1, self.foreign_list),
            (1, self.reboot), (1, self.restart_kubelet), (1, self.follow), (2, self.move),
            *[(3, self.reload), (4, self.discover)] * self.reloads,
        ]  # fmt: skip
        [(_, step)] = self.random.choices(steps, [weight for weight, _ in steps])
        self.trace.append(step.__name__)
        step()

    def chosen(self) -> Release:
        release = self.random.choice(self.releases)
        self.trace[-1] += f" {release.number}"
        return release

    # The kubelet.

    def begin_pod(self) -> None:
        candidates = [
            (release, (resource, device_id))
            for release in self.releases
            for resource in release.config
            for device_id in self.lists.get(resource, ())
            if release.book is not None
        ]
        is_admitting = self.has_slow_plugin and bool(self.unstored or self.open)  # one container after the other
        if not candidates or is_admitting:
            return
        self.collect()
        release, name = self.random.choice(candidates)
        book, (resource, device_id), device = release.book, name, self.lists[name[0]][name[1]]
        if book is None or name in self.in_use or book.refusals(resource, [device_id]):
            return
        if self.rules.arbitrates and release.side(name) is not PLUGIN:
            return
        self.trace[-1] += f" {name}"
        book.begin_allocate(resource, [device_id])
        if name in book.beside_neighbours:
            self.store_memory(release)
        self.forgotten.discard(name)
        self.in_use.add(name)
        must_confirm = name in book.beside_neighbours or book.earlier_run.is_doubtful(resource, [device_id])
        self.open.append((release, Holder(name, device, offers=book.offers if must_confirm else None)))

    def finish_allocate(self) -> None:
        if not self.open:
            return
        release, holder = self.open.pop(0)
        book, (resource, device_id) = release.book, holder.name
        assert book is not None
        self.trace[-1] += f" {holder.name}"
        refused = self.confirm_allocate(release, holder)
        book.end_allocate(resource, [device_id], is_answered=not refused)
        if refused:
            self.trace[-1] += f" refused: {refused}"
            self.in_use.discard(holder.name)
            return
        self.answer(book, holder)
        if self.random.random() < 0.7:
            self.write_checkpoint()

    def answer(self, book: Book | None, holder: Holder) -> None:
        """The kubelet stores the answers of a container together, after the last one (3.45)."""
        self.holders.append(holder)
        if self.has_slow_plugin and self.slow.random() < 0.5:
            self.trace[-1] += " unstored"
            self.unstored.append((self.now, book, holder))
        else:
            self.records.setdefault(holder.name, []).append(holder)

    def store_answers(self) -> None:
        self.trace.append("store")
        for _, _, holder in self.unstored:
            self.records.setdefault(holder.name, []).append(holder)
        self.unstored.clear()
        self.write_checkpoint()

    def confirm_allocate(self, release: Release, holder: Holder) -> str:
        """A device is decided again if another release offered it when the call began, or its offer has changed."""
        is_asked = release.book is not None and holder.offers is not None and self.rules.confirms_allocate
        return self.confirm(release, holder) if is_asked else ""

    def confirm(self, release: Release, holder: Holder) -> str:
        """Why a device that is recorded as given out cannot be."""
        book, name = release.book, holder.name
        assert book is not None
        is_doubtful = book.earlier_run.is_doubtful(name[0], [name[1]])
        if holder.offers is not None or is_doubtful or (holder.is_claim and name in book.beside_neighbours):
            if book.memory is None:
                return "the memory is lost"
            self.store_memory(release)
            if self.rules.reads_again:
                self.read_files(release)
                book.settle()
        before = holder.offers if holder.offers is not None else book.offers
        return book.conflicts(name[0], [name[1]], before).get(name[1], "")

    def end_pod(self) -> None:
        admitting = [holder for _, _, holder in self.unstored]
        if pods := [holder for holder in self.holders if not holder.is_claim and holder not in admitting]:
            self.holders.remove(self.random.choice(pods))

    def collect(self) -> None:
        """Frees the devices of ended pods; only records count as in use then (3.57)."""
        self.records = {
            name: kept
            for name, holders in self.records.items()
            if (kept := [holder for holder in holders if holder in self.holders])
        }
        self.in_use = (set(self.records) | self.given) - self.forgotten

    @property
    def given(self) -> set[Name]:
        """Devices of containers that are being admitted."""
        return {holder.name for _, holder in self.open} | {holder.name for _, _, holder in self.unstored}

    def foreign_list(self) -> None:
        """Somebody else calls List: what is being allocated is no longer in use (3.58)."""
        self.collect()
        self.in_use = set(self.records)

    def write_checkpoint(self) -> None:
        self.now += 0.01
        self.checkpoint = {name: (PodRecord("uid", "main"),) for name in self.records}
        self.written = self.now

    def restart_kubelet(self) -> None:
        """It knows only its checkpoint; a container whose Allocate it had not stored has not been started."""
        for release, holder in self.open:
            if release.book is not None:
                release.book.end_allocate(holder.name[0], [holder.name[1]], is_answered=self.random.random() < 0.5)
        self.open.clear()
        self.forget_unstored()
        self.lists = {}

    def forget_unstored(self) -> None:
        self.records = {name: holders for name, holders in self.records.items() if name in self.checkpoint}
        recorded = [holder for holders in self.records.values() for holder in holders]
        self.holders = [holder for holder in self.holders if holder.is_claim or holder in recorded]
        self.unstored.clear()
        self.forgotten.clear()
        self.in_use = set(self.records)

    def reboot(self) -> None:
        """Claims stay prepared for their pods, because the driver's files survive."""
        for release in self.releases:
            self.kill(release)
        self.forget_unstored()
        for release in self.random.sample(self.releases, len(self.releases)):
            self.start(release)

    # The daemons.

    def start_one(self) -> None:
        self.start(self.chosen())

    def kill_one(self) -> None:
        self.kill(self.chosen())

    def read_one(self) -> None:
        self.read(self.chosen())

    def publish_one(self) -> None:
        self.publish(self.chosen())

    def start(self, release: Release) -> None:
        """Takes longer than the kubelet needs to store an answer."""
        self.kill(release)
        self.write_checkpoint()
        release.config, release.next_config = self.random.choice(release.configs), None
        self.trace[-1] += f" {release.configs.index(release.config)}"
        release.book = self.rules.book(release.memory, keeps_memory=True, clock=lambda: self.now)
        release.is_listed = False
        is_both = any(api is BOTH for api, _ in release.config.values())
        release.sides = dict(release.split or {}) if is_both else {}
        release.split = release.split if is_both else None
        known = release.memory.resources if release.memory is not None else {}
        has_changed = any(known.get(key, (api,))[0] is not api for key, (api, _) in release.config.items())
        if release.memory is None or has_changed:
            self.read(release)
        else:
            self.read_files(release)
            release.book.settle()
        self.offer(release)

    def reload(self) -> None:
        """Another configuration in the running daemon; a resource whose API stays keeps its list until `discover`."""
        release = self.chosen()
        if release.book is None:
            return
        if self.random.random() < 0.5:
            self.read(release)  # or as far as it can: Allocate may be open
        before, after = release.config, self.random.choice(release.configs)
        self.trace[-1] += f" to {release.configs.index(after)}"
        kept = {key for key, (api, _) in after.items() if before.get(key, (None,))[0] is api}
        stopped = before.keys() - kept
        self.end_calls(release, stopped)
        for resource in stopped:
            release.book.withdraw(resource)
            self.lists.pop(resource, None)
        for resource in kept if not self.rules.keeps_offers else ():
            release.book.withdraw(resource)
        release.sides = {name: side for name, side in release.sides.items() if name[0] not in stopped}
        release.split = release.split if any(api is BOTH for api, _ in after.values()) else None
        release.next_config = after
        release.config = {resource: before[resource] if resource in kept else after[resource] for resource in after}
        if self.rules.keeps_offers:
            self.offer(release)

    def discover(self) -> None:
        """The plugins of a new configuration list their devices."""
        release = self.chosen()
        if release.book is None or release.next_config is None:
            return
        for resource in release.next_config:
            if release.config[resource] != release.next_config[resource]:
                release.book.withdraw(resource)
        release.config, release.next_config = release.next_config, None
        self.offer(release)

    def offer(self, release: Release) -> None:
        assert release.book is not None
        for resource, (api, devices) in release.config.items():
            listed = {device.id: device for device in devices}
            release.book.offer(resource, listed, ServedResource(api, driver(resource), api is not PLUGIN))
        release.is_listed = True
        self.decide_sides(release)
        self.publish(release)

    def end_calls(self, release: Release, resources: Collection[str]) -> None:
        """A resource that is stopped ends its calls; an answer may have been sent just before."""
        for owner, holder in list(self.open):
            if owner is release and holder.name[0] in resources:
                self.open.remove((owner, holder))
                is_answered = self.random.random() < 0.5 and not self.confirm_allocate(release, holder)
                if is_answered:
                    self.answer(release.book, holder)
                else:
                    self.in_use.discard(holder.name)
                if release.book is not None:
                    release.book.end_allocate(holder.name[0], [holder.name[1]], is_answered=is_answered)
        self.recorded = [
            (owner, holder)
            for owner, holder in self.recorded
            if owner is not release or holder.name[0] not in resources
        ]

    def kill(self, release: Release) -> None:
        """The kubelet gives nothing out without a plugin.

        It fails the pods whose Allocate has not returned. An answer may have arrived just before: then the pod runs,
        and neither the ended daemon nor a checkpoint knows of it yet. A daemon that has to decide again before it
        answers has not answered.
        """
        if release.book is None:
            return
        for owner, holder in list(self.open):
            if owner is release:
                self.open.remove((owner, holder))
                if self.random.random() < 0.5 and not self.confirm_allocate(release, holder):
                    self.answer(release.book, holder)
                    self.trace[-1] += f" answered {holder.name}"
                else:
                    self.in_use.discard(holder.name)
        self.recorded = [(owner, holder) for owner, holder in self.recorded if owner is not release]
        release.book = None
        for resource in release.config:
            self.lists.pop(resource, None)

    def read(self, release: Release) -> None:
        """Everything, as the daemon does while a device is kept back."""
        book = release.book
        if book is None:
            return
        self.read_files(release)
        is_listed = self.can_list and (not self.open or self.rules.lists_while_open)
        if is_listed:
            if not self.has_claim_files:
                self.take_claims(book, self.claims())
            self.forgotten |= {holder.name for _, holder in self.open}
            ended = {} if self.version.lists_active_only else dict.fromkeys(self.records, ("default", "pod"))
            self.foreign_list()
            book.take_pods(ended | dict.fromkeys(self.records, ("default", "pod")))
            self.write_checkpoint()
            if self.can_read_checkpoint:
                book.take_checkpoint(self.checkpoint, self.written)
        elif not self.can_list:
            book.fail(HoldingSource.POD_RESOURCES, "unreadable")
        book.settle()
        self.decide_sides(release)
        for resource, (_, devices) in release.config.items():
            book.closed(resource, {device.id: device for device in devices})
        self.store_memory(release)

    def read_files(self, release: Release) -> None:
        book = release.book
        assert book is not None
        book.take_neighbours({str(other.number): other.memory for other in self.others(release) if other.memory})
        if self.can_read_checkpoint:
            book.take_checkpoint(self.checkpoint, self.written)
        else:
            book.fail(HoldingSource.CHECKPOINT, "unreadable")
        if self.has_claim_files:
            self.take_claims(book, self.claims())
        else:
            book.take_claims(list(book.claims), are_complete=False)

    def follow(self) -> None:
        """`Get` for each known pod, which a daemon asks to show them; it frees nothing (3.58)."""
        release = self.chosen()
        book = release.book
        if book is None or not self.version.has_get or not self.can_list:
            return
        if HoldingSource.POD_RESOURCES not in book.unknown:
            book.take_pods({name: pod for name, pod in book.pods.items() if name in self.records})

    def publish(self, release: Release) -> None:
        if release.book is None:
            return
        for resource, (api, devices) in release.config.items():
            listed = {device.id: device for device in devices}
            closed = release.book.closed(resource, listed)
            if api is PLUGIN or (api is BOTH and self.rules.arbitrates):
                on_side = {key for key in listed if release.side((resource, key)) is PLUGIN}
            else:
                on_side = set(listed) if api is BOTH else set()
            self.lists[resource] = {key: device for key, device in listed.items() if key in on_side - closed.keys()}
        self.store_memory(release)
        if self.random.random() < 0.5:
            self.write_checkpoint()

    def store_memory(self, release: Release) -> None:
        """The other daemon watches the directory of these files."""
        assert release.book is not None
        memory = release.book.memory
        if memory is None or memory == release.memory:
            return
        release.memory = memory
        for other in self.others(release):
            if other.book is not None and other.book.take_neighbours({str(release.number): memory}):
                other.book.settle()
                self.publish(other)

    def others(self, release: Release) -> list[Release]:
        return [other for other in self.releases if other is not release]

    # Claims.

    def record_claim(self) -> None:
        """A claim for a device that a driver has published is on disk, before the device is given to it.

        A driver publishes nothing while the checkpoint is unreadable, nor what a pod holds under the same name. The
        scheduler gives no device to two claims, unless one has admin access.
        """
        release = self.chosen()
        book = release.book
        if book is None or HoldingSource.CHECKPOINT in book.missing or not self.version.prepares_claims:
            return
        taken = {holder.name for holder in self.holders if holder.is_claim and not holder.admin}
        taken |= {holder.name for _, holder in self.recorded}
        free = []
        for resource, (api, devices) in release.config.items():
            if api is PLUGIN:
                continue
            closed = book.closed(resource, {device.id: device for device in devices})
            for device in devices:
                name = resource, device.id
                on_side = release.side(name) is DRA or not self.rules.arbitrates
                if on_side and device.id not in closed and name not in book.held | taken:
                    free.append((name, device))
        if not free:
            return
        name, device = self.random.choice(free)
        offers = book.offers if name in book.beside_neighbours else None
        holder = Holder(name, device, is_claim=True, admin=self.random.random() < 0.1, offers=offers)
        self.recorded.append((release, holder))
        self.has_claim_files = True
        self.trace[-1] += f" {name}"
        self.take_claims(book, self.claims())
        if name in book.beside_neighbours:
            self.store_memory(release)

    def finish_claim(self) -> None:
        if not self.recorded:
            return
        release, holder = self.recorded[0]
        if any(book is not release.book and overlap(holder.device, given.device) for _, book, given in self.unstored):
            self.store_answers()  # takes less time than to publish, allocate and prepare a claim after a restart
        self.trace[-1] += f" {holder.name}"
        if holder.admin or not self.rules.confirms_claims or not self.confirm(release, holder):
            self.recorded.pop(0)
            self.holders.append(holder)
        elif self.random.random() < 0.5:
            self.recorded.pop(0)  # its pod is deleted

    def unprepare(self) -> None:
        if claims := [holder for holder in self.holders if holder.is_claim]:
            self.holders.remove(self.random.choice(claims))

    def claims(self) -> list[Holder]:
        """In the files of the drivers, and as far as they are prepared by pod-resources."""
        recorded = [holder for _, holder in self.recorded] if self.has_claim_files else []
        return [holder for holder in self.holders if holder.is_claim] + recorded

    def take_claims(self, book: Book, claims: Sequence[Holder]) -> None:
        """A driver's own file has the id of each device, other sources the name in its slice."""
        records = [
            ClaimRecord(
                driver(holder.name[0]),
                device_name(holder.name[1]),
                holder.name[1] if self.has_claim_files else "",
                uid="u",
                admin_access=holder.admin,
            )
            for holder in claims
        ]
        book.take_claims(records, are_complete=self.has_claim_files)

    # `serve: both`.

    def decide_sides(self, release: Release) -> None:
        """Where no file tells the side of a device: claims keep theirs, pods too, and the others are divided."""
        book = release.book
        assert book is not None
        if book.missing or not release.is_listed:
            return
        claimed = {book.name_of(claim) for claim in book.claims}
        for name, (api, _) in release.devices.items():
            if api is BOTH and name not in release.sides:
                free = self.random.choice([PLUGIN, DRA])
                release.sides[name] = DRA if name in claimed else PLUGIN if name in book.held else free
                release.split = dict(release.sides)

    def move(self) -> None:
        """A device changes sides when no source has a holder, nor an allocation that is in flight."""
        release = self.chosen()
        if release.book is None or not release.sides:
            return
        name = self.random.choice(sorted(release.sides))
        if name not in release.devices:
            return
        side = release.sides.pop(name)
        self.publish(release)  # the kubelet is told first
        self.read(release)
        release.sides[name] = side
        in_flight = name in {*self.given, *(holder.name for _, holder in self.recorded)}
        if not release.book.missing and name not in release.book.held and not in_flight:
            release.sides[name] = DRA if side is PLUGIN else PLUGIN
        release.split = dict(release.sides)

    # Faults.

    def lose_memory(self) -> None:
        """Not beside the files of claims: pod-resources have names that do not tell the hardware of a part."""
        release = self.chosen()
        if self.has_claim_files and (release.number == 1 or not self.has_own_names):
            release.memory = None

    def lose_claim_files(self) -> None:
        """A claim that is only recorded loses its record, and is prepared from the beginning."""
        if all(release.memory is not None for release in self.releases):
            self.has_claim_files = False
            self.recorded.clear()

    def lose_split(self) -> None:
        self.chosen().split = None

    def toggle_checkpoint(self) -> None:
        self.can_read_checkpoint = not self.can_read_checkpoint

    def toggle_pods(self) -> None:
        self.can_list = not self.can_list

    def violation(self) -> str:
        """Two exclusive holders of one physical device."""
        exclusive = [holder for holder in self.holders if not holder.admin]
        for index, one in enumerate(exclusive):
            for other in exclusive[:index]:
                if overlap(one.device, other.device):
                    return f"{one.name} and {other.name} are held: {' → '.join(self.trace[-40:])}"
        return ""


def search(steps: int, seed: int, rules: Rules) -> str | None:
    """How the invariant is broken within so many steps; a node lives for 200 of them."""
    node = Node(seed, rules)
    for number in range(steps):
        if number % 200 == 0:
            node = Node(seed + number, rules)
            for release in node.releases:
                node.trace.append("start")
                node.start(release)
        node.step()
        if violation := node.violation():
            return f"step {number}: {violation}"
    return None
