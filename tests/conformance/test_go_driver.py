"""The same rules on a driver in Go, on the library that drivers have in common: it keeps them, its mutants are caught.

Only with PLUGWRIGHT_MUTANTS=1, since the library takes half a minute to build. It puts lost slices back after up to a
minute, so the rules about that are asked with --full alone.
"""

import asyncio
import os
from pathlib import Path

import pytest
from tests.conformance.verifying import broken_rules, driver_options, missed_mutants, verdict_of
from tests.requirements import go_program

from plugwright.conformance import catalogue, runner
from plugwright.conformance.program import Target
from plugwright.conformance.rule import RuleStatus, Verdict

pytestmark = [
    pytest.mark.skipif(not os.environ.get("PLUGWRIGHT_MUTANTS"), reason="PLUGWRIGHT_MUTANTS=1 builds it"),
    pytest.mark.timeout(600),
]

SOURCE = Path(__file__).parent / "go_driver"
AT_ONCE = 4
# Go's library writes slices again only after a minute.
WITH_FULL = {"DRG-10", "DRG-12", "DST-07", "SLC-12", "SLC-13", "SLC-14"}
WITH_FULL_GROUPS = ("API", "DRR")  # faults of the API server, and leaks
IGNORED = {"PAR-03"}  # the driver has no parameters, and does not look at those of claims: a warning
TIMED = {"DRG-06", "PRP-18"}  # a busy machine decides these as well
SLOW = ("version-with-letter", "dies-of-damage")  # the rule waits for a start that never comes
MUTANTS = {
    "version-with-letter": "SLC-03",
    "prepares-any-device": "PRP-12",
    "gives-twice": "PRP-13",
    "never-frees": "PRP-14",
    "fails-whole-call": "PRP-16",
    "refuses-unknown-end": "UNP-03",
    "writes-no-spec": "CDI-02",
    "leaves-spec": "CDI-05",
    "forgets-claims": "DST-01",
    "trusts-checkpoint": "DST-03",
    "dies-of-damage": "DST-04",
    "without-uid": "DST-06",
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return go_program(SOURCE, tmp_path_factory.mktemp("go-driver"))


def target(program: Path, mutant: str = "") -> Target:
    return Target((str(program), "-root", "{root}", *(("-mutant", mutant) if mutant else ())))


async def test_the_correct_driver_in_go_keeps_every_rule(program: Path, full: bool) -> None:
    every = catalogue.DRIVER_RULES
    short = [rule for rule in every if rule.id not in WITH_FULL and not rule.id.startswith(WITH_FULL_GROUPS)]
    rules = list(every) if full else short
    verdicts = await runner.verify(target(program), rules, driver_options())
    assert broken_rules(verdicts, but=TIMED | IGNORED) == []
    assert sum(verdict.status is RuleStatus.PASS for verdict in verdicts) > 60


async def test_each_mutant_in_go_is_caught_by_its_rule(program: Path) -> None:
    turn = asyncio.Semaphore(AT_ONCE)

    async def verdict(name: str) -> Verdict:
        async with turn:
            return await verdict_of(target(program, name), MUTANTS[name], slow=name in SLOW, dra=True)

    made = await asyncio.gather(*map(verdict, MUTANTS))
    assert not missed_mutants(MUTANTS, made)
