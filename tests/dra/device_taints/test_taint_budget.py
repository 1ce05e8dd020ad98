"""Which failed devices evict their pods, whatever fails and recovers when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from plugwright.dra.device_taints.taint_budget import (
    HOUR,
    NO_EXECUTE,
    NO_SCHEDULE,
    Moment,
    Observed,
    TaintDecision,
    TaintRecord,
    TaintState,
    decide,
)
from plugwright.sdk.serve_settings import TaintSettings

TAPE = "example.com/tape"
DISK = "example.com/disk"
EVICTING = TaintSettings(effect=NO_EXECUTE, grace=60, budget=2)
START = 1000.0


def at(seconds: float) -> Moment:
    return Moment(START + seconds, 1_700_000_000 + seconds)


def failing(*ids: str, resource: str = TAPE) -> Observed:
    return Observed(resource, dict.fromkeys(ids, True))


def after(
    *steps: tuple[float, Observed], settings: TaintSettings = EVICTING, state: TaintState | None = None
) -> TaintDecision:
    """The decision at the last of these times, each with what fails then."""
    state, decision = state or TaintState(), None
    for seconds, seen in steps:
        decision = decide(state, seen, settings, at(seconds))
        state = decision.state
    assert decision is not None
    return decision


def effects(decision: TaintDecision, resource: str = TAPE) -> dict[str, str]:
    return {key: record.effect for key, record in decision.state.of(resource).items()}


@pytest.mark.parametrize("effect", ["NoSchedule", "None"])
def test_an_effect_that_evicts_nobody_is_there_at_once_and_stays(effect: str) -> None:
    settings = TaintSettings(effect=effect)
    decision = after((0, failing("st0")), (10 * HOUR, failing("st0")), settings=settings)
    assert effects(decision) == {"st0": effect}
    assert decision.next_change == float("inf")


def test_no_execute_takes_the_place_of_no_schedule_after_the_grace() -> None:
    first = after((0, failing("st0")))
    assert effects(first) == {"st0": NO_SCHEDULE}
    assert first.next_change == START + 60
    assert effects(after((0, failing("st0")), (59.9, failing("st0")))) == {"st0": NO_SCHEDULE}
    assert effects(after((0, failing("st0")), (60, failing("st0")))) == {"st0": NO_EXECUTE}


def test_the_grace_starts_again_when_the_device_recovers() -> None:
    decision = after((0, failing("st0")), (50, failing()), (55, failing("st0")), (100, failing("st0")))
    assert effects(decision) == {"st0": NO_SCHEDULE}
    assert decision.next_change == START + 115


def test_a_device_that_recovers_has_no_taint() -> None:
    assert effects(after((0, failing("st0")), (1, failing()))) == {}
    assert effects(after((0, failing("st0")), (60, failing("st0")), (61, failing()))) == {"st0": ""}


def test_a_time_stays_while_the_effect_does() -> None:
    for seconds, added in ((59, 0), (60, 60), (5000, 60)):
        steps = [(moment, failing("st0")) for moment in (0, 59, 60, 5000) if moment <= seconds]
        assert after(*steps).state.of(TAPE)["st0"].added == 1_700_000_000 + added


def test_a_failure_that_is_not_the_devices_evicts_nobody() -> None:
    seen = Observed(TAPE, {"st0": False})
    assert effects(after((0, seen), (HOUR, seen))) == {"st0": NO_SCHEDULE}


def test_devices_beyond_the_budget_are_held_back_until_it_has_room() -> None:
    seen = failing("st10", "st2", "st1")
    decision = after((0, seen), (60, seen))
    assert effects(decision) == {"st1": NO_EXECUTE, "st2": NO_EXECUTE, "st10": NO_SCHEDULE}
    assert decision.held_back == {"st10": "the budget of 2 devices an hour is spent"}
    assert decision.next_change == START + 60 + HOUR
    assert effects(after((60 + HOUR, seen), state=decision.state))["st10"] == NO_EXECUTE


def test_those_that_failed_first_come_first() -> None:
    settings = replace(EVICTING, budget=1)
    seen = failing("st0", "st1")
    assert effects(after((0, failing("st1")), (1, seen), (100, seen), settings=settings)) == {
        "st0": NO_SCHEDULE,
        "st1": NO_EXECUTE,
    }


def test_resources_of_a_node_share_the_budget() -> None:
    tapes = after((0, failing("st0", "st1")), (60, failing("st0", "st1")))
    disks = failing("sda", resource=DISK)
    decision = after((61, disks), (200, disks), state=tapes.state)
    assert effects(decision, DISK) == {"sda": NO_SCHEDULE}
    assert decision.state.of(TAPE) == tapes.state.of(TAPE)


def test_a_budget_of_nothing_never_evicts() -> None:
    decision = after((0, failing("st0")), (HOUR, failing("st0")), settings=replace(EVICTING, budget=0))
    assert effects(decision) == {"st0": NO_SCHEDULE}
    assert decision.next_change == float("inf")


def test_a_flapping_device_evicts_once() -> None:
    evicted = after(
        (0, failing("st0")), (60, failing("st0")), (70, failing()), (80, failing("st0")), (200, failing("st0"))
    )
    assert effects(evicted) == {"st0": NO_SCHEDULE}
    assert evicted.held_back == {"st0": "flapping: it had NoExecute within the last hour"}
    assert evicted.next_change == START + 70 + HOUR
    assert effects(after((70 + HOUR, failing("st0")), state=evicted.state)) == {"st0": NO_EXECUTE}


def test_with_unknown_evictions_the_budget_is_spent() -> None:
    decision = after((0, failing("st0")), (60, failing("st0")), state=TaintState(unknown_until=START + HOUR))
    assert effects(decision) == {"st0": NO_SCHEDULE}
    assert decision.next_change == START + HOUR


def test_settings_that_no_longer_evict_take_no_execute_off() -> None:
    evicting = after((0, failing("st0")), (60, failing("st0")))
    decision = after((61, failing("st0")), state=evicting.state, settings=TaintSettings())
    assert effects(decision) == {"st0": NO_SCHEDULE}


def test_a_cordon_has_a_time_of_its_own_and_costs_nothing() -> None:
    seen = Observed(TAPE, cordoned=frozenset({"st0"}))
    decision = after((0, seen), (500, seen))
    assert decision.state.of(TAPE) == {"st0": TaintRecord(cordoned=1_700_000_000)}
    assert after((501, Observed(TAPE)), state=decision.state).state == TaintState()


IDS = [(resource, f"d{number}") for resource in (TAPE, DISK) for number in range(4)]
STEPS = st.lists(
    st.tuples(st.floats(0, 2 * HOUR) | st.floats(0, 90), st.sets(st.sampled_from(IDS))), min_size=1, max_size=40
)


@given(STEPS, st.integers(0, 4), st.sampled_from([0.0, 60.0, 1000.0]))
def test_in_no_hour_are_there_more_evictions_than_the_budget_nor_two_of_one_device(
    steps: list[tuple[float, set[tuple[str, str]]]], budget: int, grace: float
) -> None:
    settings = TaintSettings(effect=NO_EXECUTE, grace=grace, budget=budget)
    state, seconds = TaintState(), 0.0
    granted: list[tuple[float, str, str]] = []
    for wait, failed in steps:
        seconds += wait
        for resource in (TAPE, DISK):
            ids = {key: True for name, key in failed if name == resource}
            decision = decide(state, Observed(resource, ids), settings, at(seconds))
            state = decision.state
            granted += [(seconds, resource, key) for key in decision.granted]
            assert decision.granted <= ids.keys()
            shown = {key for key, record in state.of(resource).items() if record.effect}
            assert shown == ids.keys()  # every failed device has a taint, and no other
            assert decision.next_change > at(seconds).elapsed  # never a timer that fires at once
            assert decide(state, Observed(resource, ids), settings, at(seconds)).state == state
    for time, resource, key in granted:
        within = [one for one in granted if time - HOUR < one[0] <= time]
        assert len(within) <= budget
        assert [one[1:] for one in within].count((resource, key)) == 1


@given(STEPS)
def test_what_is_remembered_does_not_grow(steps: list[tuple[float, set[tuple[str, str]]]]) -> None:
    state, seconds = TaintState(), 0.0
    for wait, failed in steps:
        seconds += wait
        for resource in (TAPE, DISK):
            ids = {key: True for name, key in failed if name == resource}
            state = decide(state, Observed(resource, ids), EVICTING, at(seconds)).state
    for resource in (TAPE, DISK):
        state = decide(state, Observed(resource), EVICTING, at(seconds)).state
        state = decide(state, Observed(resource), EVICTING, at(seconds + HOUR + 1)).state
    assert state == TaintState()
