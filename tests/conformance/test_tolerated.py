"""Rules do not fail programs for what a kubelet tolerates: each case was a false finding on a real program once.

With PLUGWRIGHT_MUTANTS=1 rules that restart the driver are checked as well.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conformance.verifying import PATIENT

from plugwright.conformance import catalogue, runner
from plugwright.conformance.program import Target
from plugwright.conformance.rule import RuleStatus
from plugwright.conformance.verifier import VerifyOptions

PROGRAM = str(Path(__file__).parent / "tolerated.py")
QUICK = replace(PATIENT, prompt=1, wait=0.5, lease=0.5)
EVERYTHING = bool(os.environ.get("PLUGWRIGHT_MUTANTS"))
NOTES = {"ALO-07", "REG-21", "REG-22", "END-07", "DST-06"}


async def statuses(variant: str, *rules: str, dra: bool = False) -> dict[str, RuleStatus]:
    target = Target((sys.executable, PROGRAM, "--root", "{root}", "--variant", variant))
    selected = [catalogue.find(rule) for rule in rules]
    verdicts = await runner.verify(target, selected, VerifyOptions(limits=QUICK, dra=dra))
    return {verdict.rule.id: verdict.status for verdict in verdicts if verdict.rule.id in rules}


@pytest.mark.parametrize(
    ("variant", "rules"),
    [
        ("EndsWithoutKubelet", ["REG-11"]),
        ("EndsWithTheKubelet", ["REG-16"]),
        ("NamesSocketByTheSecond", ["END-05"]),
        ("ComesBackAfterPause", ["REG-17"]),
        ("ServesAgain", ["REG-25"]),
    ],
)
async def test_a_plugin_passes(variant: str, rules: list[str]) -> None:
    assert await statuses(variant, *rules) == dict.fromkeys(rules, RuleStatus.PASS)


@pytest.mark.parametrize(
    ("variant", "rules"),
    [
        ("OpenToReaders", ["DRG-08"]),
        ("OneFileForAll", ["CDI-06"]),
        ("CommonDevice", ["PRP-23", "PRP-26", "CDI-01", "UNP-05", "UNP-06"]),
        ("AnswersWithoutDevices", ["PRP-06", "PRP-08", "PRP-19"]),
        ("RefusesDamagedState", ["DST-04"]),
    ],
)
async def test_a_driver_passes(variant: str, rules: list[str]) -> None:
    assert await statuses(variant, *rules, dra=True) == dict.fromkeys(rules, RuleStatus.PASS)


async def test_a_driver_without_the_last_line_of_defense_fails_one_rule() -> None:
    restarts = ["DST-01", "DST-07"] if EVERYTHING else []
    made = await statuses("TrustsScheduler", "PRP-13", "PRP-15", "PRP-19", "UNP-07", *restarts, dra=True)
    assert made.pop("PRP-13") is RuleStatus.FAIL
    assert set(made.values()) == {RuleStatus.PASS}


async def test_the_end_of_a_long_lease_is_not_awaited() -> None:
    assert await statuses("LeasesForAnHour", "DRR-06", dra=True) == {"DRR-06": RuleStatus.NOT_CHECKED}


def test_rules_about_few_nodes_are_notes_which_only_their_names_select() -> None:
    every = (*catalogue.RULES, *catalogue.DRIVER_RULES)
    assert {rule.id for rule in every if rule.note} == NOTES
    assert not NOTES & {rule.id for dra in (False, True) for rule in catalogue.select(dra=dra)}
    assert catalogue.select(["END-07"]) == [catalogue.find("END-07")]
