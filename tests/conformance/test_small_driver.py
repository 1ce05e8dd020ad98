"""No rule for DRA drivers fails on one that is correct.

With PLUGWRIGHT_MUTANTS=1 every rule, at every distinct version of the kubelet that calls drivers. Without it, our own
driver shows in `test_own_drivers` that a correct one keeps the rules.
"""

import os
from dataclasses import replace

import pytest
from tests.conformance.verifying import (
    FAIL,
    PARAMETERS,
    RECOVER,
    broken_rules,
    distinct_versions,
    driver_options,
    small_driver,
)

from plugwright.conformance import catalogue, runner
from plugwright.conformance.rule import RuleStatus

EVERYTHING = bool(os.environ.get("PLUGWRIGHT_MUTANTS"))
VERSIONS = distinct_versions(catalogue.DRIVER_RULES, oldest=34)
RULES = catalogue.DRIVER_RULES
WITH_PARAMETERS = {"PAR-04", "PAR-05"}
TIMED = {"DRG-06", "PRP-18", "SLC-17"}  # a busy machine decides these as well


@pytest.mark.skipif(not EVERYTHING, reason="a minute: make verify-mutants")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", VERSIONS)
async def test_the_correct_driver_keeps_every_rule(version: str) -> None:
    options = replace(driver_options(version), fail=FAIL, recover=RECOVER)
    verdicts = await runner.verify(small_driver(), RULES, options)
    broken = [
        f"{verdict.rule.id} {verdict.status}: expected {verdict.expected}, seen {verdict.seen}"
        for verdict in verdicts
        if verdict.status is not RuleStatus.PASS and verdict.rule.id not in TIMED | WITH_PARAMETERS
    ]
    assert broken == []
    assert len(verdicts) == len(RULES)


async def test_the_correct_driver_takes_its_own_parameters_alone() -> None:
    options = replace(driver_options(), parameters=PARAMETERS)
    rules = catalogue.select(["PAR", "PRP-01", "PRP-07"], dra=True)
    verdicts = await runner.verify(small_driver("", "--takes-parameters"), rules, options)
    assert broken_rules(verdicts, but=()) == []
    assert {verdict.rule.id for verdict in verdicts if verdict.status is RuleStatus.PASS} >= WITH_PARAMETERS
