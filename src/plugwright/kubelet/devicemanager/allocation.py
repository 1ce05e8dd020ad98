"""One container gets its devices: which, and what the plugin answers for them (3.8 to 3.46).

Which devices is `choice`'s decision; the order of containers is `admission`'s.

Which devices a container gets, step by step as a kubelet decides.

Pure: `choose` is a generator that yields a question where a kubelet asks the plugin for its preference, and is sent
the wish; its result is the devices. Where a kubelet takes devices in no particular order, natural order is
taken here, so that the same question has the same answer.
"""

import time
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from plugwright.errors import AllocationFailed, KubeletError, PlugwrightError
from plugwright.kubelet.devicemanager import pod_devices
from plugwright.kubelet.devicemanager.devices import ResourceDevices
from plugwright.kubelet.devicemanager.endpoints import Endpoint, status_text
from plugwright.kubelet.devicemanager.manager import DeviceManager
from plugwright.kubelet.devicemanager.pod_devices import Place, Reusable
from plugwright.kubelet.metrics import Name
from plugwright.kubelet.pod_table import PodTable
from plugwright.kubelet.pods import ContainerSpec, PodSpec
from plugwright.model import PreferenceRequest, natural_order

__all__ = ["Allocator", "Claim", "Mask", "Question", "choose", "refuse_early"]


@dataclass(frozen=True, slots=True)
class Claim:
    """What a container wants of a resource, and what it can be given from."""

    resource: str
    required: int
    held: frozenset[str]
    reusable: frozenset[str]
    available: frozenset[str]  # healthy and in nobody's use
    mask: frozenset[int] | None  # the NUMA nodes the topology manager decided on
    shelf: ResourceDevices

    @property
    def needed(self) -> int:
        return self.required - len(self.held)


@dataclass(frozen=True, slots=True)
class Question:
    """Which of `among` would the plugin choose beside what is `taken`? Asked only where the plugin can answer."""

    claim: Claim
    among: frozenset[str]
    taken: frozenset[str]

    @property
    def request(self) -> PreferenceRequest:
        shelf, everything = self.claim.shelf, self.among | self.taken
        available = tuple(shelf.first(len(everything), everything))
        return PreferenceRequest(available, tuple(shelf.first(len(self.taken), self.taken)), self.claim.required)


Choosing = Generator[Question, Sequence[str], frozenset[str]]


@dataclass(frozen=True, slots=True)
class _Alignment:
    aligned: frozenset[str]
    unaligned: frozenset[str] = frozenset()
    anywhere: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Taken:
    """What has been taken so far, and how many are still missing."""

    wanted: int
    shelf: ResourceDevices
    ids: set[str] = field(default_factory=set)

    @property
    def missing(self) -> int:
        return self.wanted - len(self.ids)

    def take(self, offered: Collection[str]) -> None:
        fresh = set(offered) - self.ids if self.ids else offered
        self.ids.update(self.shelf.first(self.missing, fresh))


def refuse_early(claim: Claim, *, in_stock: bool, refuses_unhealthy: bool) -> None:
    """What is refused before anything is chosen, whatever the number (3.15 to 3.17)."""
    if not in_stock:
        raise AllocationFailed(f"cannot allocate unregistered device {claim.resource}")
    if not refuses_unhealthy:
        return
    if not claim.shelf.healthy:
        raise AllocationFailed(f"no healthy devices present; cannot allocate unhealthy devices {claim.resource}")
    if not claim.held <= claim.shelf.healthy:
        raise AllocationFailed(
            f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {claim.resource}"
        )


def choose(claim: Claim) -> Choosing:
    taken = _Taken(claim.needed, claim.shelf)
    taken.take(claim.reusable)  # 3.19: whatever their health, and without asking
    if not taken.missing:
        return frozenset(taken.ids)
    if len(claim.available) < taken.missing:
        raise AllocationFailed(
            f"requested number of devices unavailable for {claim.resource}. "
            f"Requested: {taken.missing}, Available: {len(claim.available)}"
        )
    yield from _choose(claim, taken)
    if taken.missing:
        raise AllocationFailed(
            "unexpectedly allocated less resources than required. "
            f"Requested: {claim.required}, Got: {claim.required - taken.missing}"
        )
    return frozenset(taken.ids)


