"""The state machine of a device under `serve: both`: pure functions over values.

`LISTED` offers a device through the device plugin API, `PUBLISHED` through claims; in every other state no API offers
it, and its holder keeps it. `next_state` decides from the evidence, and `rounds` executes the decision: a state is on
disk before it takes effect.

    from       to         when
    ---------  ---------  -------------------------------------------------------------------------------------------
    LISTED     WITHHELD   it is to move to claims, or a claim names it, and no pod has to be admitted to it again
    LISTED     DISPUTED   a claim is prepared with it
    WITHHELD   LISTED     it is no longer to move and no claim names it, or pods need it while the scheduler counts it
    WITHHELD   PUBLISHED  no pod holds it, and the scheduler does not count it any more
    WITHHELD   TAINTED    the same, for a device that stays with the device plugin API but is named by a claim
    WITHHELD   DISPUTED   a pod holds it, and a claim is prepared with it
    PUBLISHED  TAINTED    it is to move to the device plugin API
    TAINTED    PUBLISHED  it is no longer to move
    TAINTED    WITHDRAWN  no claim has it, and none can get it: allocations begun before the taint are over
    WITHDRAWN  TAINTED    a claim names it, or is prepared with it
    WITHDRAWN  PUBLISHED  it is no longer to move
    WITHDRAWN  LISTED     the API server has it in no slice
    DISPUTED   WITHHELD   only a pod holds it, or nothing does
    DISPUTED   PUBLISHED  only claims hold it, and it belongs to claims
    DISPUTED   TAINTED    only claims hold it, and it is to move to the device plugin API

Unknown evidence never leads to a state in which an API offers the device. Devices that are the same hardware, as a
device and its parts, are one unit and have one state.
"""

from collections.abc import Collection, Mapping

import msgspec

from plugwright.dra.device_placement import DeviceState
from plugwright.model import natural_order
from plugwright.sdk.serve_settings import ServeMode

__all__ = ["Evidence", "Placement", "Unit", "balanced", "exchanged", "next_state", "reconsidered"]

Unit = tuple[str, ...]


class Placement(msgspec.Struct, frozen=True):
    """`target` is the side chosen by the split, with `by_policy` by the policy, with `by_command` by an operator."""

    state: DeviceState = msgspec.field(name="phase")  # its name in the split file
    target: ServeMode
    by_policy: bool = False
    by_command: bool | msgspec.UnsetType = msgspec.UNSET  # which is left out of the file


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence about one unit; None means unknown.

    `asked`: a claim names one of its devices and is not prepared yet. `pinned`: a pod that held it before a reboot
    could still be admitted again, for which the device must be Healthy. `in_flight_over`: the taint has been in the
    slice for at least as long as an earlier allocation by the scheduler can take. `may_leave`, `needed` and `counted`
    are those of `leaving`.
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


def next_state(placement: Placement, evidence: Evidence) -> DeviceState:
    """The next state, or the same one if something must be known or must end first."""
    if placement.state is DeviceState.DISPUTED:
        return _settled(_in_slice(placement), evidence)
    if placement.state in (DeviceState.LISTED, DeviceState.WITHHELD):
        return _next_in_list(placement, evidence)
    return _next_in_slice(placement, evidence)


def _next_in_list(placement: Placement, evidence: Evidence) -> DeviceState:
    wanted, claimed = placement.target is ServeMode.DRA or evidence.asked, evidence.asked or evidence.prepared
    match placement.state:
        case DeviceState.LISTED if evidence.prepared:
            return DeviceState.DISPUTED
        case DeviceState.LISTED if wanted and not evidence.pinned and (evidence.asked or evidence.may_leave):
            return DeviceState.WITHHELD
        case DeviceState.WITHHELD if not claimed and (evidence.needed or not wanted):
            return DeviceState.LISTED
        case DeviceState.WITHHELD if evidence.held_by_pod is False and (claimed or not evidence.counted):
            return _in_slice(placement)
        case DeviceState.WITHHELD if evidence.held_by_pod and evidence.prepared:
            return DeviceState.DISPUTED
    return placement.state


