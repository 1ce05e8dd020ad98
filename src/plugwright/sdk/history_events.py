"""The events of a device's history, computed from the previous and the current facts. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from plugwright.system.latest import Signal

__all__ = ["DeviceFacts", "DeviceHistory", "FactKey", "HistoryEvent", "HolderFacts", "changes", "replayed"]

FactKey: TypeAlias = tuple[str, str]  # resource and device id


class HistoryEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """`kind` is allocated, released, health, cordoned or uncordoned."""

    time: datetime
    kind: str
    resource: str
    device: str
    api: str = ""  # of the holder: device-plugin or dra
    namespace: str = ""
    pod: str = ""
    container: str = ""
    claim: str = ""
    health: str = ""
    reason: str = ""
    code: str = ""
    by: str = ""  # author of the cordon


class DeviceHistory(Protocol):
    """Implemented by `history`, which a daemon without a state directory does not load."""

    @property
    def latest(self) -> Iterable[HistoryEvent]:
        """The last events, from the oldest to the newest."""
        ...

    @property
    def noticed(self) -> Signal:
        """Notified when `latest` has new events."""
        ...

    async def events(self, since: float) -> list[HistoryEvent]: ...


class HolderFacts(msgspec.Struct, frozen=True, kw_only=True):
    api: str
    namespace: str = ""
    pod: str = ""
    container: str = ""  # empty in journals of earlier versions
    claim: str = ""

    @property
    def is_named(self) -> bool:
        return bool(self.pod or self.claim)

    def is_same(self, other: "HolderFacts") -> bool:
        """Whether both may be the same holder: an unknown container is any of the pod's."""
        if self.container and other.container:
            return self == other
        return replace(self, container="") == replace(other, container="")


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    health: str = "Healthy"
    reason: str = ""
    code: str = ""
    cordon: str = ""
    cordoned_by: str = ""
    since: float = 0.0  # of health and reason
    holders: frozenset[HolderFacts] = frozenset()


def changes(
    before: Mapping[FactKey, DeviceFacts], now: Mapping[FactKey, DeviceFacts], time: float, *, is_complete: bool
) -> Iterator[HistoryEvent]:
    """The events between two states. A device not in `before` was healthy and free. Releases need all holders."""
    for (resource, device), facts in now.items():
        earlier = before.get((resource, device), DeviceFacts())
        about = HistoryEvent(time=_moment(time), kind="", resource=resource, device=device)
        if facts.cordon != earlier.cordon:
            kind = "cordoned" if facts.cordon else "uncordoned"
            yield replace(about, kind=kind, reason=facts.cordon, by=facts.cordoned_by)
        if (facts.health, facts.code) != (earlier.health, earlier.code):  # reasons can contain a temperature
            happened = _moment(facts.since) if facts.since and not facts.cordon else about.time
            yield replace(
                about, kind="health", time=happened, health=facts.health, reason=facts.reason, code=facts.code
            )
        for holder in _missing(earlier.holders, facts.holders) if is_complete else ():
            yield replace(about, kind="released", **msgspec.structs.asdict(holder))
        for holder in _missing(facts.holders, earlier.holders):
            yield replace(about, kind="allocated", **msgspec.structs.asdict(holder))


def replayed(events: Iterable[HistoryEvent]) -> dict[FactKey, DeviceFacts]:
    """The facts after the last event."""
    known: dict[FactKey, DeviceFacts] = {}
    for event in events:
        key = event.resource, event.device
        facts = known.get(key, DeviceFacts())
        holder = HolderFacts(
            api=event.api, namespace=event.namespace, pod=event.pod, container=event.container, claim=event.claim
        )
        match event.kind:
            case "health":
                facts = replace(facts, health=event.health, reason=event.reason, code=event.code)
            case "cordoned" | "uncordoned":
                facts = replace(facts, cordon=event.reason, cordoned_by=event.by)
            case "allocated":
                facts = replace(facts, holders=facts.holders | {holder})
            case "released":
                others = frozenset(other for other in facts.holders if not holder.is_same(other))
                facts = replace(facts, holders=others)
        known[key] = facts
    return known


def _missing(holders: Iterable[HolderFacts], others: Iterable[HolderFacts]) -> list[HolderFacts]:
    """The holders missing from the others, by name."""
    found = [holder for holder in holders if not any(map(holder.is_same, others))]
    return sorted(found, key=lambda holder: (holder.namespace, holder.pod, holder.container, holder.claim, holder.api))


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(round(seconds, 3), UTC)
