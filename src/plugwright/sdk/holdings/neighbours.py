"""The offers and allocations of the other releases of plugwright on the node, from their files.

Two releases never serve one resource, but they can offer the same hardware under two. The kubelet and the files of
claims identify a release's allocations only by resource and id; only the release's file tells which hardware they are.
During a rolling update with two processes of one release, each counts as a release.
"""

from collections.abc import Iterable, Mapping

from plugwright.sdk.holdings.overlaps import Hold, HoldIndex, Name, Offer
from plugwright.sdk.holdings.records import Memory
from plugwright.sdk.serve_settings import ServeMode

__all__ = ["SIBLING", "Neighbours"]

SIBLING = "~"  # begins the key of another process of the same release, and the number of its file


class Neighbours:
    """`offers` are all remembered offers, `given` the devices given out, each with the time of the answer.

    `ended` are devices whose pods have ended, for which those releases wait for the kubelet's checkpoint.
    """

    def __init__(self) -> None:
        self.offers: dict[Name, Offer] = {}
        self.given: dict[Name, float] = {}
        self.claimed: frozenset[Name] = frozenset()
        self.ended: frozenset[Name] = frozenset()
        self._memories: Mapping[str, Memory] = {}

    def take(self, memories: Mapping[str, Memory]) -> bool:
        """Takes their memories, by release; a lost file does not change them. Returns whether anything is new."""
        memories = {**self._memories, **memories}
        if memories == self._memories:
            return False
        self._memories = memories
        self.offers, self.given, claimed, ended = {}, {}, set[Name](), set[Name]()
        for memory in memories.values():
            self.offers |= {offer.name: offer for offer in memory.offers}
            self.given |= {given.name: given.answered for given in memory.given}
            claimed.update(memory.claimed)
            ended.update(memory.ended)
        self.claimed, self.ended = frozenset(claimed), frozenset(ended)
        return True

    def offered(self, resources: Iterable[str]) -> list[Offer]:
        """Their offers, except those of `resources`: a release that has taken one over decides about it alone.

        Two processes of one release serve the same resource, possibly with different configurations.
        """
        own = set(resources)
        return [
            offer
            for key, memory in self._memories.items()
            for offer in memory.offers
            if offer.name[0] not in own or key.startswith(SIBLING)
        ]

    def overlapping(self, offers: Mapping[Name, Offer], resources: Iterable[str]) -> frozenset[Name]:
        """Those of our offers that cannot be held together with one of theirs."""
        theirs = self.offered(resources) if self.offers else ()
        if not theirs:
            return frozenset()
        index = HoldIndex(Hold(offer, "") for offer in theirs)
        return frozenset(name for name, offer in offers.items() if index.conflict(offer) is not None)

    def resource_of(self, driver: str) -> str | None:
        """The resource that they serve, or have served, with this DRA driver."""
        for memory in self._memories.values():
            for resource, (_, known) in memory.resources.items():
                if known == driver:
                    return resource
        return None

    @property
    def drivers(self) -> set[str]:
        """The drivers that could have prepared claims."""
        return {
            driver
            for memory in self._memories.values()
            for api, driver in memory.resources.values()
            if api is not ServeMode.DEVICE_PLUGIN
        }
