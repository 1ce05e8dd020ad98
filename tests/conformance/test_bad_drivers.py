"""Programs that are no DRA drivers: a clear verdict, and nothing left of them."""

import sys
from dataclasses import replace

import pytest
from tests.conformance.verifying import driver_options, small_driver

from plugwright.conformance import catalogue, runner
from plugwright.conformance.program import Target
from plugwright.conformance.rule import RuleStatus
from plugwright.conformance.session import TimeLimits


@pytest.mark.parametrize(
    ("program", "seen"),
    [
        ("print('no such device'); raise SystemExit(7)", "status 7; its last line was 'no such device'"),
        ("import time; time.sleep(600)", "no process listens on a socket in plugins_registry; it runs"),
    ],
)
async def test_a_program_that_never_registers_fails_the_first_rule(program: str, seen: str) -> None:
    target = Target((sys.executable, "-c", program, "{root}"))
    limits = TimeLimits(start=3)
    verdicts = await runner.verify(
        target, catalogue.select(["DRG-01", "PRP-01"], dra=True), driver_options("1.36", limits)
    )
    assert [verdict.status for verdict in verdicts] == [RuleStatus.FAIL, RuleStatus.NOT_CHECKED]
    assert seen in verdicts[0].seen
    assert verdicts[1].depends_on == "DRG-01"


async def test_a_driver_that_refuses_every_claim_is_one_failure() -> None:
    """With parameters that it does not take, the small driver refuses all claims."""
    options = replace(driver_options("1.36", TimeLimits(start=60, register=60)), parameters={"speed": 3})
    rules = catalogue.select(["DRG-05", "PRP-01", "PRP-04", "UNP-01", "CDI-02", "DST-01"], dra=True)
    verdicts = await runner.verify(small_driver(), rules, options)
    statuses = {verdict.rule.id: verdict.status for verdict in verdicts}
    assert [rule for rule, status in statuses.items() if status.is_finding] == ["PRP-01"]
    assert {verdict.depends_on for verdict in verdicts if verdict.rule.id != "PRP-01"} == {"PRP-01"}
