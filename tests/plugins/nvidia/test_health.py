"""Health rules: when a GPU is unhealthy, and that time alone never replaces a reset."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright import ConfigError
from plugwright.plugins.nvidia import config, health
from plugwright.plugins.nvidia.config import NvidiaConfig, NvidiaHealth
from plugwright.plugins.nvidia.driver import GpuHealth, RecoveryAction
from plugwright.plugins.nvidia.health import XidRecord, assess, xid_action
from plugwright.plugins.nvidia.xids import NEEDS_RESET, XidAction

HEALTHY = GpuHealth(ecc_uncorrected=0, remap_pending=False, remap_failed=False, recovery=RecoveryAction.NONE)
LOST = GpuHealth(fault="GPU is lost", away=True)
XIDS = st.integers(0, 200)


def reported(*xids: int, now: float = 0.0) -> tuple[XidRecord, ...]:
    records: tuple[XidRecord, ...] = ()
    for xid in xids:
        records = health.record_xid(records, xid, now)
    return records


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 68, 94, 154])
def test_an_applications_error_is_ignored(xid: int) -> None:
    assert not assess(NvidiaHealth(), HEALTHY, reported(xid), 0).reason


@pytest.mark.parametrize("xid", [46, 48, 62, 64, 74, 79, 95, 109, 119, 120, 140])
def test_an_xid_that_needs_a_reset_waits_for_it_however_long(xid: int) -> None:
    records = reported(xid)
    assert f"Xid {xid}" in assess(NvidiaHealth(), HEALTHY, records, 1e9).reason
    for _ in range(3):
        records = health.update_records(records, HEALTHY)
    assert "waiting for a reset" in assess(NvidiaHealth(), HEALTHY, records, 1e9).reason


def test_a_gpu_that_was_lost_and_is_back_was_reset() -> None:
    records = health.update_records(reported(79), LOST)
    assert assess(NvidiaHealth(), LOST, records, 0).reason == "GPU is lost"
    assert not assess(NvidiaHealth(), HEALTHY, health.update_records(records, HEALTHY), 0).reason


def test_a_gpu_that_did_not_answer_for_a_while_was_not_reset() -> None:
    silent = GpuHealth(fault="Timeout")
    records = health.update_records(health.update_records(reported(119), silent), HEALTHY)
    assert "waiting for a reset" in assess(NvidiaHealth(), HEALTHY, records, 0).reason
    back = health.update_records(health.update_records(reported(79), LOST), HEALTHY)
    assert not assess(
        NvidiaHealth(), HEALTHY, health.update_records(health.update_records(back, silent), HEALTHY), 0
    ).reason


def test_a_gpu_is_healthy_when_the_driver_no_longer_recommends_a_reset() -> None:
    impaired = GpuHealth(recovery=RecoveryAction.RESET)
    records = health.update_records(reported(48), impaired)
    assert assess(NvidiaHealth(), impaired, records, 0).reason == "the driver recommends: reset"
    assert not assess(NvidiaHealth(), HEALTHY, health.update_records(records, HEALTHY), 0).reason


def test_the_same_xid_after_a_reset_counts_again() -> None:
    back = health.update_records(health.update_records(reported(79), LOST), HEALTHY)
    assert assess(NvidiaHealth(), HEALTHY, health.record_xid(back, 79, 5), 5).reason.startswith(
        "Xid 79 (GPU has fallen off the bus)"
    )


def test_an_unknown_xid_is_over_after_a_quiet_time() -> None:
    rules = NvidiaHealth(quiet=60)
    assessment = assess(rules, HEALTHY, reported(999), 20)
    assert (assessment.reason, assessment.recheck_after) == ("Xid 999, waiting for quiet", 40)
    assert assess(rules, HEALTHY, health.record_xid(reported(999), 999, 50), 100).reason.startswith("Xid 999 2 times")
    assert not assess(rules, HEALTHY, reported(999), 60).reason


def test_quiet_alone_is_not_enough_while_the_gpu_does_not_answer() -> None:
    assert assess(NvidiaHealth(quiet=1), LOST, reported(999), 1e9).reason == "GPU is lost"


def test_an_action_can_be_configured() -> None:
    rules = NvidiaHealth(xids={"94": XidAction.FAIL, "79": XidAction.IGNORE, "13": XidAction.QUIET})
    assert "waiting for an operator" in assess(rules, HEALTHY, reported(94), 1e9).reason
    assert not assess(rules, HEALTHY, reported(79), 0).reason
    assert assess(rules, HEALTHY, reported(13), 0).reason


@pytest.mark.parametrize("xid", sorted(NEEDS_RESET))
@pytest.mark.parametrize("action", [XidAction.QUIET, XidAction.PROBE])
def test_quiet_and_probe_are_refused_for_xids_that_need_a_reset(xid: int, action: XidAction) -> None:
    with pytest.raises(ConfigError, match=f"Xid {xid} needs a reset"):
        config.check(NvidiaConfig(health=NvidiaHealth(xids={str(xid): action})))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (GpuHealth(ecc_uncorrected=3), "3 uncorrected ECC errors"),
        (GpuHealth(ecc_uncorrected=3, recovery=RecoveryAction.NONE), ""),
        (GpuHealth(remap_failed=True, recovery=RecoveryAction.NONE), "could not be remapped"),
        (GpuHealth(remap_pending=True), ""),
        (GpuHealth(recovery=RecoveryAction.REBOOT), "the driver recommends: reboot"),
        (GpuHealth(), ""),
    ],
)
def test_memory_errors_count_unless_the_driver_recommends_nothing(values: GpuHealth, reason: str) -> None:
    actual = assess(NvidiaHealth(), values, (), 0).reason
    assert reason in actual if reason else not actual


def test_a_counter_of_errors_that_is_0_again_shows_a_reset_of_an_old_driver() -> None:
    counted, zero = GpuHealth(ecc_uncorrected=1, ecc_sram=0), GpuHealth(ecc_uncorrected=0, ecc_sram=0)
    records = health.update_records(reported(95), counted)
    assert assess(NvidiaHealth(), counted, records, 1e9).code == "xid-95"
    assert not assess(NvidiaHealth(), zero, health.update_records(records, zero), 0).reason
    assert assess(NvidiaHealth(), zero, health.update_records(reported(95), zero), 0).reason


def test_a_pending_row_remapping_counts_if_configured() -> None:
    assert "at the next reset" in assess(NvidiaHealth(pending=True), GpuHealth(remap_pending=True), (), 0).reason


def test_disabled_checks_still_see_a_lost_gpu() -> None:
    rules = NvidiaHealth(checks=False)
    assert not assess(rules, GpuHealth(remap_failed=True, recovery=RecoveryAction.RESET), reported(79), 0).reason
    assert assess(rules, LOST, (), 0).reason == "GPU is lost"


@given(xids=st.lists(XIDS, max_size=6), now=st.floats(0, 1e6))
def test_a_gpu_is_unhealthy_if_one_of_its_xids_makes_it_so(xids: list[int], now: float) -> None:
    alone = [bool(assess(NvidiaHealth(), HEALTHY, reported(xid), now).reason) for xid in xids]
    assert bool(assess(NvidiaHealth(), HEALTHY, reported(*xids), now).reason) == any(alone)


@given(xid=XIDS)
def test_every_xid_is_over_after_a_reset_and_quiet_unless_it_waits_for_an_operator(xid: int) -> None:
    records = health.update_records(health.update_records(reported(xid), LOST), HEALTHY)
    fails = xid_action(NvidiaHealth(), xid) is XidAction.FAIL
    assert bool(assess(NvidiaHealth(), HEALTHY, records, 1e9).reason) == fails
