"""Random worlds beside upstream's allocator of 1.36 and 1.37; `make test-allocator` sets their number and seeds."""

import os
from pathlib import Path

import pytest
from tests.allocator.comparing import differences, oracle, our_answer, upstream_answers
from tests.allocator.random_worlds import world

WORLDS = int(os.environ.get("PLUGWRIGHT_WORLDS", "0"))
SEEDS = range(seed := int(os.environ.get("PLUGWRIGHT_SEED", "0")), seed + WORLDS)


@pytest.mark.skipif(not WORLDS, reason="needs Go modules: make test-allocator")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", ["1.36", "1.37"])
def test_random_worlds_are_allocated_as_upstream_does(version: str, tmp_path: Path) -> None:
    program = oracle(version, tmp_path)
    questions = [world(seed, version) for seed in SEEDS]
    wrong, supported, fit = [], 0, 0
    for seed, question, expected in zip(SEEDS, questions, upstream_answers(program, questions), strict=True):
        ours = our_answer(question)
        if "unsupported" in ours:
            continue
        supported += 1
        fit += bool(ours.get("results"))
        difference = differences(question, expected, ours)
        if difference:
            wrong.append(f"seed {seed}: {difference}")
    assert not wrong, "\n".join(wrong)
    assert supported > 0.9 * WORLDS
    assert fit > 0.2 * WORLDS
