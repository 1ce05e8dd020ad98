"""No rule for DRA drivers fails on one that is correct.

Every rule, with every version of the kubelet that calls drivers, where PLUGWRIGHT_MUTANTS is set; else those that need
no start of their own, with one version.
"""

import os

import pytest
from tests.conformance.verifying import driver_options, small_driver

from plugwright.conformance import catalogue, runner
from plugwright.conformance.rule import RuleStatus

EVERYTHING = bool(os.environ.get("PLUGWRIGHT_MUTANTS"))
VERSIONS = ["1.34", "1.35", "1.36", "1.37"] if EVERYTHING else ["1.37"]
RULES = [rule for rule in catalogue.DRIVER_RULES if EVERYTHING or not rule.alone]
TIMED = {"DRG-06", "PRP-18", "SLC-17"}  # a busy machine decides these as well


@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", VERSIONS)
async def test_the_correct_driver_keeps_every_rule(version: str) -> None:
    verdicts = await runner.verify(small_driver(), RULES, driver_options(version))
    broken = [
        f"{verdict.rule.id} {verdict.status}: expected {verdict.expected}, seen {verdict.seen}"
        for verdict in verdicts
        if verdict.status is not RuleStatus.PASS and verdict.rule.id not in TIMED
    ]
    assert broken == []
    assert len(verdicts) == len(RULES)
