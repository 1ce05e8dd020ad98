"""The list of `make mutants` is true: each mistake can be made, and its tests exist."""

import ast
from collections import Counter
from functools import cache

import pytest
from tests.mutants import ROOT, Mutant, load

MUTANTS = load()


@cache
def functions(file: str) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse((ROOT / file).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_there_are_enough_and_each_has_a_name_of_its_own() -> None:
    assert len(MUTANTS) >= 30
    assert [name for name, count in Counter(mutant.id for mutant in MUTANTS).items() if count > 1] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_a_mistake_can_be_made_and_its_tests_exist(mutant: Mutant) -> None:
    changed = mutant.applied((ROOT / mutant.file).read_text())
    assert changed is not None, f"its old text must be in {mutant.file} exactly once"
    ast.parse(changed)
    assert mutant.tests
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert name.partition("[")[0] in functions(file), test
