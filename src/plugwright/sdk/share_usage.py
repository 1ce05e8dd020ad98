"""The holders' use of their shares of a device, for the NodeReport, `status` and metrics.

A measuring plugin implements `usage()`, which answers from memory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from plugwright.sdk.holdings.holding import Holding, Holdings
from plugwright.text import clean

__all__ = ["SHARE_LABELS", "HeldShare", "ShareUsage", "UsageOf", "incidents", "share_metrics", "usages"]

HeldShare = tuple[str, str]  # device id, and the id of a claim's part of the device


class ShareUsage(msgspec.Struct, frozen=True, kw_only=True):
    """A container's or claim's use of one device, in bytes; None if unknown.

    `used`, `peak` and `refusals` are counted by the limiter, which runs in the tenant's processes; `driver` is counted
    by the driver, and decides whether the limit is exceeded.
    """

    of: str  # identity of the physical device
    limit: int
    at: float  # time of the measurement, in seconds since the epoch
    used: int | None = None
    peak: int | None = None  # the highest count
    refusals: int | None = None  # rejected requests for memory
    processes: int | None = None
    driver: int | None = None
    driver_peak: int | None = None  # the highest measurement
    exceeded: bool = False  # at present
    incidents: int = 0  # how often the limit was exceeded again

    @property
    def incident(self) -> str:
        """How the limit was exceeded, as text; empty if it never was."""
        if not self.incidents:
            return ""
        when = "exceeds its share now" if self.exceeded else "has exceeded its share"
        return f"{when}: at most {_mebibytes(self.driver_peak)} of {_mebibytes(self.limit)} MiB of {self.of}"


SHARE_LABELS = ("resource", "of", "device", "namespace", "pod", "container", "claim")
_METRICS = {
    "plugwright_share_limit_bytes": ("Memory limit of a container or claim on one device", "limit"),
    "plugwright_share_used_bytes": ("Memory that it uses, by the limiter's count", "used"),
    "plugwright_share_peak_bytes": ("The most that the limiter counted at once", "peak"),
    "plugwright_share_driver_bytes": ("Memory that it uses, by the driver's count", "driver"),
    "plugwright_share_exceeded": ("Whether the driver counts more than the limit", "exceeded"),
    "plugwright_share_refusals_total": ("Requests for memory beyond the share", "refusals"),
    "plugwright_share_incidents_total": ("How often the driver counted more than the limit", "incidents"),
}
UsageOf = Callable[[Sequence[HeldShare]], Sequence[ShareUsage]]


def usages(resource: str, holdings: Holdings, usage: UsageOf) -> Iterator[tuple[Sequence[Holding], ShareUsage]]:
    """For each container and claim, the holdings of the resource under one limit, and the use of one device.

    Devices allocated together have one limit. Others, such as those of two requests, are looked up separately.
    """
    held: dict[object, list[Holding]] = {}
    for holding in holdings.holdings:
        if holding.key.resource == resource and not holding.admin_access:
            key = holding.key.api, holding.pod_uid, holding.container, holding.claim_uid or holding.claim
            held.setdefault(key, []).append(holding)
    for group in held.values():
        together = [group] if usage(_shares(group)) else [[holding] for holding in group]
        yield from ((holders, measured) for holders in together for measured in usage(_shares(holders)))


def incidents(resource: str, holdings: Holdings, usage: UsageOf) -> list[str]:
    """The shares now or formerly over their limit, each with the name of its pod or claim."""
    found = ((holders[0].holder, measured.incident) for holders, measured in usages(resource, holdings, usage))
    return sorted(clean(f"{holder} {incident}") for holder, incident in found if incident)


def share_metrics(
    resources: Iterable[tuple[str, UsageOf]], holdings: Holdings
) -> Iterator[tuple[str, str, list[tuple[list[str], int]]]]:
    """Name, help and samples of each metric, for the holders known to the ledger; an unknown value has no sample."""
    found = [
        ([clean(text) for text in _labels(resource, holders[0], measured)], measured)
        for resource, usage in resources
        for holders, measured in usages(resource, holdings, usage)
    ]
    for name, (text, field) in _METRICS.items():
        values = [(labels, getattr(measured, field)) for labels, measured in found]
        yield name, text, [(labels, int(value)) for labels, value in values if value is not None]


def _labels(resource: str, holding: Holding, usage: ShareUsage) -> tuple[str, ...]:
    names = holding.namespace, holding.pod, holding.container, holding.claim
    return resource, usage.of, holding.key.device_id, *names


def _shares(holdings: Sequence[Holding]) -> list[HeldShare]:
    return [(holding.key.device_id, holding.share_id) for holding in holdings]


def _mebibytes(size: int | None) -> str:
    return "an unknown number" if size is None else str(size // 2**20)
