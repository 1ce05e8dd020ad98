"""The decisions of the ledger, without I/O: which offered devices are kept back, and which offers are remembered.

We over-approximate. A device is closed while its hardware is held under another name, and while that is possible: its
offer has changed and a source of holdings cannot be read. It stays open under the name recorded in the kubelet's
checkpoint, because after a reboot the kubelet fails pods whose recorded devices are not Healthy.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from plugwright.model import Device
from plugwright.sdk.holdings.allocations import Allocations, EarlierRun, outstanding
from plugwright.sdk.holdings.held_hardware import Hardware, claimed_device, found_offer, is_guess, lost_offer
from plugwright.sdk.holdings.holding import HoldingSource
from plugwright.sdk.holdings.neighbours import Neighbours
from plugwright.sdk.holdings.overlaps import Hold, HoldIndex, Name, Offer, conflicting, guessed_offer, offer_of
from plugwright.sdk.holdings.records import ClaimRecord, Closed, Facts, Memory, PodRecord, ServedResource
from plugwright.sdk.serve_settings import ServeMode

__all__ = ["Book"]

_OPEN = "its previous Allocate has not returned"
_ADMITTED = "a pod that is being admitted"


class Book(Facts):
    """Decides with the facts of the sources. `memory` is None if it is lost; without `keeps_memory` that is normal."""

    def __init__(
        self, memory: Memory | None = None, *, keeps_memory: bool = False, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(clock)
        self._keeps_memory = keeps_memory
        self.was_ours: Callable[[str], bool] = lambda _: False  # whether a plugwright daemon has served a resource here
        self._is_lost = memory is None
        self._apis = dict(memory.resources) if memory is not None else {}
        self._remembered = {offer.name: offer for offer in memory.offers} if memory is not None else {}
        self._claimed_before = memory.claimed if memory is not None else ()  # until claims are accounted for
        self._allocations = Allocations(clock)
        self._served: dict[str, ServedResource] = {}
        self._listed: dict[str, Mapping[str, Device]] = {}
        self.offers: dict[Name, Offer] = {}  # offers with an identity
        self._settled: dict[Name, Offer] = {}  # offers open since this process made them
        self._settled_apis: dict[str, ServeMode] = {}
        self._holds = HoldIndex()
        self._neighbours, self._written = Neighbours(), 0.0
        self.earlier_run = EarlierRun(clock(), is_lost=memory is None)
        self._given: set[Name] = set()  # given out by other releases; no checkpoint accounts for them yet
        self._beside_neighbours: frozenset[Name] | None = None  # None: to be computed
        self._claimed: dict[Name, ClaimRecord] = {}
        self._contended_offers: set[Name] | None = None  # None: to be computed

    @property
    def allocated(self) -> dict[Name, float]:
        """When Allocate was answered, for devices that no checkpoint accounts for yet."""
        return self._allocations.answered

    # Offers.

    def offer(self, resource: str, devices: Mapping[str, Device], served: ServedResource) -> None:
        """Replaces the list of a resource."""
        named = (device for device in devices.values() if device.physical or device.consumes)
        new = {(resource, device.id): offer_of(resource, device) for device in named}
        before = {name: offer for name, offer in self.offers.items() if name[0] == resource}
        self._served[resource], self._listed[resource] = served, devices
        if new != before:
            self.offers = {name: offer for name, offer in self.offers.items() if name[0] != resource} | new
            self._contended_offers = self._beside_neighbours = None
        if new != before or self.claims:
            self._find_holds()

    def withdraw(self, resource: str) -> None:
        """The resource is no longer served, or by another plugin whose first list is still missing."""
        for table in (self._served, self._listed, self._settled_apis):
            table.pop(resource, None)
        self._settled = {name: offer for name, offer in self._settled.items() if name[0] != resource}
        self.offers = {name: offer for name, offer in self.offers.items() if name[0] != resource}
        self._contended_offers = self._beside_neighbours = None
        self._find_holds()

    def take_over(self) -> None:
        """Another process has served a resource until now. Doubts about resources taken over before it stay."""
        self.earlier_run = EarlierRun(self._clock(), is_lost=True, changed=self.earlier_run.changed)

    # Sources.

    def take_checkpoint(self, stored: Mapping[Name, tuple[PodRecord, ...]], written: float) -> None:
        """Takes the kubelet's checkpoint, and the time when it was written."""
        self.unknown.pop(HoldingSource.CHECKPOINT, None)
        self.stored, self._written = stored, written
        self._allocations.account(stored, written)
        self.earlier_run.account(written)
        self._find_given()
        self._find_holds()

    def take_pods(self, pods: Mapping[Name, tuple[str, str]], asked: float = 0.0) -> None:
        """Takes a response to List, which names the pod of each device, and when it was `asked` for."""
        self.unknown.pop(HoldingSource.POD_RESOURCES, None)
        self.pods = pods
        self._allocations.take_listed(pods.keys(), asked)
        self._find_holds()

    def take_claims(self, claims: Iterable[ClaimRecord], *, are_complete: bool, may_exist: bool = True) -> None:
        """Takes all known claims; the other arguments are as in `Facts`."""
        self.claims, self.claims_are_complete, self.claims_may_exist = tuple(claims), are_complete, may_exist
        self._find_given()
        self._find_holds()

    def take_neighbours(self, memories: Mapping[str, Memory]) -> bool:
        """Takes the remembered offers of other releases on the node, by release. Returns whether anything is new."""
        is_new = self._neighbours.take(memories)
        if is_new:
            self._contended_offers = self._beside_neighbours = None
            self._find_given()
            self._find_holds()
        return is_new

    @property
    def ended_by_neighbours(self) -> set[Name]:
        """Devices that we serve whose pods have ended, according to a release that waits for the next checkpoint."""
        return {name for name in self._neighbours.ended if name[0] in self._served}

    @property
    def waits_for_checkpoint(self) -> bool:
        """Whether a new checkpoint could mean something although it contains the same records."""
        return HoldingSource.CHECKPOINT in self.unknown or bool(self.allocated) or not self.earlier_run.is_accounted_for

    # Allocate.

    def refusals(self, resource: str, device_ids: Collection[str]) -> dict[str, str]:
        """Why these devices cannot be allocated together now, by id; empty if they can."""
        contended = self.contended
        if not self._allocations.open and not contended and not self._claimed:
            return {}
        reasons: dict[str, str] = {}
        request = HoldIndex()
        for device_id in device_ids:
            name = resource, device_id
            if name in self._allocations.open:
                reasons[device_id] = _OPEN
            elif self._is_claimed(name):
                reasons[device_id] = f"held by {self._claimed[name].holder}"
            elif name in contended:
                offer = self.offers[name]
                hold = self._holds.conflict(offer) or request.conflict(offer)
                request.add(Hold(offer, "this very request", is_offered=True))
                if hold is not None:
                    reasons[device_id] = hold.reason(name)
        return reasons

    def conflicts(self, resource: str, device_ids: Iterable[str], before: Mapping[Name, Offer]) -> dict[str, str]:
        """Why devices recorded as given out or claimed, as offered `before`, are also held elsewhere, by id."""
        found: dict[str, str] = {}
        for name in ((resource, device_id) for device_id in device_ids):
            if before.get(name) != self.offers.get(name):
                found[name[1]] = "its resource has another configuration now"
            elif self.missing and (name in self.beside_neighbours or name in self.earlier_run.changed):
                found[name[1]] = self.waiting_text()
            elif name in self.offers and (hold := self._holds.conflict(self.offers[name])) is not None:
                found[name[1]] = hold.reason(name)
            elif name in self.earlier_run.changed & self.stored.keys() - self._allocations.open.keys():
                found[name[1]] = f"held by {self._holder(name)}"  # allocated by the run before, and stored since
        return found

    def begin_allocate(self, resource: str, device_ids: Iterable[str]) -> bool:
        """Starts an Allocate; returns whether other devices have to be kept back because of it."""
        self.earlier_run.begin(resource, self._clock())
        names = [(resource, device_id) for device_id in device_ids]
        self._allocations.begin(names)
        self._remembered |= {name: self.offers[name] for name in names if name in self.offers}
        contended = [name for name in names if name in self.contended]
        for name in contended:
            self._holds.add(Hold(self.offers[name], _ADMITTED, is_offered=True))
        return bool(contended)

    def end_allocate(self, resource: str, device_ids: Iterable[str], *, is_answered: bool) -> bool:
        """Ends an Allocate; returns whether other devices could be open again, because the call has failed."""
        names = [(resource, device_id) for device_id in device_ids]
        freed = [name for name in names if self._allocations.end(name, is_answered=is_answered)]
        if changed := any(name in self.contended for name in freed):
            self._find_holds()
        return changed

    # Decisions.

    def closed(self, resource: str, devices: Mapping[str, Device]) -> dict[str, Closed]:
        """The listed devices that must not be offered now. The others are open from now on, and remembered as such."""
        served = self._served.get(resource)
        if served is None:
            return {}
        waits = self.waiting_text()
        plain = self._plain_closed(resource, served, waits)
        found: dict[str, Closed] = {}
        if plain is not None or self.offers or self._claimed:
            for device_id in devices:
                if closed := self._closed((resource, device_id), plain, waits):
                    found[device_id] = closed
        if plain is None:
            self._settled_apis[resource] = served.api
            is_mixed = self._is_held_by_other_api(resource, served.api)
            self._apis[resource] = ServeMode.BOTH if is_mixed else served.api, served.driver
        return found

    @property
    def is_outdated(self) -> bool:
        """Whether a new checkpoint could free a device: this one has an unlisted pod, or is older than an Allocate."""
        return any(name not in self.pods for name in self.stored) or self._allocations.is_late()

    @property
    def unnamed(self) -> frozenset[Name]:
        """Devices that are or were offered here and have a pod in the checkpoint, but none in pod-resources."""
        names = self.stored.keys() - self.pods.keys()
        return frozenset(name for name in names if name[0] in self._served or name in self._remembered)

    def settle(self) -> None:
        """Remembers held devices, and forgets offers that are no longer made, unless a source is missing."""
        held = self.held
        for name in sorted(held - self._remembered.keys()):
            offer = self.offer_of(name)
            if (self._is_lost or name in self._claimed) and offer == guessed_offer(name):
                offer = lost_offer(self._found_offer(name), is_ours=self._is_lost and self.was_ours(name[0]))
            self._remembered[name] = offer
        if self.missing:
            return
        self._is_lost, self._claimed_before = False, ()
        is_served_by_claims = all(served.api is ServeMode.DRA for served in self._served.values())
        # Without a list, nothing makes the kubelet write a later checkpoint.
        if self.earlier_run.is_accounted_for or (is_served_by_claims and self.earlier_run.is_over(self._clock())):
            self._remembered = {
                name: offer for name, offer in self._remembered.items() if name in self._settled or name in held
            }
        holding = {name[0] for name in held}
        self._apis = {key: api for key, api in self._apis.items() if key in self._served or key in holding}
        self._contended_offers = None

    @property
    def contended(self) -> set[Name]:
        """The offered devices that overlap another present or remembered offer."""
        if self._contended_offers is None:
            known = [*self._remembered.values(), *self._neighbours.offered(self._served)]
            self._contended_offers = conflicting(self.offers, known)
        return self._contended_offers

    @property
    def beside_neighbours(self) -> frozenset[Name]:
        """The offered devices that overlap an offer of another release."""
        if self._beside_neighbours is None:
            self._beside_neighbours = self._neighbours.overlapping(self.offers, self._served)
        return self._beside_neighbours

    @property
    def held(self) -> set[Name]:
        """Every device that is or could be held by pods or claims."""
        return {*self.stored, *self.pods, *self.allocated, *self._claimed}

    @property
    def memory(self) -> Memory | None:
        """The memory to store; None while it is lost: storing it before all sources were read would hide that."""
        if self._is_lost:
            return None
        offers = tuple(self._remembered[name] for name in sorted(self._remembered))
        if not self._neighbours.offers:
            return Memory(dict(self._apis), offers)
        ended = [name for name in self.stored.keys() - self.pods.keys() if name in self._neighbours.offers]
        return Memory(
            dict(self._apis),
            offers,
            self._allocations.given(self.beside_neighbours),
            tuple(sorted({*self._claimed, *self._claimed_before})),
            tuple(sorted(ended)) if HoldingSource.POD_RESOURCES not in self.unknown else (),
        )

    @property
    def drivers(self) -> set[str]:
        """The DRA drivers of resources that are or were offered."""
        own = {served.driver for served in self._served.values()} | {driver for _, driver in self._apis.values()}
        return own | self._neighbours.drivers

    def offer_of(self, name: Name) -> Offer:
        """The offer of a device as of its allocation."""
        remembered = self._remembered.get(name) or guessed_offer(name)
        if not is_guess(remembered, self._found_offer(name)):
            return remembered
        return self.offers.get(name) or self._neighbours.offers.get(name, remembered)

    def name_of(self, claim: ClaimRecord) -> Name:
        """The device of a claim, under its name in the device plugin API."""
        resource = next((key for key, served in self._served.items() if served.driver == claim.driver), None)
        if resource is None:
            resource = next((key for key, (_, driver) in self._apis.items() if driver == claim.driver), None)
        resource = resource or self._neighbours.resource_of(claim.driver) or claim.driver
        if claim.device_id:
            return resource, claim.device_id
        ids = [*self._listed.get(resource, ())]
        # A claim found before its resource was served is remembered under its driver.
        names = (*self._remembered, *self._neighbours.offers)
        ids += [name[1] for name in names if name[0] in (resource, claim.driver) and name[1] != claim.device]
        return resource, claimed_device(claim, ids, self.offers.values())

    def _closed(self, name: Name, plain: Closed | None, waits: str) -> Closed | None:
        offer = self.offers.get(name)
        # Its holder keeps it; otherwise the kubelet would fail the pod after a reboot.
        if name in self.stored or (name in self._claimed and not self._is_claimed(name)):
            self._settle(name, offer)
            return None
        if self._is_claimed(name):
            return Closed(f"held by {self._claimed[name].holder}")
        if offer is not None and (hold := self._holds.conflict(offer)) is not None:
            return Closed(hold.reason(name))
        if plain is not None:
            return plain
        if offer is not None and waits and self._may_be_held(name, offer):
            return Closed(waits, waits=True)
        self._settle(name, offer)
        return None

    def _settle(self, name: Name, offer: Offer | None) -> None:
        """Records that the offer is open. A held device stays remembered as it was when it was allocated."""
        run = self.earlier_run
        if not run.is_accounted_for and self._has_other_api(name[0]):
            run.changed.add(name)
        if offer is not None and self._settled.get(name) != offer:
            self._settled[name] = offer
            if not run.is_accounted_for and (run.is_lost or self._has_changed(name, offer)):
                run.changed.add(name)
        before = self._remembered.get(name)
        if offer in (None, before):
            return
        if name not in self.held or before is None or is_guess(before, self._found_offer(name)):
            self._remembered[name] = offer

    def _found_offer(self, name: Name) -> Offer:
        return found_offer(name, self.stored.get(name, ()), self._claimed.get(name))

    def _is_held_by_other_api(self, resource: str, api: ServeMode) -> bool:
        """Whether the other API holds a device. The memory then names both, so a later run trusts neither."""
        if api is ServeMode.BOTH:
            return False
        held = self._claimed if api is ServeMode.DEVICE_PLUGIN else {*self.stored, *self.pods, *self.allocated}
        return any(name[0] == resource for name in held)

    def _plain_closed(self, resource: str, served: ServedResource, waits: str) -> Closed | None:
        """Why no device of a resource can be offered yet, if that does not depend on the device.

        A device without names of its hardware is held under its own name, or else by a claim. If there is a driver, it
        keeps the APIs apart.
        """
        is_known = HoldingSource.POD_RESOURCES not in self.missing or served.is_arbitrated
        if is_known or self._settled_apis.get(resource) is served.api:
            return None
        if self._is_lost:
            return Closed(waits, waits=True) if self._keeps_memory and self.claims_may_exist else None
        return Closed(waits, waits=True) if self._has_other_api(resource) else None

    def _has_other_api(self, resource: str) -> bool:
        """Whether the resource was offered through another API before it is open through this one."""
        before, served = self._apis.get(resource), self._served[resource]
        return before is not None and before[0] is not served.api

    def _may_be_held(self, name: Name, offer: Offer) -> bool:
        """Whether an offer could be held while a source is missing. Open offers of this release alone stay open."""
        return name in self.beside_neighbours or (self._settled.get(name) != offer and self._has_changed(name, offer))

    def _has_changed(self, name: Name, offer: Offer) -> bool:
        """Whether the hardware could be held under another name."""
        # A contended offer overlaps another present or earlier offer.
        return self._is_lost or name in self.contended or self._remembered.get(name, offer) != offer

    def _is_claimed(self, name: Name) -> bool:
        served = self._served.get(name[0])
        return name in self._claimed and served is not None and not served.is_arbitrated

    def _find_given(self) -> None:
        self._given = outstanding(self._neighbours.given, self.stored, self._written)
        if not self.claims_are_complete:  # the files can be lost, and the pods listed before
            self._given |= self._neighbours.claimed

    def _find_holds(self) -> None:
        claimed = {self.name_of(claim): claim for claim in self.claims if not claim.admin_access}
        for name in (claimed.keys() - self._claimed.keys()) & self._settled.keys():
            if not self._settled[name].sharing:
                self._remembered[name] = self._settled[name]  # not as it was held before
        self._claimed = claimed
        self._holds = HoldIndex(self._all_holds())

    def _all_holds(self) -> Iterator[Hold]:
        hardware = Hardware(self.offers, self._listed)
        for name in sorted(self.held | self._given):
            holder = self._holder(name)
            offer = self.offer_of(name)
            yield Hold(offer, holder, is_offered=name in self.offers or name in self._neighbours.offers)
            if name in self.stored and is_guess(offer, found := self._found_offer(name)):
                yield from hardware.possible_holds(found, offer, self.stored[name], holder)

    def _holder(self, name: Name) -> str:
        if name in self.pods:
            return "/".join(self.pods[name])
        if name in self._allocations.open:
            return _ADMITTED
        return self._claimed[name].holder if name in self._claimed else "a pod"
