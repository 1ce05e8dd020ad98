"""One cause gives one finding: crashes are errors, cascades are not checked, and the run goes on."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conformance.verifying import FAIL, RECOVER, driver_options, small_driver, small_plugin

from plugwright.conformance import catalogue, runner
from plugwright.conformance.program import Target
from plugwright.conformance.rule import RuleStatus, Verdict
from plugwright.conformance.session import TimeLimits
from plugwright.conformance.verifier import VerifyOptions

LIMITS = TimeLimits(start=60, register=60)
BROKEN = str(Path(__file__).parent / "broken_plugin.py")


def broken(defect: str) -> Target:
    return Target((sys.executable, BROKEN, "--root", "{root}", "--defect", defect))


async def verdicts(target: Target, *patterns: str) -> dict[str, Verdict]:
    made = await runner.verify(target, catalogue.select(patterns), VerifyOptions(limits=LIMITS))
    assert len({verdict.rule.id for verdict in made}) == len(made)
    return {verdict.rule.id: verdict for verdict in made}


async def test_a_crash_is_an_error_with_the_panic_and_the_last_output() -> None:
    made = await verdicts(broken("panics-in-allocate"), "LST", "ALO", "ANS", "PRF")
    findings = [rule for rule, verdict in made.items() if verdict.status.is_finding]
    assert (findings, made["ALO-01"].status) == (["ALO-01"], RuleStatus.ERROR)
    assert "panic: close of closed channel" in made["ALO-01"].seen
    assert made["ALO-01"].output[-1] == "goroutine 41 [running]:"
    assert made["ANS-04"].status is RuleStatus.NOT_CHECKED
    assert made["ANS-04"].depends_on == "ALO-01"


async def test_the_run_continues_with_a_new_program_after_a_crash() -> None:
    made = await verdicts(broken("panics-in-allocate"), "ALO-01", "LST-10", "LST-12", "PRF-01")
    passed = {rule for rule, verdict in made.items() if verdict.status is RuleStatus.PASS}
    assert passed >= {"LST-10", "LST-12"}
    assert RuleStatus.FAIL not in {verdict.status for verdict in made.values()}


@pytest.mark.parametrize("defect", ["stops-listening", "stops-listening-late"])
async def test_a_program_that_stops_listening_is_an_error_once(defect: str) -> None:
    made = await verdicts(broken(defect), "ALO-05", "ALO-08", "FLT-06", "FLT-08")
    findings = {rule: verdict.status for rule, verdict in made.items() if verdict.status.is_finding}
    assert findings == {"ALO-05": RuleStatus.ERROR}
    assert made["FLT-08"].status is RuleStatus.PASS


async def test_a_refused_device_is_one_failure_of_allocate() -> None:
    made = await verdicts(broken("refuses-a-device"), "ALO-01", "ANS")
    assert [rule for rule, verdict in made.items() if verdict.status.is_finding] == ["ALO-01"]
    # The answers for the other devices are judged all the same.
    assert (made["ANS-01"].status, made["ANS-04"].status) == (RuleStatus.PASS, RuleStatus.PASS)


async def test_answers_are_not_checked_if_every_device_is_refused() -> None:
    made = await verdicts(broken("refuses-every-device"), "ALO-01", "ANS")
    assert [rule for rule, verdict in made.items() if verdict.status.is_finding] == ["ALO-01"]
    assert (made["ANS-01"].status, made["ANS-01"].depends_on) == (RuleStatus.NOT_CHECKED, "ALO-01")
    assert RuleStatus.PASS not in {verdict.status for verdict in made.values()}


async def test_a_device_that_stays_held_is_one_failure() -> None:
    made = await verdicts(small_plugin("keeps-after-failure"), "ALO-15", "ALO-16", "FLT-02", "FLT-11")
    assert {rule for rule, verdict in made.items() if verdict.status is not RuleStatus.PASS} == {"ALO-15"}


async def test_an_allocate_that_hangs_is_one_failure_of_calls_in_a_row() -> None:
    made = await verdicts(small_plugin("refusals-keep-their-turn"), "RES-07", "RES-08", "RES-09")
    assert made["RES-07"].status is RuleStatus.FAIL
    assert "none after" in made["RES-07"].seen
    assert {made[rule].depends_on for rule in ("RES-08", "RES-09")} == {"RES-07"}


async def test_parameters_that_end_a_driver_are_one_failure() -> None:
    rules = catalogue.select(["PAR"], dra=True)
    made = await runner.verify(small_driver("dies-of-parameters"), rules, driver_options())
    found = {verdict.rule.id: verdict.status for verdict in made if verdict.status.is_finding}
    assert found == {"PAR-02": RuleStatus.FAIL}


async def test_the_cause_is_reported_even_if_it_was_not_selected() -> None:
    made = await verdicts(broken("refuses-every-device"), "ANS-04", "ANS-07")
    assert (made["ANS-04"].status, made["ANS-04"].depends_on) == (RuleStatus.NOT_CHECKED, "ALO-01")
    assert made["ALO-01"].status is RuleStatus.FAIL


async def test_a_rule_that_explains_a_failed_registration_is_the_only_finding() -> None:
    made = await verdicts(small_plugin("name-without-domain"), "REG", "LST", "ALO")
    assert [rule for rule, verdict in made.items() if verdict.status.is_finding] == ["REG-03"]
    assert (made["REG-01"].status, made["REG-01"].depends_on) == (RuleStatus.NOT_CHECKED, "REG-03")


@pytest.mark.parametrize("pattern", ["LST", "ALO", "ANS", "PRF"])
async def test_no_rule_about_devices_passes_without_devices(pattern: str) -> None:
    made = await verdicts(broken("has-no-devices"), pattern)
    about_devices = {rule for rule, verdict in made.items() if verdict.status is RuleStatus.PASS}
    assert about_devices <= {"LST-01", "LST-02", "LST-09", "LST-10", "LST-11", "LST-13"}


async def test_a_plugin_that_never_reports_failures_is_one_finding() -> None:
    options = VerifyOptions(limits=replace(LIMITS, register=3), fail=FAIL, recover=RECOVER)
    made = await runner.verify(small_plugin("ignores-failure"), catalogue.select(["HOT-01", "HOT-04"]), options)
    assert [(verdict.rule.id, verdict.status, verdict.depends_on) for verdict in made] == [
        ("HOT-01", RuleStatus.FAIL, ""),
        ("HOT-04", RuleStatus.NOT_CHECKED, "HOT-01"),
    ]


async def test_a_crash_in_two_rules_about_crashes_is_one_failure() -> None:
    made = await verdicts(broken("panics-in-streams"), "FLT-09", "FLT-10")
    assert (made["FLT-09"].status, made["FLT-10"].depends_on) == (RuleStatus.FAIL, "FLT-09")


@pytest.mark.parametrize(
    ("mutant", "rules", "named"),
    [
        ("ignores-restart", ["REG-14", "REG-16", "REG-25"], "REG-14"),
        ("comes-back-three-times", ["REG-14", "REG-16", "REG-25"], "REG-16"),
        ("gives-up-when-refused", ["REG-12", "REG-25"], "REG-12"),
    ],
)
async def test_a_plugin_that_does_not_return_is_one_failure(mutant: str, rules: list[str], named: str) -> None:
    short = replace(LIMITS, start=15, register=4)
    made = await runner.verify(small_plugin(mutant), catalogue.select(rules), VerifyOptions(limits=short))
    found = {verdict.rule.id: verdict.status for verdict in made}
    assert [rule for rule, status in found.items() if status.is_finding] == [named]
    assert {found[rule] for rule in rules if rule > named} == {RuleStatus.NOT_CHECKED}


async def test_a_driver_that_ends_with_a_connection_is_one_failure() -> None:
    rules = catalogue.select(["DRG-01", "DRG-02", "DRG-05", "DRG-11", "PRP-01"], dra=True)
    made = await runner.verify(small_driver("dies-of-closed-connection"), rules, driver_options())
    assert [verdict.rule.id for verdict in made if verdict.status.is_finding] == ["DRG-11"]


async def test_a_driver_that_crashes_while_it_prepares_is_named_for_that() -> None:
    rules = catalogue.select(["DRG-11", "PRP-01", "PRP-02"], dra=True)
    target = Target((sys.executable, str(Path(BROKEN).with_name("broken_driver.py")), "{root}"))
    made = await runner.verify(target, rules, driver_options())
    [found] = [verdict for verdict in made if verdict.status.is_finding]
    assert (found.rule.id, found.status) == ("PRP-01", RuleStatus.ERROR)
    assert "panic: runtime error" in found.seen


async def test_a_driver_with_a_busy_loop_of_requests_is_one_finding() -> None:
    rules = catalogue.select(["DRR-04", "DRR-05"], dra=True)
    options = driver_options(limits=replace(LIMITS, idle=1))
    made = await runner.verify(small_driver("asks-in-busy-loop"), rules, options)
    assert {verdict.rule.id: verdict.depends_on for verdict in made} == {"DRR-04": "", "DRR-05": "DRR-04"}
