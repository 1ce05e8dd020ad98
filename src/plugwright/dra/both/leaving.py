"""Devices that leave the kubelet's list: when they can leave, and when pods need them back.

The scheduler uses the Node's allocatable, which the kubelet writes up to 10 s after a change of its list. A pod bound
in that time is rejected if no device is left for it. So a device leaves the list while a pod holds it, or while another
device is free; and until the Node shows fewer devices, it returns when pods have taken all the others.

This is an optimisation: it avoids rejected pods, and ends after a while. Double allocation is prevented elsewhere.
"""

from collections.abc import Callable, Collection

import msgspec
from msgspec.structs import replace

from plugwright.dra.both.move_settings import MoveSettings
from plugwright.dra.both.states import Unit

__all__ = ["Leaving"]


class _LeavingUnit(msgspec.Struct, frozen=True):
    """Times by the clock. `lacking_since`: the unit is free, and no other unit is free for incoming pods."""

    asked: float
    entry: int  # of the unit into its state; the following fields refer to that state
    entered: float
    lacking_since: float | None
    was_lacking: bool  # at the last observation in the previous state, which decided
    uncounted_since: float | None = None


class Leaving:
    """The units that should leave the list; `is_careful` is False if all devices should leave it."""

    def __init__(self, settings: MoveSettings, is_careful: Callable[[], bool]) -> None:
        self.is_careful = is_careful
        self._settings, self._clock = settings, settings.clock
        self._leaving: dict[Unit, _LeavingUnit] = {}
        self._compared = float("-inf")

    def keep(self, units: Collection[Unit]) -> None:
        """Forgets all other units, which stay or have left."""
        self._leaving = {unit: record for unit, record in self._leaving.items() if unit in units}

    def look(self, unit: Unit, entry: int, *, lacking: bool) -> None:
        """Records an observation of a unit in the state of this entry."""
        now = self._clock()
        before = self._leaving.get(unit)
        since = now if lacking else None
        if before is None:
            self._leaving[unit] = _LeavingUnit(now, entry, now, since, was_lacking=lacking)
        elif before.entry != entry:
            was_lacking = before.lacking_since is not None
            self._leaving[unit] = _LeavingUnit(before.asked, entry, now, since, was_lacking)
        elif lacking and before.lacking_since is not None:
            return
        else:
            self._leaving[unit] = replace(before, lacking_since=since)

    def may_leave(self, unit: Unit, entry: int) -> bool:
        """Whether a listed unit can be withheld; also if no pod has taken it for a while."""
        found = self._found(unit, entry)
        if found is None:
            return not self.is_careful()
        now, since = self._clock(), found.lacking_since
        return since is None or now - since >= self._settings.unwanted or now - found.asked >= self._settings.patience

    def is_needed(self, unit: Unit, entry: int) -> bool:
        """Whether a withheld unit should be listed again: bound pods have taken all others, or could now."""
        found = self._found(unit, entry)
        if found is None or found.lacking_since is None or found.was_lacking or not self.is_counted(unit, entry):
            return False
        return self._clock() - found.asked < self._settings.patience

    def is_counted(self, unit: Unit, entry: int) -> bool:
        """Whether the scheduler could still bind pods to a withheld unit."""
        found = self._found(unit, entry)
        if found is None:
            return self.is_careful()
        now, since = self._clock(), found.uncounted_since
        seen = since is not None and now - since >= self._settings.bound
        return not seen and now - found.entered < self._settings.counted

    def is_comparison_due(self) -> bool:
        """Whether the Node should be read again, which is not necessary for every observation."""
        now = self._clock()
        if now - self._compared < self._settings.comparison:
            return False
        self._compared = now
        return True

    def compare(self, allocatable: int, offered: int) -> None:
        """Compares the Node's allocatable with the listed devices: unless higher, it counts no withheld device."""
        now = self._clock()
        for unit, found in self._leaving.items():
            if allocatable > offered:
                self._leaving[unit] = replace(found, uncounted_since=None)
            elif found.uncounted_since is None:
                self._leaving[unit] = replace(found, uncounted_since=now)

    def _found(self, unit: Unit, entry: int) -> _LeavingUnit | None:
        found = self._leaving.get(unit)
        return found if found is not None and found.entry == entry and self.is_careful() else None