def _choose(claim: Claim, taken: _Taken) -> Generator[Question, Sequence[str], None]:
    split = _align(claim)
    if taken.missing < len(split.aligned):  # 3.23
        wish = yield Question(claim, split.aligned, frozenset(taken.ids))
        taken.take(_first(wish, split.aligned, taken))
        taken.take(split.aligned)
        return
    taken.take(split.aligned)  # 3.24
    if not taken.missing:
        return
    wish = yield Question(claim, claim.available, frozenset(taken.ids))
    taken.take(_first(wish, claim.available, taken))
    taken.take(split.unaligned)
    taken.take(split.anywhere)


def _first(wish: Sequence[str], allowed: frozenset[str], taken: _Taken) -> list[str]:
    """The plugin's wish, cut to what is allowed and to the number wanted, in the plugin's own order (3.29)."""
    wished = dict.fromkeys(each for each in wish if each in allowed and each not in taken.ids)
    return list(wished)[: taken.missing]


def _align(claim: Claim) -> _Alignment:
    if claim.mask is None or not claim.shelf.has_topology:  # 3.21
        return _Alignment(frozenset(), frozenset(), claim.available)
    nodes = {device_id: claim.shelf.nodes(device_id) for device_id in claim.available}
    aligned = frozenset(device_id for device_id, near in nodes.items() if claim.mask.intersection(near))
    anywhere = frozenset(device_id for device_id, near in nodes.items() if not near)
    return _Alignment(aligned, claim.available - aligned - anywhere, anywhere)


Mask = frozenset[int] | None


