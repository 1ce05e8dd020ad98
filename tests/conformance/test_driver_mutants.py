"""Every rule for DRA drivers is shown to fail: each mutant of the small driver is caught by the rule named for it.

All of them run where PLUGWRIGHT_MUTANTS is set (`make verify-mutants`, CI); else four of them.
"""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.conformance.driver_mutants import MUTANTS
from tests.conformance.verifying import PARAMETERS, PATIENT, driver_options, missed_mutants, small_driver, verdict_of

from plugwright.conformance import catalogue, runner
from plugwright.conformance.rule import RuleStatus, Verdict

AT_ONCE, IN_ONE_TEST = 4, 8
QUICK = ["names-subrequest", "gives-twice", "counts-wrong", "leaves-spec"]
NAMES = list(MUTANTS) if os.environ.get("PLUGWRIGHT_MUTANTS") else QUICK
BATCHES = [NAMES[number : number + IN_ONE_TEST] for number in range(0, len(NAMES), IN_ONE_TEST)]


async def verdict(name: str, turn: asyncio.Semaphore) -> Verdict:
    mutant = MUTANTS[name]
    async with turn:
        with TemporaryDirectory(prefix="k-", dir="/tmp") as root:
            short = Path(root) if mutant.rule == "DRG-09" else None  # room for a name that is too long for a node
            target = small_driver(name, *(["--takes-parameters"] if mutant.parameters else []))
            parameters = PARAMETERS if mutant.parameters else None
            return await verdict_of(target, mutant.rule, root=short, slow=mutant.slow, dra=True, parameters=parameters)


@pytest.mark.parametrize("names", BATCHES, ids=lambda names: f"{names[0]}…")
async def test_each_mutant_is_caught_by_its_rule(names: list[str]) -> None:
    turn = asyncio.Semaphore(AT_ONCE)
    made = await asyncio.gather(*(verdict(name, turn) for name in names))
    assert not missed_mutants(names, made)
    assert all(seen.expected and seen.seen for seen in made)


@pytest.mark.parametrize(("thorough", "status"), [(False, RuleStatus.PASS), (True, RuleStatus.FAIL)])
async def test_a_claim_that_waits_is_waited_for_as_a_kubelet_does_where_it_is_asked_for(
    thorough: bool, status: RuleStatus
) -> None:
    options = driver_options(limits=replace(PATIENT, wait=0.5))
    [verdict] = await runner.verify(
        small_driver("gives-late"), [catalogue.find("PRP-13")], replace(options, thorough=thorough)
    )
    assert verdict.status is status


def test_there_is_a_mutant_for_every_rule() -> None:
    assert {rule.id for rule in catalogue.DRIVER_RULES} == {mutant.rule for mutant in MUTANTS.values()}
    assert len(catalogue.DRIVER_RULES) >= 40
