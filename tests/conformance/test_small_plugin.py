"""No rule fails on a plugin that is correct, with any kubelet version, and nothing is left of it."""

import os

import pytest
from tests.conformance.verifying import FAIL, PATIENT, RECOVER, broken_rules, distinct_versions, small_plugin

from plugwright.conformance import catalogue, runner
from plugwright.conformance.rule import RuleStatus
from plugwright.conformance.verifier import VerifyOptions

VERSIONS = distinct_versions(catalogue.RULES, oldest=26) if os.environ.get("PLUGWRIGHT_MUTANTS") else ["1.37"]
TIMED = {"REG-13", "REG-15", "RES-03", "RES-04", "RES-05", "ALO-12", "PRF-10"}  # a busy machine decides these as well


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_correct_plugin_keeps_every_rule(version: str) -> None:
    options = VerifyOptions(version, PATIENT, FAIL, RECOVER)
    verdicts = await runner.verify(small_plugin(), catalogue.RULES, options)
    assert broken_rules(verdicts, but=TIMED) == []
    assert len(verdicts) == len(catalogue.RULES)
    asked = [verdict for verdict in verdicts if verdict.status is RuleStatus.PASS]
    assert len(asked) > 100


async def test_the_correct_plugin_keeps_the_rules_in_the_registry() -> None:
    verdicts = await runner.verify(
        small_plugin("", "--watched"), catalogue.select(["REG", "LST"]), VerifyOptions(limits=PATIENT)
    )
    assert broken_rules(verdicts, but=TIMED) == []
    ids = {verdict.rule.id for verdict in verdicts if verdict.status is RuleStatus.PASS}
    assert {"REG-01", "REG-14", "REG-23", "REG-24", "LST-10"} <= ids