class Allocator:
    def __init__(self, manager: DeviceManager, table: PodTable) -> None:
        self._manager = manager
        self._table = table
        self._context = manager.context
        self._reusable = Reusable(keeps_sidecars=manager.context.profile.keeps_sidecars)

    def is_device(self, resource: str) -> bool:
        """Whether it is ours to hand out: a plugin listed it, or somebody holds one of it (3.10)."""
        return resource in self._manager.stock or self._manager.ledger.knows(resource)

    def collect(self) -> None:
        """Frees what pods hold that are over (3.57)."""
        if self._table.sources_ready:
            self._manager.forget(self._table.active)

    def reusable(self, pod: PodSpec, resource: str) -> frozenset[str]:
        return self._reusable.of(pod.uid, resource)

    def available(self, resource: str) -> frozenset[str]:
        return self._manager.stock.shelf(resource).healthy.difference(self._manager.ledger.in_use(resource))

    async def allocate(self, pod: PodSpec, container: ContainerSpec, mask: Mask) -> None:
        """Every resource of one container; raises `AllocationFailed`. What was recorded before stays (3.46)."""
        devices = [resource for resource in sorted(container.limits) if self.is_device(resource)]
        if devices:
            self.collect()
        recorded = [await self._allocate(Place(pod.uid, container.name, each), container, mask) for each in devices]
        if any(recorded):
            self._save()
        held = {each: self._manager.ledger.held(Place(pod.uid, container.name, each)) for each in devices}
        self._reusable.pass_on(pod.uid, container.kind, dict(held))

    async def _allocate(self, place: Place, container: ContainerSpec, mask: Mask) -> bool:
        """Whether the plugin was asked and a record made."""
        claim = self._claim(place, container, mask)
        if claim.held and claim.needed:
            raise AllocationFailed(
                f'pod "{place.pod_uid}" container "{place.container}" changed request for resource '
                f'"{place.resource}" from {len(claim.held)} to {claim.required}'
            )
        if self._is_running(place):
            return False
        refuse_early(
            claim,
            in_stock=place.resource in self._manager.stock,
            refuses_unhealthy=self._context.profile.refuses_unhealthy,
        )
        if claim.needed <= 0:
            return False
        await self._ask(place, await self._choose(claim))
        return True

    def _claim(self, place: Place, container: ContainerSpec, mask: Mask) -> Claim:
        return Claim(
            resource=place.resource,
            required=container.wanted(place.resource),
            held=frozenset(self._manager.ledger.held(place)),
            reusable=self._reusable.of(place.pod_uid, place.resource),
            available=self.available(place.resource),
            mask=mask,
            shelf=self._manager.stock.shelf(place.resource),
        )

    def _is_running(self, place: Place) -> bool:
        """After a restart: a container that runs is not asked for again (3.14)."""
        if self._table.sources_ready or not self._context.profile.skips_running:
            return False
        running = (place.pod_uid, place.container) in self._table.running_at_start
        if (
            running
            and not self._context.profile.sees_every_running
            and self._table.was_restarted(place.pod_uid, place.container)
        ):
            self._context.findings.report(
                "3.14",
                f"{place.pod_uid}/{place.container}",
                "the container was started more than once before the kubelet was restarted",
                "of this version looks at one of its runs only, and may refuse the pod for one that has ended",
            )
        return running

    async def _choose(self, claim: Claim) -> frozenset[str]:
        choosing = choose(claim)
        try:
            question = next(choosing)
            while True:
                question = choosing.send(await self._preferred(claim.resource, question))
        except StopIteration as chosen:
            return frozenset(chosen.value)

    async def _preferred(self, resource: str, question: Question) -> list[str]:
        endpoint = self._manager.connections.get(resource)
        if endpoint is None:
            raise AllocationFailed(f"endpoint not found in cache for a registered resource: {resource}")  # 3.31
        if not endpoint.options.preference:
            return []
        try:
            return await endpoint.prefer(question.request)
        except KubeletError:
            raise
        except PlugwrightError as error:
            if question.taken:
                self._report_leak(resource, sorted(question.taken), "GetPreferredAllocation failed")
            text = f"device plugin GetPreferredAllocation rpc failed with err: {status_text(error)}"
            raise AllocationFailed(text) from error

    async def _ask(self, place: Place, device_ids: frozenset[str]) -> None:
        """Allocate, and the record of it (3.36 to 3.44)."""
        book = self._manager.ledger
        book.mark(place.resource, device_ids)
        try:
            endpoint = self._manager.connections.get(place.resource)
            if endpoint is None:
                raise AllocationFailed(f"unknown Device Plugin {place.resource}")  # 3.42
            answer = await self._answer(endpoint, sorted(device_ids, key=natural_order))
        except BaseException:
            book.rebuild()
            raise
        shelf = self._manager.stock.shelf(place.resource)
        nodes = {device_id: shelf.nodes(device_id) for device_id in device_ids}
        book.record(place, pod_devices.by_node(device_ids, nodes), answer)

    async def _answer(self, endpoint: Endpoint, device_ids: list[str]) -> bytes:
        try:
            with self._asking(endpoint.resource, device_ids):
                answers = await endpoint.answers(device_ids)
        except KubeletError:
            raise
        except PlugwrightError as error:
            raise AllocationFailed(status_text(error)) from error  # 3.39
        if not answers:
            self._report_leak(endpoint.resource, device_ids, "the answer to Allocate has no container in it")
            raise AllocationFailed("no containers return in allocation response")  # 3.40
        return answers[0]

    @contextmanager
    def _asking(self, resource: str, device_ids: list[str]) -> Iterator[None]:
        began = time.perf_counter()
        self._manager.asked[resource] = frozenset(device_ids)
        try:
            yield
        finally:
            del self._manager.asked[resource]
            seconds = time.perf_counter() - began
            self._manager.metrics.observe(Name.ALLOCATION_SECONDS, seconds, resource_name=resource)

    def _save(self) -> None:
        try:
            self._manager.save()
        except OSError as error:  # 3.45
            name = self._context.paths.checkpoint.name
            raise AllocationFailed(f'failed to write checkpoint file "{name}": {error.strerror}') from error

    def _report_leak(self, resource: str, device_ids: object, happened: str) -> None:
        self._context.findings.report(
            "3.43", resource, happened, f"keeps {device_ids} marked as in use until its next clean-up"
        )
