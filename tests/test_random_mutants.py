"""`make mutants-random` makes the mistakes that its rules name, and the same ones for the same seed."""

import ast
import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.executed_lines import ExecutedLines, ordered_tests, statement_line
from tests.line_recorder import CALL, instrumented
from tests.mutant_worker import put_into_imported_functions
from tests.mutants import ROOT
from tests.random_mutants import PACKAGES, RULES, RandomMutant, candidates, choose, relevant_tests, steps

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


def test_each_statement_of_a_function_reports_its_line_when_it_is_executed() -> None:
    source = """
def weigh(number):
    '''A docstring.'''
    try:
        if number > 2:
            return "many"
        elif number:
            return [each for each in range(number)]
        with open(number) as file: pass
    except OSError:
        return "none"
    def never(): return 1
"""
    executed: list[str] = []
    names: dict[str, Any] = {CALL: executed.append}
    exec(compile(instrumented(source, "weigh.py"), "weigh.py", "exec"), names)
    assert executed == []
    assert names["weigh"].__doc__ == "A docstring."
    assert names["weigh"](1) == [0]
    assert executed == [f"weigh.py:{line}" for line in (4, 5, 7, 8)]
    executed.clear()
    assert names["weigh"](-1) == []
    assert executed == [f"weigh.py:{line}" for line in (4, 5, 7, 8)]


def test_a_mistake_belongs_to_the_innermost_statement() -> None:
    assert statement_line("def f():\n    if (a and\n            b):\n        return (1,\n            2)\n", 3) == 2
    assert statement_line("def f():\n    if (a and\n            b):\n        return (1,\n            2)\n", 5) == 4


def test_lines_have_the_tests_that_passed_and_executed_them_fastest_first() -> None:
    output = """
2.00s call     tests/sdk/test_a.py::test_slow
0.25s setup    tests/sdk/test_a.py::test_quick[a b]
0.25s call     tests/sdk/test_a.py::test_quick[a b]
0.01s call     tests/sdk/test_a.py::test_failed
FAILED tests/sdk/test_a.py::test_failed - assert 1 == 2
"""
    quick, slow, failed = (f"tests/sdk/test_a.py::test_{name}" for name in ("quick[a b]", "slow", "failed"))
    records = [(slow, "sdk/a.py:1"), (quick, "sdk/a.py:1"), (failed, "sdk/a.py:2"), ("", "sdk/a.py:3")]
    lines = ordered_tests(output, records)
    assert lines.tests_of("src/plugwright/sdk/a.py", 1) == [quick, slow]
    assert lines.tests_of("src/plugwright/sdk/a.py", 2) == []
    assert lines.tests_of("src/plugwright/sdk/a.py", 3) is None  # in a process of which the test is not known


def test_tests_of_the_module_run_before_others_that_execute_the_line() -> None:
    file = "src/plugwright/sdk/history.py"
    own, other = "tests/sdk/test_history.py::test_own", "tests/sdk/test_zebra.py::test_other"
    mutant = RandomMutant(rule="", file=file, line=1, start=0, end=0, new="")
    lines = ExecutedLines(tests=[other, own], seconds=[0.1, 0.2], lines={"sdk/history.py:1": [0, 1]}, unknown=[])
    first, last = steps(mutant, lines)
    assert first == [own, other]
    assert last[0] == "tests/sdk/test_history.py"
    assert [*steps(mutant, ExecutedLines(tests=[], seconds=[], lines={}, unknown=[]))] == []
    unknown = ExecutedLines(tests=[], seconds=[], lines={}, unknown=["sdk/history.py:1"])
    assert [*steps(mutant, unknown)] == [relevant_tests(file)]


def test_a_mistake_is_put_into_functions_that_are_imported(tmp_path: Path) -> None:
    """Also if they are wrapped, or repeat a name."""
    before = """
from functools import cache, partial

@cache
def wrapped(number):
    def inner(): return number < 2
    return inner()

class Scale:
    @property
    def limit(self): return 1
    @limit.setter
    def limit(self, value): self.value = value + 1
"""
    path = tmp_path / "scale.py"
    path.write_text(before)
    scale = runpy.run_path(str(path))
    after = before.replace("number < 2", "number <= 2").replace("value + 1", "value + 2")
    assert put_into_imported_functions(str(path), before, after) == 2
    assert scale["wrapped"](2)
    made = scale["Scale"]()
    made.limit = 1
    assert (made.value, made.limit) == (3, 1)
    assert put_into_imported_functions(str(path), after, after) == 0
