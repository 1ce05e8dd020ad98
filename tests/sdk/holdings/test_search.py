"""A search for two exclusive holders of one physical device, and its control: without any one guard it finds them.

PLUGWRIGHT_SEARCH_STEPS sets the number of steps; `make search` makes 2,000,000.
"""

import os
from collections.abc import Collection, Iterable, Mapping

import pytest
from msgspec.structs import replace
from tests.sdk.holdings.node_model import Rules, search

from plugwright.sdk.holdings.book import Book
from plugwright.sdk.holdings.holding import HoldingSource
from plugwright.sdk.holdings.overlaps import HoldIndex, Name, Offer, conflicting
from plugwright.sdk.holdings.records import Memory, PodRecord

ORDINARY = 20_000
STEPS = int(os.environ.get("PLUGWRIGHT_SEARCH_STEPS", str(ORDINARY)))
CONTROL = 150_000  # steps within which a missing guard must be found


class CheckpointAssumedReadable(Book):
    @property
    def missing(self) -> list[HoldingSource]:
        return [source for source in super().missing if source is not HoldingSource.CHECKPOINT]


class ClaimsAssumedKnown(Book):
    @property
    def missing(self) -> list[HoldingSource]:
        return [source for source in super().missing if source is not HoldingSource.POD_RESOURCES]


class ChangedOffersOpen(Book):
    def _has_changed(self, name: Name, offer: Offer) -> bool:
        return False


class LostMemoryIgnored(Book):
    def __init__(self, memory: Memory | None = None, **options: object) -> None:
        super().__init__(memory or Memory(), **options)  # type: ignore[arg-type]


class HoldsIgnored(Book):
    def _find_holds(self) -> None:
        super()._find_holds()
        self._holds = HoldIndex()


class AllocateUnchecked(Book):
    def refusals(self, resource: str, device_ids: Collection[str]) -> dict[str, str]:
        return {}


class AnsweredForgotten(Book):
    def end_allocate(self, resource: str, device_ids: Iterable[str], *, is_answered: bool) -> bool:
        device_ids = list(device_ids)
        super().end_allocate(resource, device_ids, is_answered=is_answered)
        for device_id in device_ids:
            self.allocated.pop((resource, device_id), None)
        self._find_holds()
        return True


class UnstoredForgotten(Book):
    """Some seconds after an answer, a checkpoint without it counts, although another plugin can delay its record."""

    def take_checkpoint(self, stored: Mapping[Name, tuple[PodRecord, ...]], written: float) -> None:
        super().take_checkpoint(stored, written)
        for name in self.allocated.keys() - self._allocations.open.keys():
            if written > self.allocated[name] + 5:
                del self.allocated[name]
        self._find_holds()


class UnstoredBeforeForgotten(Book):
    """The same for the answers of the run before, as soon as the checkpoint is later than the start."""

    def take_checkpoint(self, stored: Mapping[Name, tuple[PodRecord, ...]], written: float) -> None:
        self.earlier_run.account(float("inf"))
        super().take_checkpoint(stored, written)


class ClaimsIgnored(Book):
    def _is_claimed(self, name: Name) -> bool:
        return False


class HeldOffersForgotten(Book):
    def settle(self) -> None:
        super().settle()
        self._remembered = {name: offer for name, offer in self._remembered.items() if name in self._settled}


class EarlierOffersIgnored(Book):
    @property
    def contended(self) -> set[Name]:
        return conflicting(self.offers, ())


class NeighboursIgnored(Book):
    def take_neighbours(self, memories: Mapping[str, Memory]) -> bool:
        return False


class GivenUnsaid(Book):
    @property
    def memory(self) -> Memory | None:
        memory = super().memory
        return replace(memory, given=()) if memory is not None else None


class ClaimedUnsaid(Book):
    @property
    def memory(self) -> Memory | None:
        memory = super().memory
        return replace(memory, claimed=()) if memory is not None else None


class OpenBesideNeighbours(Book):
    """Devices that another release offers too stay open while a source is missing."""

    def conflicts(self, resource: str, device_ids: Iterable[str], before: Mapping[Name, Offer]) -> dict[str, str]:
        unknown, self.unknown = self.unknown, {}
        try:
            return super().conflicts(resource, device_ids, before)
        finally:
            self.unknown = unknown

    def _may_be_held(self, name: Name, offer: Offer) -> bool:
        return self._settled.get(name) != offer and self._has_changed(name, offer)


GUARDS = {
    "an unreadable checkpoint is unknown": (Rules(CheckpointAssumedReadable), 9001),
    "claims that no source accounts for are unknown": (Rules(ClaimsAssumedKnown), 40801),
    "a changed offer waits for the sources": (Rules(ChangedOffersOpen), 801),
    "a lost memory counts as changed": (Rules(LostMemoryIgnored), 1563001),
    "a held device closes those that overlap it": (Rules(HoldsIgnored), 3001),
    "Allocate is refused for what overlaps a held device": (Rules(AllocateUnchecked), 81401),
    "an answered Allocate counts until a checkpoint shows otherwise": (Rules(AnsweredForgotten), 24801),
    "an answer counts although the kubelet has not stored it": (Rules(UnstoredForgotten), 5340801),
    "so does an answer of the run before": (Rules(UnstoredBeforeForgotten), 448201),
    "a claim closes its device in the other API": (Rules(ClaimsIgnored), 26401),
    "the offer of a held device is remembered": (Rules(HeldOffersForgotten), 3401),
    "an offer is compared with those of earlier runs": (Rules(EarlierOffersIgnored), 8401),
    "pods are not listed while an Allocate is open": (Rules(lists_while_open=True), 3601),
    "what another release offers is known": (Rules(NeighboursIgnored), 7201),
    "a release says what it is giving out": (Rules(GivenUnsaid), 15201),
    "a release says what its claims hold": (Rules(ClaimedUnsaid), 5069201),
    "what another release offers too is closed while a source is missing": (Rules(OpenBesideNeighbours), 21201),
    "an Allocate is decided again when it is recorded": (Rules(confirms_allocate=False), 21201),
    "a claim is decided again when it is recorded": (Rules(confirms_claims=False), 34001),
    "sources are read again for that": (Rules(reads_again=False), 28801),
    "a list counts as offered until another one follows": (Rules(keeps_offers=False), 9601),
    "a device of both APIs is on one side": (Rules(arbitrates=False), 3001),
}


def test_no_physical_device_has_two_exclusive_holders() -> None:
    assert search(STEPS, 1, Rules()) is None


@pytest.mark.parametrize("guard", GUARDS)
def test_the_search_fails_without(guard: str) -> None:
    """The seed is that of a life in which it does, so that the search is short; it may begin elsewhere as well."""
    rules, seed = GUARDS[guard]
    found = search(200, seed, rules) if STEPS <= ORDINARY else None
    assert found or any(search(CONTROL, start, rules) for start in (1, 3_000_000, 5_000_000))
