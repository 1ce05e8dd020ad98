"""`make mutants-random` makes the mistakes that its rules name, and the same ones for the same seed."""

import ast
from collections import Counter

import pytest
from tests.mutants import ROOT
from tests.random_mutants import PACKAGES, RULES, candidates, choose, relevant_tests

SOURCE = """
async def grant(device, pod, free):
    if device in free:
        await record(device, pod)
    try:
        return free[1 - 0] if len(free) > 2 else pod
    except KeyError:
        raise Refused(pod) from None
    except OSError:
        free.clear()
        return None
    logger.info(device, pod)
"""
MADE = {
    "negated condition": {"if (not (device in free)):", "if (not (len(free) > 2)) else"},
    "dropped await": {"    (record(device, pod))"},
    "swapped arguments": {"await record(pod, device)"},
    "off by one": {"len(free) >= 2", "free[2 - 0]", "free[1 - 1]", "len(free) > 3"},
    "swallowed exception": {"KeyError:\n        pass\n", "OSError:\n        pass\n    logger"},
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_makes_its_mistakes(rule: str) -> None:
    made = [mutant.applied(SOURCE) for mutant in candidates("grant.py", SOURCE) if mutant.rule == rule]
    assert len(made) == len(MADE[rule])
    for part in MADE[rule]:
        (text,) = [text for text in made if part in text]
        assert part not in SOURCE
        ast.parse(text)


def test_a_seed_chooses_the_same_mistakes_evenly_among_the_rules() -> None:
    mutants = choose(7, 50)
    assert mutants == choose(7, 50)
    assert mutants != choose(8, 50)
    assert set(Counter(mutant.rule for mutant in mutants).values()) == {10}
    for mutant in mutants:
        text = (ROOT / mutant.file).read_text()
        ast.parse(mutant.applied(text))
        assert f"{mutant.file}:{mutant.line}  {mutant.rule}" in mutant.described(text)


def test_a_modules_own_tests_run_first_and_its_packages_last() -> None:
    first, *others = relevant_tests("src/plugwright/sdk/holdings/book.py")
    assert first.startswith("tests/sdk/holdings/test_")  # there is no test_book.py: the first one that imports it
    assert others[-2:] == ["tests/sdk/holdings", "tests/sdk"]
    assert relevant_tests("src/plugwright/sdk/history.py")[0] == "tests/sdk/test_history.py"
    assert all((ROOT / "tests" / package).is_dir() for package in PACKAGES)