def _next_in_slice(placement: Placement, evidence: Evidence) -> DeviceState:
    claimed = evidence.asked or evidence.prepared
    if placement.target is ServeMode.DRA or (placement.state is DeviceState.WITHDRAWN and claimed):
        return _in_slice(placement)
    match placement.state:
        case DeviceState.PUBLISHED:
            return DeviceState.TAINTED
        case DeviceState.TAINTED if not claimed and evidence.in_flight_over and evidence.held_by_claim is False:
            return DeviceState.WITHDRAWN
        case DeviceState.WITHDRAWN if evidence.published is False:
            return DeviceState.LISTED
    return placement.state


def _in_slice(placement: Placement) -> DeviceState:
    """The state that offers it to claims; with the taint, only the claim that has named it can get it."""
    return DeviceState.PUBLISHED if placement.target is ServeMode.DRA else DeviceState.TAINTED


def _settled(in_slice: DeviceState, evidence: Evidence) -> DeviceState:
    if evidence.held_by_pod and not evidence.prepared:
        return DeviceState.WITHHELD
    if evidence.held_by_pod is False and evidence.prepared:
        return in_slice
    if evidence.held_by_pod is False and evidence.held_by_claim is not None:
        return in_slice if evidence.held_by_claim else DeviceState.WITHHELD
    return DeviceState.DISPUTED


def reconsidered(placement: Placement, evidence: Evidence) -> Placement:
    """Corrects a move by the policy, which moves free devices only and waits for no holder: a needed device returns."""
    claimed = evidence.asked or evidence.prepared or evidence.held_by_claim
    if placement.by_policy and placement.state is DeviceState.WITHHELD and (evidence.held_by_pod or evidence.needed):
        return Placement(placement.state, ServeMode.DEVICE_PLUGIN)
    if placement.by_policy and placement.state is DeviceState.TAINTED and claimed:
        return Placement(placement.state, ServeMode.DRA)
    return placement


def balanced(placements: Mapping[str, Placement], idle: Collection[str], keep_free: int) -> dict[str, ServeMode]:
    """The moves that leave `keep_free` units free on each side; none if the other side would lack them.

    `idle` are the units without a holder; moving units count on their target side.
    """
    free: dict[ServeMode, list[str]] = {ServeMode.DEVICE_PLUGIN: [], ServeMode.DRA: []}
    for unit in sorted(idle, key=natural_order):
        free[placements[unit].target].append(unit)
    moves: dict[str, ServeMode] = {}
    for short, rich in ((ServeMode.DRA, ServeMode.DEVICE_PLUGIN), (ServeMode.DEVICE_PLUGIN, ServeMode.DRA)):
        count = min(keep_free - len(free[short]), len(free[rich]) - keep_free)
        settled = [unit for unit in free[rich] if placements[unit].state.offered_by is rich]
        moves |= dict.fromkeys(settled[-count:] if count > 0 else (), short)
    return moves


def exchanged(
    placements: Mapping[str, Placement], held: Collection[str], idle: Collection[str]
) -> dict[str, ServeMode]:
    """The moves of free units in place of those whose holders keep them from moving, under a split by number.

    Only the number matters then. Otherwise, the last free device could stay on one side, as the split's, while pods or
    claims wait for it on the other.
    """
    moves: dict[str, ServeMode] = {}
    chosen = {unit: placement for unit, placement in placements.items() if not placement.by_command}
    for waiting, side, other in (
        (DeviceState.TAINTED, ServeMode.DRA, ServeMode.DEVICE_PLUGIN),
        (DeviceState.WITHHELD, ServeMode.DEVICE_PLUGIN, ServeMode.DRA),
    ):
        staying = [
            unit for unit in chosen if unit in held and (chosen[unit].state, chosen[unit].target) == (waiting, other)
        ]
        settled = [
            unit for unit in chosen if unit in idle and chosen[unit].state.offered_by is chosen[unit].target is side
        ]
        for stays, leaves in zip(sorted(staying, key=natural_order), sorted(settled, key=natural_order), strict=False):
            moves |= {stays: side, leaves: other}
    return moves
