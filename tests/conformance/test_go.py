"""The same rules on a plugin in Go: the correct one keeps them all, and each of its mutants is caught."""

import asyncio
import os
from pathlib import Path

import pytest
from tests.conformance.verifying import FAIL, PATIENT, RECOVER, broken_rules, missed_mutants, verdict_of
from tests.requirements import go_program

from plugwright.conformance import catalogue, runner
from plugwright.conformance.program import Target
from plugwright.conformance.rule import RuleStatus, Verdict
from plugwright.conformance.verifier import VerifyOptions

SOURCE = Path(__file__).parent / "go"
YARDSTICK = Path(__file__).parents[2] / "bench" / "yardstick"
AT_ONCE = 4
TIMED = {"REG-13", "REG-15", "RES-03", "RES-04", "RES-05", "ALO-12", "PRF-10"}  # a busy machine decides these as well
SLOW = ("absolute-endpoint", "fixed-name", "gives-up-when-refused")  # the rule waits for a start that never comes
MUTANTS = {
    "name-without-domain": "REG-03",
    "absolute-endpoint": "REG-06",
    "ends-without-kubelet": "REG-11",
    "gives-up-when-refused": "REG-12",
    "ignores-restart": "REG-14",
    "ignores-its-socket": "REG-17",
    "ignores-lost-stream": "REG-21",
    "repeated-id": "LST-04",
    "health-in-lower-case": "LST-06",
    "numa-minus-one": "LST-07",
    "ends-stream": "LST-09",
    "repeats-list": "LST-13",
    "random-ids": "LST-14",
    "empty-answer": "ALO-02",
    "response-per-device": "ALO-03",
    "responses-reversed": "ALO-04",
    "allocates-unknown": "ALO-05",
    "allocates-unhealthy": "ALO-06",
    "allocates-once": "ALO-08",
    "shares-state": "ALO-11",
    "starts-once": "PST-02",
    "ignores-required": "PRF-04",
    "prefers-at-random": "PRF-06",
    "missing-node": "ANS-01",
    "relative-node": "ANS-03",
    "variable-with-equals": "ANS-07",
    "panics-on-empty": "FLT-05",
    "ignores-sigterm": "END-01",
    "exit-code-3": "END-02",
    "fixed-name": "END-05",
    "removes-others": "END-06",
    "leaks-servers": "RES-01",
    "busy-loop": "RES-05",
    "ignores-failure": "HOT-01",
    "drops-failed": "HOT-02",
}
CHOSEN = list(MUTANTS) if os.environ.get("PLUGWRIGHT_MUTANTS") else list(MUTANTS)[::6]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return go_program(SOURCE, tmp_path_factory.mktemp("go"))


def target(program: Path, mutant: str = "") -> Target:
    return Target((str(program), "-root", "{root}", *(("-mutant", mutant) if mutant else ())))


@pytest.mark.parametrize("version", ["1.26", "1.37"] if os.environ.get("PLUGWRIGHT_MUTANTS") else ["1.37"])
async def test_the_correct_plugin_in_go_keeps_every_rule(program: Path, version: str) -> None:
    verdicts = await runner.verify(target(program), catalogue.RULES, VerifyOptions(version, PATIENT, FAIL, RECOVER))
    assert broken_rules(verdicts, but=TIMED) == []
    assert sum(verdict.status is RuleStatus.PASS for verdict in verdicts) > 95


async def test_each_mutant_in_go_is_caught_by_its_rule(program: Path) -> None:
    turn = asyncio.Semaphore(AT_ONCE)

    async def verdict(name: str) -> Verdict:
        async with turn:
            return await verdict_of(target(program, name), MUTANTS[name], slow=name in SLOW)

    made = await asyncio.gather(*map(verdict, CHOSEN))
    assert not missed_mutants(CHOSEN, made)


async def test_the_yardstick_of_the_benchmark_has_the_verdict_that_the_page_shows(tmp_path: Path) -> None:
    program = go_program(YARDSTICK, tmp_path)
    rules = catalogue.select(["REG-0*", "LST", "ALO", "ANS"])
    verdicts = await runner.verify(Target((str(program), "-dir", "{dir}")), rules, VerifyOptions(limits=PATIENT))
    assert [verdict.rule.id for verdict in verdicts if verdict.status is RuleStatus.FAIL] == []
    seen = await verdict_of(Target((str(program), "-dir", "{dir}")), "REG-12", slow=True)
    assert (seen.status, "not now, says plugwright verify" in seen.seen) == (RuleStatus.FAIL, True)
