"""Devices given out by finished or running Allocate calls that no checkpoint of the kubelet accounts for yet."""

from collections.abc import Callable, Collection, Iterable, Mapping

from plugwright.sdk.holdings.overlaps import Name
from plugwright.sdk.holdings.records import Given

__all__ = ["Allocations", "EarlierRun", "is_accounted_for", "outstanding"]

_STORED_LATE = 5.0  # seconds; a checkpoint written this long after an answer to Allocate contains it, if any will
_LONGEST_CALL = 60.0  # seconds; every call of Allocate has ended by then


class Allocations:
    """`answered` contains the time at which each Allocate was answered or began; `open` the calls in progress."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.answered: dict[Name, float] = {}
        self.open: dict[Name, float | None] = {}  # with the time of the previous answer
        self._clock = clock

    def begin(self, name: Name) -> None:
        self.open[name] = self.answered.get(name)
        self.answered[name] = self._clock()

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

    def account(self, stored: Collection[Name], written: float) -> None:
        """Forgets the devices that a checkpoint accounts for."""
        self.answered = {
            name: answered
            for name, answered in self.answered.items()
            if name in self.open or not is_accounted_for(answered, written, is_stored=name in stored)
        }

    def is_late(self) -> bool:
        """Whether a new checkpoint could show that an answered Allocate has ended."""
        answered = self._clock() - _STORED_LATE
        return any(when < answered for name, when in self.answered.items() if name not in self.open)

    def given(self, names: Collection[Name]) -> tuple[Given, ...]:
        """The given-out devices among `names`, for the other releases on the node."""
        found = sorted(name for name in self.answered if name in names) if names else ()
        return tuple(Given(name, self.answered[name] + _LONGEST_CALL * (name in self.open)) for name in found)


class EarlierRun:
    """The allocations of the process that served before: the checkpoint can still miss the last ones.

    The kubelet stores the answer to an Allocate only after all resources of the container are allocated, but it writes
    its checkpoint after each device list (4.31): one that is later than this run accounts for them. `is_lost` if it is
    not known what that process offered; `changed` are devices that it offered in another way.
    """

    def __init__(self, ended: float, *, is_lost: bool, changed: Iterable[Name] = ()) -> None:
        self.is_lost, self.changed = is_lost, set(changed)
        self._ended, self._written = ended, 0.0

    @property
    def is_accounted_for(self) -> bool:
        return self._written > self._ended

    def account(self, written: float) -> None:
        """Takes the time at which the checkpoint was written."""
        self._written = written
        if self.is_accounted_for:
            self.is_lost, self.changed = False, set()


def outstanding(given: Mapping[Name, float], stored: Collection[Name], written: float) -> set[Name]:
    """The devices of other releases that no checkpoint accounts for."""
    return {
        name for name, answered in given.items() if not is_accounted_for(answered, written, is_stored=name in stored)
    }


def is_accounted_for(answered: float, written: float, *, is_stored: bool) -> bool:
    """Whether a checkpoint written at that time shows the outcome of an answered Allocate."""
    return written > answered if is_stored else written > answered + _STORED_LATE
