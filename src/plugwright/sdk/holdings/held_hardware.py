"""Held devices that are not offered, or not remembered: which hardware they can be, and which device a claim holds.

The id of a device, the nodes, names and variables that its containers got, and the names in slices tell it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from plugwright.sdk.driver_names import device_name
from plugwright.sdk.holdings.overlaps import Hold, Name, Offer, guessed_offer
from plugwright.sdk.holdings.records import ClaimRecord, PodRecord

__all__ = ["Hardware", "claimed_device", "found_offer", "is_guess", "lost_offer"]

_ANY = "?"  # among the names of the hardware: it can be any of this node


def found_offer(name: Name, records: Iterable[PodRecord], claim: ClaimRecord | None) -> Offer:
    """An offer guessed from the id and from the answers to its holders, possibly by other plugins."""
    given = [record.names for record in records]
    given += [claim.names] if claim is not None else []
    return guessed_offer(name, (found for names in given for found in names))


def lost_offer(found: Offer, *, is_ours: bool) -> Offer:
    """The offer of a device of which only `found` is known; `is_ours` if a plugwright daemon gave it out."""
    return Offer(found.name, (*found.physical, _ANY)) if is_ours else found


def is_guess(offer: Offer, found: Offer) -> bool:
    """Whether a remembered offer is only what was found by the device's id and by the answers to its holders."""
    return offer in (guessed_offer(offer.name), found) or _ANY in offer.physical


def claimed_device(claim: ClaimRecord, ids: Iterable[str], offers: Iterable[Offer]) -> str:
    """The id of a claim's device, of which only the name in the slice is known; that name if nothing else fits."""
    known = [*ids]
    # A device offered in another way, or never here, can have the name of its hardware.
    known += [name for offer in offers for name in offer.physical]
    return next((device_id for device_id in known if device_name(device_id) == claim.device), claim.device)


class Hardware:
    """The hardware of the resources in `offers`. `listed` are the ids of each resource's list.

    If nothing identifies the hardware of a pod's device, it can be any of its resource; if a plugwright daemon gave it
    out and the resource is no longer offered, any of this node.
    """

    def __init__(self, offers: Mapping[Name, Offer], listed: Mapping[str, Collection[str]]) -> None:
        self._offers, self._listed = offers, listed
        self._known: dict[str, tuple[frozenset[str], bool]] = {}

    def possible_holds(self, found: Offer, guess: Offer, records: Iterable[PodRecord], holder: str) -> Iterator[Hold]:
        """What pods hold as a device of which only `found` is known: its nodes, or all hardware that it can be."""
        nodes, is_ours = tuple(node for record in records for node in record.nodes), _ANY in guess.physical
        if nodes:
            yield Hold(Offer(found.name, nodes), holder, by_nodes=not is_ours)
        if hardware := self._possible_hardware(found, nodes, is_ours=is_ours):
            yield Hold(Offer(found.name, hardware), holder)
            self._known[found.name[0]] = frozenset(), False  # one hold of all of it is enough

    def _possible_hardware(self, found: Offer, nodes: tuple[str, ...], *, is_ours: bool) -> tuple[str, ...]:
        """All hardware of the resource, if nothing identifies that of a device which is no longer listed."""
        resource, device_id = found.name
        if device_id in self._listed.get(resource, ()):
            return ()
        if resource not in self._known:
            offers = [offer for name, offer in self._offers.items() if name[0] == resource]
            self._known[resource] = _hardware(offers or (self._offers.values() if is_ours else ()))
        hardware, are_nodes = self._known[resource]
        is_identified = (nodes and are_nodes) or hardware & {*found.physical, *nodes}
        return () if is_identified else tuple(sorted(hardware))


def _hardware(offers: Collection[Offer]) -> tuple[frozenset[str], bool]:
    """The hardware of a resource, and whether device nodes name it; empty if the ids do.

    If the ids or the device nodes of a resource name its hardware, they also name that of a device not listed.
    """
    if all(set(guessed_offer(offer.name).physical) & set(offer.physical) for offer in offers):
        return frozenset(), False
    are_nodes = all(offer.physical[:1] and offer.physical[0].startswith("/dev/") for offer in offers)
    return frozenset(physical for offer in offers for physical in offer.physical), are_nodes
