"""A run is never silent for long: rules that take long are reported, with their time."""

import time
from collections.abc import Sequence

from tests.conformance.verifying import PATIENT, small_plugin

from plugwright.conformance import catalogue, runner
from plugwright.conformance.progress import RulesInProgress, Slow, slow_text
from plugwright.conformance.verifier import VerifyOptions

LISTS, RESTARTS = catalogue.find("LST-01"), catalogue.find("REG-16")


def test_a_rule_is_reported_when_it_has_taken_long() -> None:
    progress, began = RulesInProgress(), time.monotonic()
    with progress.checking(RESTARTS):
        assert not progress.slow(60, began + 59)
        [one] = progress.slow(60, began + 90)
    assert (one.rule, round(one.seconds)) == (RESTARTS, 90)


def test_during_a_silence_every_rule_in_progress_is_reported() -> None:
    progress, began = RulesInProgress(), time.monotonic()
    with progress.checking(RESTARTS), progress.checking(LISTS):
        found = progress.slow(60, began + 90)
    assert {one.rule for one in found} == {RESTARTS, LISTS}


def test_a_program_that_does_not_start_or_end_is_reported() -> None:
    progress, now = RulesInProgress(), time.monotonic()
    [one] = progress.slow(60, now + 90)
    assert one.rule is None
    assert slow_text([one]) == "waiting for the program to start or end for 90 s"


def test_the_line_names_the_rules_and_their_times() -> None:
    found = [Slow(RESTARTS, 72.4), Slow(LISTS, 61)]
    assert slow_text(found) == "still checking REG-16 for 72 s, LST-01 for 61 s"


def test_a_run_reports_slow_rules_before_their_verdicts() -> None:
    told: list[str] = []
    ended: list[str] = []

    def slow(version: str, found: Sequence[Slow]) -> None:
        told.extend(f"{version} {one.rule.id}" for one in found if one.rule and one.rule.id not in ended)

    watcher = runner.Watcher(lambda verdict: ended.append(verdict.rule.id), slow, every=0.01)
    made = runner.run(small_plugin(), [RESTARTS], [VerifyOptions(limits=PATIENT)], watcher, 1)
    assert made is not None
    assert set(told) == {"1.36 REG-16"}
