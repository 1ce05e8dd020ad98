"""Every rule is shown to fail: each mutant of the small plugin is caught by the rule that is named for it.

All of them run where PLUGWRIGHT_MUTANTS is set (`make verify-mutants`, CI); else every fourth of them.
"""

import asyncio
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.conformance.mutants import MUTANTS
from tests.conformance.verifying import missed_mutants, small_plugin, verdict_of

from plugwright.conformance import catalogue
from plugwright.conformance.rule import Verdict

THOROUGH = {"RES-06"}  # minutes; it is the same as FLT-10, with 2,000 streams
AT_ONCE, IN_ONE_TEST = 4, 8
NAMES = list(MUTANTS) if os.environ.get("PLUGWRIGHT_MUTANTS") else list(MUTANTS)[::4]
BATCHES = [NAMES[number : number + IN_ONE_TEST] for number in range(0, len(NAMES), IN_ONE_TEST)]


async def verdict(name: str, turn: asyncio.Semaphore) -> Verdict:
    mutant = MUTANTS[name]
    async with turn:
        with TemporaryDirectory(prefix="k-", dir="/tmp") as root:
            short = Path(root) if mutant.rule == "REG-07" else None  # room for a name that is too long for a node
            return await verdict_of(small_plugin(name), mutant.rule, mutant.version, short, slow=mutant.slow)


@pytest.mark.parametrize("names", BATCHES, ids=lambda names: f"{names[0]}…")
async def test_each_mutant_is_caught_by_its_rule(names: list[str]) -> None:
    turn = asyncio.Semaphore(AT_ONCE)
    made = await asyncio.gather(*(verdict(name, turn) for name in names))
    assert not missed_mutants(names, made)
    assert all(seen.expected and seen.seen for seen in made)


def test_there_is_a_mutant_for_every_rule() -> None:
    assert {rule.id for rule in catalogue.RULES} - {mutant.rule for mutant in MUTANTS.values()} == THOROUGH
    assert len(MUTANTS) >= 100
