"""Devices given out by finished or running Allocate calls that no checkpoint of the kubelet accounts for yet.

The kubelet stores the answers of a container together, after the last one (3.45), which another plugin can delay, and
writes its checkpoint then. But it also writes it after each device list (4.31): a checkpoint without a device that was
given out proves nothing yet. It does if it was written after pod-resources has named the device's pod, after a later
call for the same resource, because that is for another container and the kubelet admits one after the other, or after
so long that every call has ended.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping

from plugwright.sdk.holdings.overlaps import Name
from plugwright.sdk.holdings.records import Given

__all__ = ["Allocations", "EarlierRun", "is_accounted_for", "outstanding"]

_STORED = 5.0  # seconds; this long after an answer to Allocate, the kubelet has usually stored it
_LONGEST_CALL = 60.0  # seconds; every call of Allocate has ended by then


class Allocations:
    """`answered` contains the time at which each Allocate was answered or began; `open` the calls in progress."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.answered: dict[Name, float] = {}
        self.open: dict[Name, float | None] = {}  # with the time of the previous answer
        self._began: dict[Name, float] = {}
        self._over: dict[Name, float] = {}  # when it was known that the container has all its devices
        self._clock = clock

    def begin(self, names: Collection[Name]) -> None:
        """Begins a call for devices of one resource."""
        now, resources = self._clock(), {name[0] for name in names}
        for name in self.answered.keys() - self.open.keys() - self._over.keys():
            if name[0] in resources:
                self._over[name] = now
        for name in names:
            self.open[name] = self.answered.get(name)
            self.answered[name] = self._began[name] = now
            self._over.pop(name, None)

    def end(self, name: Name, *, is_answered: bool) -> bool:
        """Ends a call; returns whether the device is free, because the call has failed."""
        before = self.open.pop(name, None)
        if is_answered:
            self.answered[name] = self._clock()
        elif before is not None:
            self.answered[name] = before
        else:
            self.answered.pop(name, None)
            return True
        return False

    def take_listed(self, names: Collection[Name], asked: float) -> None:
        """Takes the devices in a response to List, which was `asked` for at that time."""
        for name in self.answered.keys() & names - self.open.keys():
            if self.answered[name] < asked:
                self._over.setdefault(name, self._clock())

    def account(self, stored: Collection[Name], written: float) -> None:
        """Forgets the devices that a checkpoint accounts for."""
        self.answered = {
            name: answered
            for name, answered in self.answered.items()
            if name in self.open or not self._is_accounted_for(name, written, is_stored=name in stored)
        }
        self._began = {name: when for name, when in self._began.items() if name in self.answered}
        self._over = {name: when for name, when in self._over.items() if name in self.answered}

    def is_late(self) -> bool:
        """Whether a new checkpoint could account for an answered Allocate."""
        answered = self._clock() - _STORED
        return any(when < answered for name, when in self.answered.items() if name not in self.open)

    def _is_accounted_for(self, name: Name, written: float, *, is_stored: bool) -> bool:
        if is_stored:  # the kubelet forgets ended pods before it calls (3.58): the record is that of this call
            return written > self._began[name]
        is_over = self._over.get(name, math.inf) < written
        return is_over or is_accounted_for(self.answered[name], written, is_stored=False)

    def given(self, names: Collection[Name]) -> tuple[Given, ...]:
        """The given-out devices among `names`, for the other releases on the node."""
        found = sorted(name for name in self.answered if name in names) if names else ()
        return tuple(Given(name, self.answered[name] + _LONGEST_CALL * (name in self.open)) for name in found)


class EarlierRun:
    """The allocations of the process that served before: the checkpoint can still miss the last ones.

    `is_lost` if it is not known what that process offered; `changed` are devices that it offered in another way.
    """

    def __init__(self, ended: float, *, is_lost: bool, changed: Iterable[Name] = ()) -> None:
        self.is_lost, self.changed = is_lost, set(changed)
        self.is_accounted_for = False
        self._ended, self._proof = ended, ended + _LONGEST_CALL  # a checkpoint later than the second is proof
        self._called: set[str] = set()

    def begin(self, resource: str, now: float) -> None:
        """An Allocate begins. The first one of a resource can be for a container for which that process answered."""
        if resource in self._called:
            self._proof = min(self._proof, now)
        self._called.add(resource)

    def account(self, written: float) -> None:
        """Takes the time at which the checkpoint was written."""
        if written > self._proof:
            self.is_accounted_for, self.is_lost, self.changed = True, False, set()

    def is_doubtful(self, resource: str, device_ids: Iterable[str]) -> bool:
        """Whether an unknown allocation by that process could exclude one of these devices."""
        return bool(self.changed) and any((resource, device_id) in self.changed for device_id in device_ids)

    def is_over(self, now: float) -> bool:
        """Whether every call to that process has ended by now."""
        return now > self._ended + _LONGEST_CALL


def outstanding(given: Mapping[Name, float], stored: Collection[Name], written: float) -> set[Name]:
    """The devices of other releases that no checkpoint accounts for."""
    return {
        name for name, answered in given.items() if not is_accounted_for(answered, written, is_stored=name in stored)
    }


def is_accounted_for(answered: float, written: float, *, is_stored: bool) -> bool:
    """Whether a checkpoint written at that time shows the outcome of an answered Allocate."""
    return written > (answered if is_stored else answered + _LONGEST_CALL)
