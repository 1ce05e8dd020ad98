"""Physical identity: which offers are the same hardware, and which holding keeps an offer back. Pure functions.

Two offers overlap if they have a physical name in common, or one name is a part of the other, as `card0/1` of `card0`.
Both can be held at the same time only if they have the same `sharing`. Offers that use one counter set overlap if the
set does not suffice for both.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from plugwright.model import Device

__all__ = ["CounterUse", "Hold", "HoldIndex", "Name", "Offer", "conflicting", "guessed_offer", "offer_of"]

Name = tuple[str, str]  # a resource and the id of a device in it

_SHARE = "::"  # precedes the number of a share in an id


class CounterUse(msgspec.Struct, frozen=True):
    """The use of one counter of a set by a device, and the counter's total."""

    counter_set: str
    counter: str
    taken: int
    total: int


class Offer(msgspec.Struct, frozen=True):
    """One way in which hardware is or was offered."""

    name: Name
    physical: tuple[str, ...] = ()
    sharing: str = ""
    counters: tuple[CounterUse, ...] = ()


class Hold(msgspec.Struct, frozen=True):
    """A held offer and its holder. `is_offered` if it is still offered.

    `by_nodes`: known only from the device nodes of a container. These can belong to other devices of the container, so
    they do not keep back shareable devices.
    """

    offer: Offer
    holder: str
    by_nodes: bool = False
    is_offered: bool = False

    def reason(self, name: Name) -> str:
        """Why the device of that name is kept back."""
        resource, device_id = self.offer.name
        if not self.is_offered:
            return f"held by {self.holder} ({resource}) until it ends"
        return f"held as {device_id}{f' of {resource}' if resource != name[0] else ''} by {self.holder}"

    def excludes(self, offer: Offer) -> bool:
        """Whether `offer` cannot be held at the same time, if both are the same hardware."""
        if self.by_nodes:
            return not offer.sharing
        return not self.offer.sharing or self.offer.sharing != offer.sharing


def offer_of(resource: str, device: Device) -> Offer:
    counters = tuple(
        CounterUse(consumption.of.name, counter, taken, consumption.of.counters[counter])
        for consumption in device.consumes
        for counter, taken in sorted(consumption.counters.items())
    )
    return Offer((resource, device.id), device.physical, device.sharing, counters)


def guessed_offer(name: Name, others: Iterable[str] = ()) -> Offer:
    """For a device that this daemon never offered: its id can be the name of the hardware, as the UUID of a GPU.

    `others` are further possible names of the hardware.
    """
    return Offer(name, tuple(dict.fromkeys((name[1].partition(_SHARE)[0], *others))))


_Group = tuple[str, bool]  # how holds share hardware: `sharing` and `by_nodes`
_Holds = dict[_Group, list[Hold]]


class HoldIndex:
    """Holds, indexed by the names of their hardware.

    Two holds with different names represent all holds that share hardware in the same way: a device is never kept back
    by its own name, and thousands of shares cost no more than two.
    """

    __slots__ = ("_counters", "_exact", "_parts", "_used")

    def __init__(self, holds: Iterable[Hold] = ()) -> None:
        self._exact: dict[str, _Holds] = {}
        self._parts: dict[str, _Holds] = {}  # by the name of each containing device
        self._counters: dict[tuple[str, str], list[Hold]] = {}  # by resource and counter set
        self._used: set[Name] = set()  # names in `_counters`
        for hold in holds:
            self.add(hold)

    def add(self, hold: Hold) -> None:
        for name in hold.offer.physical:
            _add(self._exact.setdefault(name, {}), hold)
            for whole in _wholes(name):
                _add(self._parts.setdefault(whole, {}), hold)
        if hold.offer.counters and hold.offer.name not in self._used:
            self._used.add(hold.offer.name)
            for counter_set in {use.counter_set for use in hold.offer.counters}:
                self._counters.setdefault((hold.offer.name[0], counter_set), []).append(hold)

    def conflict(self, offer: Offer) -> Hold | None:
        """A hold that excludes `offer`; None if there is none."""
        for name in offer.physical:
            for groups in self._related(name):
                for holds in groups.values():
                    for hold in holds:
                        if hold.offer.name != offer.name and hold.excludes(offer):
                            return hold
        return self._exhausted(offer) if offer.counters and self._counters else None

    def _related(self, name: str) -> Iterator[_Holds]:
        for related in (name, *_wholes(name)):
            if related in self._exact:
                yield self._exact[related]
        if name in self._parts:
            yield self._parts[name]

    def _exhausted(self, offer: Offer) -> Hold | None:
        """A hold of a counter set that does not have enough left for `offer`."""
        for use in offer.counters:
            holds = self._counters.get((offer.name[0], use.counter_set), ())
            others = [hold for hold in holds if hold.offer.name != offer.name]
            if others and use.taken + sum(_taken(hold, use) for hold in others) > use.total:
                return others[0]
        return None


def _taken(hold: Hold, use: CounterUse) -> int:
    wanted = use.counter_set, use.counter
    return sum(other.taken for other in hold.offer.counters if (other.counter_set, other.counter) == wanted)


def _wholes(name: str) -> Iterator[str]:
    """The names of the devices that contain `name`, innermost first."""
    while name := name.rpartition("/")[0]:
        yield name


def _add(groups: _Holds, hold: Hold) -> None:
    holds = groups.setdefault((hold.offer.sharing, hold.by_nodes), [])
    if len(holds) < 2 and all(hold.offer.name != known.offer.name for known in holds):
        holds.append(hold)


def conflicting(offers: Mapping[Name, Offer], known: Iterable[Offer]) -> set[Name]:
    """The offers that overlap another of them, or a `known` one, and cannot be held at the same time."""
    index = HoldIndex(Hold(offer, "") for offer in (*offers.values(), *known))
    return {name for name, offer in offers.items() if index.conflict(offer) is not None}
