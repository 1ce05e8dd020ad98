"""Counters of one resource, for `status` and for `prometheus`."""

import time
from collections import Counter

from plugwright.system.histogram import Histogram

__all__ = ["BUCKETS", "ResourceMetrics"]

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class ResourceMetrics:
    """The counters of one resource since the daemon's start."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()  # (method, outcome)
        self.failures: dict[str, tuple[float, str]] = {}  # by method: time and reason, until a call succeeds
        self.durations: dict[str, Histogram] = {}
        self.registrations: Counter[str] = Counter()  # by outcome
        self.discovery_failures = 0
        self.lists_refused = 0
        self.restarts = 0  # of a failed part: discovery, registration, removed devices
        self.abandoned = 0  # discover() calls that did not end when they were cancelled

    def note_failure(self, method: str, reason: str) -> None:
        """Keeps the reason of a failed call until a call of this method succeeds."""
        self.failures[method] = time.time(), reason

    def count_call(self, method: str, outcome: str, seconds: float) -> None:
        """Counts one call of the kubelet: `ok`, `refused` (its fault), `failed` (ours) or `cancelled`."""
        self.calls[method, outcome] += 1
        if self.failures and outcome == "ok":
            self.failures.pop(method, None)
        durations = self.durations.get(method)
        if durations is None:
            durations = self.durations[method] = Histogram(BUCKETS)
        durations.observe(seconds)
