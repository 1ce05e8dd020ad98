"""Which API offers a device, and how it moves to the other: decided here over values, done by `split`.

A device is in one of five phases. In `LISTED` the kubelet may allocate it, in `PUBLISHED` the scheduler may; in the
others no pod may, and its holder keeps it:

    LISTED ⇄ WITHHELD → PUBLISHED        Unhealthy in the list; published when no pod holds it or was bound to it
    PUBLISHED → TAINTED → WITHDRAWN → LISTED    NoSchedule; withdrawn when no claim has it; listed when that is seen

A claim that names a device of the other side has it withheld, and then published with the taint: that claim gets it,
others do not, and at its end the device goes back. What both APIs hold, or what is not known, is `DISPUTED`: offered by
neither until one holder is left.

Devices that are the same hardware, as a whole and its parts, are one unit and move together.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from plugwright.model import Device, natural_order
from plugwright.sdk.serve_settings import Api

__all__ = ["Evidence", "Phase", "Placement", "balanced", "next_phase", "reconsidered", "units"]


class Phase(StrEnum):
    LISTED = "listed"
    WITHHELD = "withheld"
    PUBLISHED = "published"
    TAINTED = "tainted"
    WITHDRAWN = "withdrawn"
    DISPUTED = "disputed"

    @property
    def offered_by(self) -> Api | None:
        return {Phase.LISTED: Api.DEVICE_PLUGIN, Phase.PUBLISHED: Api.DRA}.get(self)

    @property
    def in_slice(self) -> bool:
        return self in (Phase.PUBLISHED, Phase.TAINTED)


@dataclass(frozen=True, slots=True)
class Placement:
    """`target` is the side that the operator, or with `by_policy` the policy, wants the device on."""

    phase: Phase
    target: Api
    by_policy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known about one unit; None is not known.

    `asked`: a claim names one of its devices and is not prepared yet. `pinned`: a pod that held it before a reboot may
    still have to be admitted again, for which the device must be Healthy. `in_flight_over`: the taint has been in the
    slice for as long as an allocation takes that the scheduler had begun before. `may_leave`, `needed` and `counted`
    are those of `departures`.
    """

    asked: bool = False
    prepared: bool = False
    pinned: bool = False
    held_by_pod: bool | None = None
    held_by_claim: bool | None = None
    in_flight_over: bool = False
    published: bool | None = None
    may_leave: bool = True
    needed: bool = False
    counted: bool = False


def next_phase(placement: Placement, evidence: Evidence) -> Phase:
    """The phase that follows, or the same one where something must be known or must end first."""
    if placement.phase is Phase.DISPUTED:
        return _settled(_in_slice(placement), evidence)
    if placement.phase in (Phase.LISTED, Phase.WITHHELD):
        return _next_in_list(placement, evidence)
    return _next_in_slice(placement, evidence)


def _next_in_list(placement: Placement, evidence: Evidence) -> Phase:
    wanted, claimed = placement.target is Api.DRA or evidence.asked, evidence.asked or evidence.prepared
    match placement.phase:
        case Phase.LISTED if evidence.prepared:
            return Phase.DISPUTED
        case Phase.LISTED if wanted and not evidence.pinned and (evidence.asked or evidence.may_leave):
            return Phase.WITHHELD
        case Phase.WITHHELD if not claimed and (evidence.needed or not wanted):
            return Phase.LISTED
        case Phase.WITHHELD if evidence.held_by_pod is False and (claimed or not evidence.counted):
            return _in_slice(placement)
        case Phase.WITHHELD if evidence.held_by_pod and evidence.prepared:
            return Phase.DISPUTED
    return placement.phase


def _next_in_slice(placement: Placement, evidence: Evidence) -> Phase:
    claimed = evidence.asked or evidence.prepared
    if placement.target is Api.DRA or (placement.phase is Phase.WITHDRAWN and claimed):
        return _in_slice(placement)
    match placement.phase:
        case Phase.PUBLISHED:
            return Phase.TAINTED
        case Phase.TAINTED if not claimed and evidence.in_flight_over and evidence.held_by_claim is False:
            return Phase.WITHDRAWN
        case Phase.WITHDRAWN if evidence.published is False:
            return Phase.LISTED
    return placement.phase


def _in_slice(placement: Placement) -> Phase:
    """With the taint, only the claim that has named it gets it."""
    return Phase.PUBLISHED if placement.target is Api.DRA else Phase.TAINTED


def _settled(in_slice: Phase, evidence: Evidence) -> Phase:
    if evidence.held_by_pod and not evidence.prepared:
        return Phase.WITHHELD
    if evidence.held_by_pod is False and evidence.prepared:
        return in_slice
    if evidence.held_by_pod is False and evidence.held_by_claim is not None:
        return in_slice if evidence.held_by_claim else Phase.WITHHELD
    return Phase.DISPUTED


def reconsidered(placement: Placement, evidence: Evidence) -> Placement:
    """The policy moves what is free, and waits for no holder: a device that turns out to be wanted goes back."""
    claimed = evidence.asked or evidence.prepared or evidence.held_by_claim
    if placement.by_policy and placement.phase is Phase.WITHHELD and (evidence.held_by_pod or evidence.needed):
        return Placement(placement.phase, Api.DEVICE_PLUGIN)
    if placement.by_policy and placement.phase is Phase.TAINTED and claimed:
        return Placement(placement.phase, Api.DRA)
    return placement


def balanced(placements: Mapping[str, Placement], idle: Collection[str], keep_free: int) -> dict[str, Api]:
    """The moves of units that leave `keep_free` on each side; none where that would take them from the other side.

    `idle` are the units without a holder; those on their way count where they go.
    """
    free: dict[Api, list[str]] = {Api.DEVICE_PLUGIN: [], Api.DRA: []}
    for unit in sorted(idle, key=natural_order):
        free[placements[unit].target].append(unit)
    moves: dict[str, Api] = {}
    for short, rich in ((Api.DRA, Api.DEVICE_PLUGIN), (Api.DEVICE_PLUGIN, Api.DRA)):
        count = min(keep_free - len(free[short]), len(free[rich]) - keep_free)
        settled = [unit for unit in free[rich] if placements[unit].phase.offered_by is rich]
        moves |= dict.fromkeys(settled[-count:] if count > 0 else (), short)
    return moves


def units(devices: Iterable[Device]) -> dict[str, tuple[str, ...]]:
    """By device id, the sorted ids of all devices that are the same hardware or draw on the same counters."""
    devices = sorted(devices, key=lambda device: natural_order(device.id))
    names = {name for device in devices for name in device.physical}
    parents: dict[object, object] = {}

    def root(key: object) -> object:
        while (parent := parents.get(key, key)) != key:
            key = parent
        return key

    for device in devices:
        for key in _hardware(device, names):
            first, second = root(("device", device.id)), root(key)
            if first != second:
                parents[second] = first
    members: dict[object, list[str]] = {}
    for device in devices:
        members.setdefault(root(("device", device.id)), []).append(device.id)
    return {device_id: tuple(unit) for unit in members.values() for device_id in unit}


def _hardware(device: Device, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Two parts of one whole are not the same hardware, unless the whole is a device too."""
    for consumption in device.consumes:
        yield "counters", consumption.of.name
    for name in device.physical:
        yield "hardware", name
        while name := name.rpartition("/")[0]:
            if name in names:
                yield "hardware", name
