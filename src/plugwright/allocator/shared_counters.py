"""The counters that the devices of a pool share, while claims are allocated."""

from collections.abc import Mapping
from decimal import Decimal

from plugwright.allocator.allocated_state import AllocatedState
from plugwright.allocator.published_slices import SliceDevice
from plugwright.allocator.slice_pools import SlicePool

__all__ = ["SharedCounters"]

_Counter = tuple[str, str]  # set, counter


class SharedCounters:
    """The counters of a pool that allocated devices leave free, and the consumption of this attempt."""

    def __init__(self, pool: SlicePool, state: AllocatedState) -> None:
        self._left: dict[_Counter, Decimal] = {
            (name, counter): value
            for name, counters in pool.counter_sets.items()
            for counter, value in counters.items()
        }
        for slice_ in (*pool.slices, *pool.others):
            for device in slice_.devices:
                if device.counters and state.holds(device.id):
                    self._take(device, -1)
        # A counter that is overdrawn already excludes every device with counters in the pool.
        self._overdrawn = next((_text(counter) for counter, left in self._left.items() if left < 0), "")

    def reserve(self, device: SliceDevice) -> str:
        """Takes the device's counters. The counter that is exhausted, empty if all are sufficient."""
        if self._overdrawn:
            return self._overdrawn
        for name, counters in device.counters.items():
            for counter, value in counters.items():
                if self._left[name, counter] < value:
                    return _text((name, counter))
        self._take(device, -1)
        return ""

    def release(self, device: SliceDevice) -> None:
        self._take(device, 1)

    def _take(self, device: SliceDevice, sign: int) -> None:
        for name, counters in device.counters.items():
            self._add(name, counters, sign)

    def _add(self, name: str, counters: Mapping[str, Decimal], sign: int) -> None:
        for counter, value in counters.items():
            self._left[name, counter] += sign * value


def _text(counter: _Counter) -> str:
    return f"counter {counter[1]} of {counter[0]}"
