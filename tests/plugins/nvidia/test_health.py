"""Rules say when a GPU is unfit and when it is fit again: never by time alone where a reset is needed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright import ConfigError
from plugwright.plugins.nvidia import health
from plugwright.plugins.nvidia.driver import Facts, Recovery
from plugwright.plugins.nvidia.health import Action, Incident, Rules, judge

WELL = Facts(ecc_uncorrected=0, remap_pending=False, remap_failed=False, recovery=Recovery.NONE)
LOST = Facts(fault="GPU is lost", away=True)
XIDS = st.integers(0, 200)


def seen(*xids: int, now: float = 0.0) -> tuple[Incident, ...]:
    incidents: tuple[Incident, ...] = ()
    for xid in xids:
        incidents = health.after_xid(incidents, xid, now)
    return incidents


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 68, 94, 154])
def test_a_programs_own_error_is_nothing(xid: int) -> None:
    assert not judge(Rules(), WELL, seen(xid), 0).reason


@pytest.mark.parametrize("xid", [46, 48, 62, 64, 74, 79, 95, 109, 119, 120, 140])
def test_what_needs_a_reset_waits_for_it_however_long(xid: int) -> None:
    incidents = seen(xid)
    assert f"Xid {xid}" in judge(Rules(), WELL, incidents, 1e9).reason
    for _ in range(3):
        incidents = health.after_facts(incidents, WELL)
    assert "waiting for a reset" in judge(Rules(), WELL, incidents, 1e9).reason


def test_a_gpu_that_was_away_and_is_back_was_reset() -> None:
    incidents = health.after_facts(seen(79), LOST)
    assert judge(Rules(), LOST, incidents, 0).reason == "GPU is lost"
    assert not judge(Rules(), WELL, health.after_facts(incidents, WELL), 0).reason


def test_a_gpu_that_did_not_answer_for_a_while_was_not_reset() -> None:
    silent = Facts(fault="Timeout")
    incidents = health.after_facts(health.after_facts(seen(119), silent), WELL)
    assert "waiting for a reset" in judge(Rules(), WELL, incidents, 0).reason
    back = health.after_facts(health.after_facts(seen(79), LOST), WELL)
    assert not judge(Rules(), WELL, health.after_facts(health.after_facts(back, silent), WELL), 0).reason


def test_a_driver_that_asked_for_a_reset_and_no_longer_does_has_had_it() -> None:
    asking = Facts(recovery=Recovery.RESET)
    incidents = health.after_facts(seen(48), asking)
    assert judge(Rules(), asking, incidents, 0).reason == "the driver asks for: reset"
    assert not judge(Rules(), WELL, health.after_facts(incidents, WELL), 0).reason


def test_the_same_xid_after_a_reset_counts_anew() -> None:
    back = health.after_facts(health.after_facts(seen(79), LOST), WELL)
    assert judge(Rules(), WELL, health.after_xid(back, 79, 5), 5).reason.startswith(
        "Xid 79 (GPU has fallen off the bus)"
    )


def test_an_xid_that_nobody_knows_is_over_after_a_quiet_time() -> None:
    rules = Rules(quiet=60)
    verdict = judge(rules, WELL, seen(999), 20)
    assert (verdict.reason, verdict.again) == ("Xid 999, waiting for quiet", 40)
    assert judge(rules, WELL, health.after_xid(seen(999), 999, 50), 100).reason.startswith("Xid 999 2 times")
    assert not judge(rules, WELL, seen(999), 60).reason


def test_quiet_alone_is_not_enough_while_the_gpu_does_not_answer() -> None:
    assert judge(Rules(quiet=1), LOST, seen(999), 1e9).reason == "GPU is lost"


def test_a_rule_can_be_set() -> None:
    rules = Rules(xids={94: Action.FAIL, 79: Action.IGNORE, 13: Action.QUIET})
    assert "waiting for an operator" in judge(rules, WELL, seen(94), 1e9).reason
    assert not judge(rules, WELL, seen(79), 0).reason
    assert judge(rules, WELL, seen(13), 0).reason


@pytest.mark.parametrize("xid", sorted(health.NEEDS_RESET))
@pytest.mark.parametrize("action", [Action.QUIET, Action.PROBE])
def test_time_or_a_probe_alone_is_refused_for_what_needs_a_reset(xid: int, action: Action) -> None:
    with pytest.raises(ConfigError, match=f"Xid {xid} needs a reset"):
        Rules(xids={xid: action})


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (Facts(ecc_uncorrected=3), "3 uncorrected ECC errors"),
        (Facts(ecc_uncorrected=3, recovery=Recovery.NONE), ""),
        (Facts(remap_failed=True, recovery=Recovery.NONE), "could not be replaced"),
        (Facts(remap_pending=True), ""),
        (Facts(recovery=Recovery.REBOOT), "the driver asks for: reboot"),
        (Facts(), ""),
    ],
)
def test_memory_errors_count_unless_the_driver_says_that_nothing_is_to_be_done(facts: Facts, reason: str) -> None:
    found = judge(Rules(), facts, (), 0).reason
    assert reason in found if reason else not found


def test_a_row_that_waits_for_a_reset_counts_where_it_is_asked_for() -> None:
    assert "waits for a reset" in judge(Rules(pending=True), Facts(remap_pending=True), (), 0).reason


def test_checks_that_are_off_still_see_a_lost_gpu() -> None:
    rules = Rules(off=True)
    assert not judge(rules, Facts(remap_failed=True, recovery=Recovery.RESET), seen(79), 0).reason
    assert judge(rules, LOST, (), 0).reason == "GPU is lost"


@given(xids=st.lists(XIDS, max_size=6), now=st.floats(0, 1e6))
def test_a_gpu_is_unfit_if_one_of_its_xids_makes_it_so(xids: list[int], now: float) -> None:
    alone = [bool(judge(Rules(), WELL, seen(xid), now).reason) for xid in xids]
    assert bool(judge(Rules(), WELL, seen(*xids), now).reason) == any(alone)


@given(xid=XIDS)
def test_every_xid_ends_when_the_gpu_was_reset_and_is_quiet_unless_an_operator_is_asked(xid: int) -> None:
    incidents = health.after_facts(health.after_facts(seen(xid), LOST), WELL)
    fails = Rules().action(xid) is Action.FAIL
    assert bool(judge(Rules(), WELL, incidents, 1e9).reason) == fails
