"""Durations and intervals of the parts of a move."""

import time
from collections.abc import Callable

import msgspec

from plugwright.sdk.settings import Timeouts

__all__ = ["MoveSettings"]


class MoveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings in seconds. `in_flight` covers allocations that the scheduler began before a device got its taint.

    The scheduler keeps a device in mind from its choice until it has written the claim: up to 10 s for the filters of
    one node (DRASchedulerFilterTimeout), and the same for writing if the API server is slow; the rest is for its caches
    to see the taint. An allocation that takes longer, for example behind a volume that is being created, is found when
    its claim is prepared.
    """

    in_flight: float = 30.0
    interval: float = 2.0  # between two reads while a device waits for its holder: the longest time that it is idle
    longest: float = 60.0  # the same for LISTs of claims, whose intervals are doubled up to this
    asked: float = 120.0  # a claim that names a device is expected again within this time; the kubelet takes up to 90
    stored: float = 5.0  # after Allocate; by then the kubelet has stored the answer
    arrival: float = 8.0  # a claim waits this long inside its call for a moving device
    readmission: float = 300.0  # after a reboot; by then pods that held a device are admitted again
    look: float = 1.0  # between two reads of pods while a device leaves the list
    comparison: float = 0.5  # the same for the Node
    bound: float = 1.0  # after the Node has fewer devices; by then pods bound before have reached the kubelet
    counted: float = 15.0  # the Node has fewer devices by then; the kubelet writes its status every 10
    unwanted: float = 5.0  # if no pod takes the last free device of the list for this long, it can leave
    patience: float = 60.0  # a device leaves the list after this at the latest, even if a pod is rejected
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def of(cls, timeouts: Timeouts) -> "MoveSettings":
        """Derives the times that depend on the scheduler from `in_flight`, the longest of them."""
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
