"""A histogram as Prometheus counts: how many observations fell into each bucket, and their sum."""

from bisect import bisect_left
from dataclasses import dataclass, field

__all__ = ["Histogram"]


@dataclass(slots=True)
class Histogram:
    """`counts` has one number per bucket and one more for what lies beyond the last."""

    buckets: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.buckets) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.buckets, value)] += 1
        self.total += value
