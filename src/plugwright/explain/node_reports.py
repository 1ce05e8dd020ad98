"""Combines NodeReports with Node objects: which devices are not offered, why, and the report after a recovery."""

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from plugwright.explain.world import ApiObject
from plugwright.text import clean

__all__ = ["Unusable", "recovered_report", "reported_devices", "unusable_devices", "unusable_text"]

_WORDS = {"cordoned": "cordoned", "held": "held under another name", "unhealthy": "unhealthy"}
_MOST_REASONS = 3


class Unusable(Struct, frozen=True):
    """A device that the node does not offer. `kind` is `cordoned`, `held` or `unhealthy`."""

    id: str
    kind: str
    reason: str


def reported_devices(report: ApiObject | None, resource: str) -> list[ApiObject]:
    resources: Iterable[ApiObject] = (report or {}).get("resources") or ()
    return [device for entry in resources if entry.get("name") == resource for device in entry.get("devices") or ()]


def unusable_devices(report: ApiObject | None, resource: str) -> list[Unusable]:
    """The devices that the daemon lists as Unhealthy, with the reasons."""
    found = []
    for device in reported_devices(report, resource):
        if device.get("health") == "Healthy" and not device.get("closed"):
            continue
        kind = "cordoned" if device.get("cordoned") else "held" if device.get("closed") else "unhealthy"
        reason = device.get("cordoned") or device.get("closed") or device.get("reason") or device.get("code") or ""
        found.append(Unusable(str(device.get("id")), kind, clean(reason, limit=100)))
    return found


def unusable_text(devices: Sequence[Unusable]) -> str:
    """A summary such as `1 cordoned (fan), 2 unhealthy (Xid 79)`."""
    texts = []
    for kind, words in _WORDS.items():
        reasons = Counter(device.reason for device in devices if device.kind == kind)
        if reasons:
            named = [reason for reason, _ in reasons.most_common(_MOST_REASONS) if reason]
            texts.append(f"{reasons.total()} {words}" + (f" ({'; '.join(named)})" if named else ""))
    return ", ".join(texts)


def recovered_report(report: ApiObject, resource: str, ids: Iterable[str]) -> ApiObject:
    """The report as if these devices were healthy and not cordoned."""
    healthy, wanted = {"health": "Healthy", "cordoned": "", "closed": "", "reason": ""}, set(ids)

    def resource_of(entry: ApiObject) -> ApiObject:
        devices = [
            {**device, **healthy} if str(device.get("id")) in wanted else device
            for device in entry.get("devices") or ()
        ]
        return {**entry, "devices": devices} if entry.get("name") == resource else entry

    return {**report, "resources": [resource_of(entry) for entry in report.get("resources") or ()]}
