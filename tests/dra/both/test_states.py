"""The state machine of a device: every transition is in the table of its module, and the unknown leads to no offer."""

import itertools
import re
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from plugwright.dra.both import states
from plugwright.dra.both.device_observations import Observations
from plugwright.dra.both.move_settings import MoveSettings
from plugwright.dra.both.states import Evidence, Placement, exchanged, next_state
from plugwright.dra.device_placement import DeviceState
from plugwright.sdk.serve_settings import ServeMode

FLAGS = ("asked", "prepared", "pinned", "in_flight_over", "may_leave", "needed", "counted")
ANSWERS = ("held_by_pod", "held_by_claim", "published")


def every_evidence() -> Iterator[Evidence]:
    for flags in itertools.product((False, True), repeat=len(FLAGS)):
        for answers in itertools.product((None, False, True), repeat=len(ANSWERS)):
            known: dict[str, Any] = dict(zip((*FLAGS, *ANSWERS), (*flags, *answers), strict=True))
            yield Evidence(**known)


def every_placement() -> Iterator[Placement]:
    for state, target in itertools.product(DeviceState, (ServeMode.DRA, ServeMode.DEVICE_PLUGIN)):
        yield Placement(state, target)


def test_the_table_has_every_transition() -> None:
    table = set(re.findall(r"^    ([A-Z]+) +([A-Z]+) ", states.__doc__ or "", flags=re.MULTILINE))
    found = {
        (placement.state.name, after.name)
        for placement in every_placement()
        for evidence in every_evidence()
        if (after := next_state(placement, evidence)) is not placement.state
    }
    assert found == table


def test_what_is_not_known_never_leads_to_an_offer() -> None:
    """A device is offered by the other API only if its holders there are known to be none."""
    for placement, evidence in itertools.product(every_placement(), every_evidence()):
        before, after = placement.state, next_state(placement, evidence)
        if before in (DeviceState.LISTED, DeviceState.WITHHELD) and after.in_slice:
            assert evidence.held_by_pod is False, (placement, evidence)
        if before is DeviceState.TAINTED and after is DeviceState.WITHDRAWN:
            assert (evidence.held_by_claim, evidence.in_flight_over) == (False, True), (placement, evidence)
        if before is DeviceState.WITHDRAWN and after is DeviceState.LISTED:
            assert evidence.published is False, (placement, evidence)
        if before.in_slice:
            assert after not in (DeviceState.LISTED, DeviceState.WITHHELD), (placement, evidence)


def test_a_free_device_moves_in_place_of_a_held_one_on_either_side() -> None:
    tainted = Placement(DeviceState.TAINTED, ServeMode.DEVICE_PLUGIN)
    published = Placement(DeviceState.PUBLISHED, ServeMode.DRA)
    withheld, listed = Placement(DeviceState.WITHHELD, ServeMode.DRA), Placement(DeviceState.LISTED, tainted.target)
    dra, plugin = ServeMode.DRA, ServeMode.DEVICE_PLUGIN
    by_claim, by_pod = {"a": tainted, "b": published}, {"a": withheld, "b": listed}
    assert exchanged(by_claim, held=["a"], idle=["b"]) == {"a": dra, "b": plugin}
    assert exchanged(by_pod, held=["a"], idle=["b"]) == {"a": plugin, "b": dra}
    for placements in (by_claim, by_pod):
        assert exchanged(placements, held=[], idle=["a", "b"]) == {}
        assert exchanged(placements, held=["a", "b"], idle=[]) == {}
        for name in placements:
            commanded = {**placements, name: replace(placements[name], by_command=True)}
            assert exchanged(commanded, held=["a"], idle=["b"]) == {}


def test_an_observation_is_discarded_when_its_device_changes_state() -> None:
    now = 100.0
    known = Observations(replace(MoveSettings(), clock=lambda: now), lambda: False)
    entries = known.entries([("st0",)])
    known.set_pods(entries, {})
    assert known.evidence(("st0",)).held_by_pod is False
    known.enter("st0")
    assert known.evidence(("st0",)).held_by_pod is None
    known.set_pods(entries, {})  # was read before the device changed state
    assert known.evidence(("st0",)).held_by_pod is None
