"""Decides when a failed device gets which taint effect, and how many devices can have their pods evicted.

`decide` is the whole policy: grace, budget and flapping, over values. It uses the clock that counts from the node's
boot, so that setting the node's time neither allows nor prevents evictions; only `timeAdded`, for the API server, is
calendar time. `taint_file` stores its state.
"""

import math
from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from plugwright.model import natural_order
from plugwright.sdk.serve_settings import TaintSettings

__all__ = [
    "HOUR",
    "NO_EXECUTE",
    "NO_SCHEDULE",
    "Moment",
    "Observed",
    "TaintDecision",
    "TaintRecord",
    "TaintState",
    "decide",
    "evictions",
    "usual_effect",
]

HOUR = 3600.0
NO_SCHEDULE = "NoSchedule"
NO_EXECUTE = "NoExecute"


class Moment(msgspec.Struct, frozen=True):
    """The present time: seconds since the boot, and since 1970."""

    elapsed: float
    wall: float


class TaintRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The stored state of one device; `added` and `cordoned` are seconds since 1970, the others since the boot."""

    since: float | None = None  # time of the failure; None: it has recovered
    effect: str = ""  # of its taint; empty: no taint
    added: int = 0  # when it got that effect
    executed: float | None = None  # when it last got NoExecute
    cleared: float | None = None  # when it last lost NoExecute
    cordoned: int = 0  # when it got the taint of its cordon; 0: no such taint


class TaintState(msgspec.Struct, frozen=True):
    """The records of all resources of a node, by resource and device id.

    `unknown_until`: earlier evictions could be missing; until then the budget counts as spent.
    """

    resources: Mapping[str, Mapping[str, TaintRecord]] = {}
    unknown_until: float = 0.0

    def of(self, resource: str) -> Mapping[str, TaintRecord]:
        return self.resources.get(resource, {})

    def with_records(self, resource: str, records: Mapping[str, TaintRecord]) -> "TaintState":
        others = {name: stored for name, stored in self.resources.items() if name != resource}
        return replace(self, resources={**others, resource: records} if records else others)


class Observed(msgspec.Struct, frozen=True):
    """The devices of a resource that need a taint: failed ones, with whether they can evict pods, and cordoned ones."""

    resource: str
    failed: Mapping[str, bool] = {}
    cordoned: frozenset[str] = frozenset()


class TaintDecision(msgspec.Struct, frozen=True):
    """The new `state`, the time of the next timed change, and the devices held at NoSchedule with the reasons."""

    state: TaintState
    next_change: float
    held_back: Mapping[str, str]
    granted: frozenset[str]  # devices that get NoExecute now


class _Verdict(msgspec.Struct, frozen=True):
    effect: str
    until: float = math.inf
    held_back: str = ""


def evictions(state: TaintState, now: float) -> list[float]:
    """When devices got NoExecute within the last hour, for all resources together; sorted."""
    times = (record.executed for records in state.resources.values() for record in records.values())
    return sorted(time for time in times if time is not None and now < time + HOUR)


def decide(state: TaintState, observed: Observed, settings: TaintSettings, now: Moment) -> TaintDecision:
    """Decides all effects. Devices that failed first get NoExecute first."""
    before, spent = state.of(observed.resource), evictions(state, now.elapsed)
    records = {device_id: _recovered(record, now) for device_id, record in before.items()}
    until, held_back, granted = math.inf, {}, set()
    for device_id in sorted(observed.failed, key=lambda name: (_since(before.get(name), now), natural_order(name))):
        record = replace(before.get(device_id, TaintRecord()), since=_since(before.get(device_id), now))
        effect = usual_effect(settings)
        verdict = _Verdict(effect)
        if settings.effect == NO_EXECUTE and observed.failed[device_id]:
            verdict = _verdict(record, settings, max(_free_at(spent, settings.budget), state.unknown_until), now)
        records[device_id] = _with_effect(record, verdict.effect, now)
        if verdict.effect == NO_EXECUTE != record.effect:
            spent.append(now.elapsed)
            granted.add(device_id)
        if verdict.held_back:
            held_back[device_id] = verdict.held_back
        until = min(until, verdict.until)
    records = _with_cordons(records, observed.cordoned, now)
    kept = {key: records[key] for key in sorted(records, key=natural_order) if _matters(records[key], now)}
    return TaintDecision(state.with_records(observed.resource, kept), until, held_back, frozenset(granted))


def _verdict(record: TaintRecord, settings: TaintSettings, free_at: float, now: Moment) -> _Verdict:
    """The effect for a device whose pods can be evicted; `free_at` is when the budget next has room."""
    if record.effect == NO_EXECUTE:
        return _Verdict(NO_EXECUTE)
    due = (record.since or 0.0) + settings.grace
    if now.elapsed < due:
        return _Verdict(NO_SCHEDULE, due)
    if record.cleared is not None and now.elapsed < record.cleared + HOUR:
        return _Verdict(NO_SCHEDULE, record.cleared + HOUR, "flapping: it had NoExecute within the last hour")
    if now.elapsed < free_at:
        return _Verdict(NO_SCHEDULE, free_at, f"the budget of {settings.budget} devices an hour is spent")
    return _Verdict(NO_EXECUTE)


def usual_effect(settings: TaintSettings) -> str:
    return NO_SCHEDULE if settings.effect == NO_EXECUTE else settings.effect


def _free_at(spent: list[float], budget: int) -> float:
    """When fewer than `budget` of these times are within the last hour; `spent` is sorted."""
    if budget <= 0:
        return math.inf
    return spent[-budget] + HOUR if len(spent) >= budget else 0.0


def _since(record: TaintRecord | None, now: Moment) -> float:
    return now.elapsed if record is None or record.since is None else record.since


def _with_effect(record: TaintRecord, effect: str, now: Moment) -> TaintRecord:
    """Keeps the time of a taint while key and effect stay, because Kubernetes identifies taints by them."""
    if effect == record.effect:
        return record
    changed = replace(record, effect=effect, added=int(now.wall) if effect else 0)
    if effect == NO_EXECUTE:
        return replace(changed, executed=now.elapsed)
    return replace(changed, cleared=now.elapsed) if record.effect == NO_EXECUTE else changed


def _recovered(record: TaintRecord, now: Moment) -> TaintRecord:
    return replace(_with_effect(record, "", now), since=None)


def _with_cordons(records: Mapping[str, TaintRecord], cordoned: Iterable[str], now: Moment) -> dict[str, TaintRecord]:
    changed = {key: replace(record, cordoned=0) if key not in cordoned else record for key, record in records.items()}
    for device_id in cordoned:
        record = changed.get(device_id, TaintRecord())
        changed[device_id] = replace(record, cordoned=record.cordoned or int(now.wall))
    return changed


def _matters(record: TaintRecord, now: Moment) -> bool:
    recent = (time for time in (record.executed, record.cleared) if time is not None)
    return bool(record.effect or record.cordoned) or any(now.elapsed < time + HOUR for time in recent)
