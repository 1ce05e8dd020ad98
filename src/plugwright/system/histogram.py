"""A histogram as Prometheus counts: how many observations fell into each bucket, and their sum."""

from bisect import bisect_left

__all__ = ["Histogram"]


class Histogram:
    """`counts` has one number per bucket, and another for values beyond the last bucket."""

    __slots__ = ("buckets", "counts", "total")

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self.buckets, self.counts, self.total = buckets, [0] * (len(buckets) + 1), 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.buckets, value)] += 1
        self.total += value
