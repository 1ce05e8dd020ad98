"""Why a claim gets no devices: one structured reason per request and device, or per pool or request as a whole."""

import re
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

__all__ = ["Reason", "ReasonKind", "found_together", "summary"]

_FOUND = re.compile(r"(\d+) devices requested, at most (\d+) found together")

ReasonKind = Literal[
    "SelectorFalse",
    "SelectorError",
    "Tainted",
    "AlreadyAllocated",
    "UsedByOtherRequest",
    "CounterExhausted",
    "InsufficientCapacity",
    "ConstraintViolated",
    "NodeMismatch",
    "PoolIncomplete",
    "PoolInvalid",
    "FeatureDisabled",
    "TooFewDevices",
    "TooManyDevices",
]


class Reason(Struct, frozen=True, omit_defaults=True):
    """Why one device is not allocated. A reason without `device` concerns the pool, one without `pool` the request.

    `request` is `main/sub` for a subrequest. It is empty in reasons that hold for every request.
    """

    kind: ReasonKind
    claim: str = ""
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    message: str = ""


def found_together(reasons: Iterable[Reason]) -> tuple[int, int] | None:
    """The requested devices and the most that were found together, of the request that failed first."""
    for reason in reasons:
        if reason.kind == "TooFewDevices" and (match := _FOUND.match(reason.message)):
            return int(match[1]), int(match[2])
    return None


def summary(reasons: Iterable[Reason]) -> str:
    """One line for people: how many devices each kind of reason excludes."""
    counts: dict[str, set[tuple[str, str, str]]] = {}
    for reason in reasons:
        counts.setdefault(reason.kind, set()).add((reason.driver, reason.pool, reason.device))
    return ", ".join(f"{len(devices)} {kind}" for kind, devices in sorted(counts.items()))
