"""How long each part of a move may take: what is waited for, and how often it is looked at."""

import time
from collections.abc import Callable

import msgspec

from plugwright.sdk.settings import Timeouts

__all__ = ["MoveSettings"]


class MoveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `in_flight` covers allocations that the scheduler has begun when a device gets its taint.

    The scheduler has a device in mind from its choice until it has written the claim: it may take 10 s for the filters
    of one node (DRASchedulerFilterTimeout), and the same again for writing where the API server is slow; the rest is
    for its caches to see the taint. An allocation that takes longer, as behind a volume that is being made, is found
    when its claim is prepared.
    """

    in_flight: float = 30.0
    interval: float = 2.0  # between two readings while a device waits for its holder: it is idle for that long at most
    longest: float = 60.0  # the same for LISTs of claims, whose intervals double up to this
    asked: float = 120.0  # a claim that names a device is expected again within this; the kubelet takes up to 90
    stored: float = 5.0  # after Allocate: the kubelet has stored the answer by then
    arrival: float = 8.0  # a claim waits inside its call for a device that moves
    readmission: float = 300.0  # after a reboot: pods that held a device are admitted again by then
    look: float = 1.0  # between two readings of pods while a device leaves the list
    comparison: float = 0.5  # the same for the Node
    bound: float = 1.0  # after the Node has fewer devices: pods that were bound before have come to the kubelet by then
    counted: float = 15.0  # at the latest then it has; the kubelet writes its status every 10
    unwanted: float = 5.0  # nobody has taken the last free device of the list for this long: it may leave
    patience: float = 60.0  # at the latest then a device leaves the list, whoever is refused
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def of(cls, timeouts: Timeouts) -> "MoveSettings":
        """The times that depend on the scheduler are parts of `in_flight`, which is the longest one that it takes."""
        scale, usual = timeouts.in_flight / cls().in_flight, cls()
        return cls(
            in_flight=timeouts.in_flight,
            interval=min(usual.interval, timeouts.holders),
            look=min(usual.look, timeouts.holders),
            bound=usual.bound * scale,
            counted=usual.counted * scale,
            unwanted=usual.unwanted * scale,
            patience=usual.patience * scale,
        )
