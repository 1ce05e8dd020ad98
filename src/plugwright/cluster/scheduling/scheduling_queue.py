"""The scheduler's queue: pods to try by priority and age, unschedulable pods, and pods in back-off.

A pod whose write failed is retried after a back-off, as in the real scheduler: from one second to ten.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from plugwright.apiserver.store import ObjectKey
from plugwright.cluster.scheduling.pod_request import PodRequest

__all__ = ["SchedulingQueue"]


@dataclass(slots=True)
class SchedulingQueue:
    """`first` and `longest` are the seconds of the back-off; the caller provides all times."""

    first: float = 1.0
    longest: float = 10.0
    _active: dict[ObjectKey, PodRequest] = field(default_factory=dict)
    _order: list[tuple[int, int, ObjectKey]] = field(default_factory=list)  # includes keys that have left `_active`
    _added: int = 0
    _unschedulable: dict[ObjectKey, PodRequest] = field(default_factory=dict)
    _dependent: dict[ObjectKey, PodRequest] = field(default_factory=dict)  # a subset of them
    _due: dict[ObjectKey, tuple[float, PodRequest]] = field(default_factory=dict)
    _failures: dict[ObjectKey, int] = field(default_factory=dict)

    @property
    def unschedulable(self) -> Mapping[ObjectKey, PodRequest]:
        """The currently unschedulable pods."""
        return self._unschedulable

    @property
    def dependent(self) -> Mapping[ObjectKey, PodRequest]:
        """Those of them depending on the placement of other pods."""
        return self._dependent

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._active or key in self._unschedulable or key in self._due

    def add(self, key: ObjectKey, request: PodRequest) -> None:
        self._leave_unschedulable(key)
        if key not in self._active:
            self._added += 1
            heapq.heappush(self._order, (-request.priority, self._added, key))
        self._active[key] = request

    def pop(self, now: float) -> tuple[ObjectKey, PodRequest] | None:
        """The next pod to try, removed from the queue."""
        for key in [key for key, (due, _) in self._due.items() if due <= now]:
            self.add(key, self._due.pop(key)[1])
        while self._order:
            key = heapq.heappop(self._order)[2]
            if key in self._active:
                return key, self._active.pop(key)
        return None

    def wait(self, now: float) -> float | None:
        """The seconds until the next pod to try: 0 if there is one now, None if time makes no difference."""
        if self._active:
            return 0.0
        return max(0.0, min(due for due, _ in self._due.values()) - now) if self._due else None

    def add_unschedulable(self, key: ObjectKey, request: PodRequest) -> None:
        self._unschedulable[key] = request
        if request.pods.has_rules:
            self._dependent[key] = request
        self._failures.pop(key, None)

    def back_off(self, key: ObjectKey, request: PodRequest, now: float) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        self._leave_unschedulable(key)
        self._due[key] = (now + min(self.longest, self.first * 2 ** min(failures - 1, 30)), request)

    def _leave_unschedulable(self, key: ObjectKey) -> None:
        self._unschedulable.pop(key, None)
        self._dependent.pop(key, None)

    def retry(self, keys: Iterable[ObjectKey]) -> None:
        for key in keys:
            self.add(key, self._unschedulable[key])

    def remove(self, key: ObjectKey) -> None:
        for known in (self._active, self._unschedulable, self._dependent, self._due, self._failures):
            known.pop(key, None)

    def clear(self) -> None:
        for known in (self._active, self._unschedulable, self._dependent, self._due, self._failures):
            known.clear()
        self._order.clear()
