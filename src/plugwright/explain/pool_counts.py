"""The devices of pools as the API server has counted them, with the claims of every namespace.

An account that may not list the claims of other namespaces does not know which devices they hold. A completed
ResourcePoolStatusRequest (alpha in Kubernetes 1.36 and 1.37) has the number of a pool's allocated devices.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

__all__ = ["PoolCount", "count_command", "counted_texts", "read_counts", "uncounted_drivers"]

_MOST_TEXTS = 5
_COUNTS = ("totalDevices", "allocatedDevices", "availableDevices")


class PoolCount(Struct, frozen=True):
    """A pool in the newest completed request that names it; `time` is when the devices were counted."""

    driver: str
    pool: str
    generation: int
    total: int
    allocated: int
    available: int
    request: str
    time: str = ""

    @property
    def text(self) -> str:
        counts = f"{self.available} of {self.total} devices available, {self.allocated} allocated"
        when = f" of {self.time}" if self.time else ""
        return f"{counts} in pool {self.pool} of {self.driver} (ResourcePoolStatusRequest {self.request}{when})"


def read_counts(requests: Iterable[Mapping[str, Any]]) -> tuple[PoolCount, ...]:
    """The counted pools. A pool with an error is left out, and so is a request without an answer."""
    newest: dict[tuple[str, str], PoolCount] = {}
    for request in sorted(requests, key=_counted_at):
        for pool in (request.get("status") or {}).get("pools") or ():
            counts: list[Any] = [pool.get(name) for name in _COUNTS]
            if pool.get("validationError") or not all(isinstance(count, int) for count in counts):
                continue
            driver, name = str(pool.get("driver")), str(pool.get("poolName"))
            total, allocated, available = counts
            newest[driver, name] = PoolCount(
                driver, name, int(pool.get("generation") or 0), total, allocated, available,
                str(request["metadata"].get("name")), _counted_at(request),
            )  # fmt: skip
    return tuple(newest[key] for key in sorted(newest))


def _counted_at(request: Mapping[str, Any]) -> str:
    conditions = (request.get("status") or {}).get("conditions") or ()
    changes = [str(condition.get("lastTransitionTime") or "") for condition in conditions]
    return max(changes, default="") or str((request.get("metadata") or {}).get("creationTimestamp") or "")


def counted_texts(counts: Collection[PoolCount], is_free_first: bool = False) -> tuple[str, ...]:
    """A line for each pool, the fullest first."""
    ordered = sorted(counts, key=lambda count: -count.available if is_free_first else count.available)
    lines = [count.text for count in ordered[:_MOST_TEXTS]]
    more = len(ordered) - len(lines)
    return (*lines, *([f"{more} more pools are in ResourcePoolStatusRequests"] if more else ()))


def uncounted_drivers(counts: Iterable[PoolCount], slices: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The drivers with a pool that no count covers."""
    known = {(count.driver, count.pool, count.generation) for count in counts}
    pools: dict[tuple[str, str], int] = {}
    for published in slices:
        spec = published.get("spec") or {}
        pool = spec.get("pool") or {}
        key = str(spec.get("driver")), str(pool.get("name"))
        pools[key] = max(pools.get(key, 0), int(pool.get("generation") or 0))
    yield from dict.fromkeys(
        driver for (driver, pool), version in pools.items() if (driver, pool, version) not in known
    )


def count_command(driver: str) -> str:
    """Creates a request for the pools of a driver, which we never do."""
    request = {
        "apiVersion": "resource.k8s.io/v1alpha3", "kind": "ResourcePoolStatusRequest",
        "metadata": {"generateName": "count-"}, "spec": {"driver": driver, "limit": 1000},
    }  # fmt: skip
    return f"echo '{json.dumps(request)}' | kubectl create -f -"
