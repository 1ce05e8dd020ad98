"""No rule for DRA drivers fails on one that is correct, and our own driver keeps them too.

Every version of the kubelet, and every rule for our own driver, where PLUGWRIGHT_MUTANTS is set. Our driver waits for
devices and claims within a call, so each refusal takes it 40 seconds.
"""

import os
import sys

import pytest
from tests.conformance.verifying import driver_options, small_driver

from plugwright.conformance import catalogue, runner
from plugwright.conformance.program import Target
from plugwright.conformance.rule import RuleStatus, Verdict

EVERYTHING = bool(os.environ.get("PLUGWRIGHT_MUTANTS"))
VERSIONS = ["1.34", "1.35", "1.36", "1.37"] if EVERYTHING else ["1.37"]
CONFIG = (
    'host: {"cdi": "{cdi}"}\nresources:\n- {name: example.com/part, mock: {count: 4, nodes: true}, serve: {api: dra}}\n'
)
OWN = f"printf '{CONFIG}' > {{root}}/own.yaml; exec {sys.executable} -m plugwright run -c {{root}}/own.yaml"
TIMED = {"DRG-06", "PRP-18", "SLC-17"}  # a busy machine decides these as well


def failures(verdicts: list[Verdict]) -> list[str]:
    return [
        f"{verdict.rule.id} {verdict.status}: expected {verdict.expected}, seen {verdict.seen}"
        for verdict in verdicts
        if verdict.status in (RuleStatus.FAIL, RuleStatus.WARNING) and verdict.rule.id not in TIMED
    ]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", VERSIONS)
async def test_the_correct_driver_keeps_every_rule(version: str) -> None:
    verdicts = await runner.verify(small_driver(), catalogue.DRIVER_RULES, driver_options(version))
    assert failures(verdicts) == []
    assert [verdict.rule.id for verdict in verdicts if verdict.status is RuleStatus.NOT_APPLICABLE] == []
    assert len(verdicts) == len(catalogue.DRIVER_RULES)


@pytest.mark.timeout(900)
async def test_our_own_driver_keeps_every_rule() -> None:
    quick = ["DRG", "SLC-05", "SLC-11", "PRP-01", "PRP-05", "CDI", "UNP-04", "RGT", "DRE-03"]
    rules = catalogue.select([] if EVERYTHING else quick, dra=True)
    target = Target(("sh", "-c", OWN), {"PLUGWRIGHT_KUBELET_DIR": "{root}", "PLUGWRIGHT_STATE_DIR": "{root}/state"})
    verdicts = await runner.verify(target, rules, driver_options())
    assert failures(verdicts) == []
    assert sum(verdict.status is RuleStatus.PASS for verdict in verdicts) >= len(rules) * 0.85
