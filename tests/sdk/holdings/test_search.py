"""A search for two exclusive holders of one physical device, and its control: without any one guard it finds them.

PLUGWRIGHT_SEARCH_STEPS sets the number of steps; `make search` makes 2,000,000.
"""

import os
from collections.abc import Collection, Iterable

import pytest
from tests.sdk.holdings.node_model import Rules, search

from plugwright.sdk.holdings.book import Book
from plugwright.sdk.holdings.holding import HoldingSource
from plugwright.sdk.holdings.overlaps import HoldIndex, Name, Offer, conflicting
from plugwright.sdk.holdings.records import Memory

STEPS = int(os.environ.get("PLUGWRIGHT_SEARCH_STEPS", "20000"))
CONTROL = 30_000  # steps within which a missing guard must be found


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
        return conflicting(self._offers, ())


GUARDS = {
    "an unreadable checkpoint is unknown": Rules(CheckpointAssumedReadable),
    "claims that no source accounts for are unknown": Rules(ClaimsAssumedKnown),
    "a changed offer waits for the sources": Rules(ChangedOffersOpen),
    "a lost memory counts as changed": Rules(LostMemoryIgnored),
    "a held device closes those that overlap it": Rules(HoldsIgnored),
    "Allocate is refused for what overlaps a held device": Rules(AllocateUnchecked),
    "an answered Allocate counts until a checkpoint shows otherwise": Rules(AnsweredForgotten),
    "a claim closes its device in the other API": Rules(ClaimsIgnored),
    "the offer of a held device is remembered": Rules(HeldOffersForgotten),
    "an offer is compared with those of earlier runs": Rules(EarlierOffersIgnored),
    "pods are not listed while an Allocate is open": Rules(lists_while_open=True),
}


def test_no_physical_device_has_two_exclusive_holders() -> None:
    assert search(STEPS, 1, Rules()) is None


@pytest.mark.parametrize("guard", GUARDS)
def test_the_search_fails_without(guard: str) -> None:
    assert search(CONTROL, 1, GUARDS[guard]) is not None
