"""Device selectors beside Kubernetes' own evaluator, which a small Go program runs.

`python -m tests.allocator.test_selectors_beside_kubernetes PROGRAM` records its answers for the tests without Go.
"""

import json
import os
import random
import sys
from pathlib import Path

import pytest
from tests.allocator.selector_cases import EXPRESSIONS, RECORDED, answers_of, asked, compared
from tests.requirements import go_program

pytestmark = [
    pytest.mark.skipif("PLUGWRIGHT_WORLDS" not in os.environ, reason="needs Go modules: make test-allocator"),
    pytest.mark.timeout(600),  # the Go program is compiled first
]

SOURCE = Path(__file__).parent / "cel_oracle"
RANDOM = 1500

_ATOMS = {
    "bool": ["true", "false", "device.allowMultipleAllocations", 'device.attributes["gpu.example.com"].shared'],
    "int": ["0", "1", "-3", "7", 'device.attributes["gpu.example.com"].index', "size(device.driver)", "[1, 2][1]"],
    "string": ['"A100"', '""', "device.driver", 'device.attributes["gpu.example.com"].model', '"a-b-c"'],
    "quantity": ['quantity("1Gi")', 'quantity("40Gi")', 'device.capacity["gpu.example.com"].memory', 'quantity("x")'],
    "version": ['semver("1.0.0")', 'device.attributes["gpu.example.com"].driverVersion', 'semver("v1", true)'],
}
_FORMS = {
    "bool": [
        "({bool} && {bool})",
        "({bool} || {bool})",
        "!{bool}",
        "({bool} ? {bool} : {bool})",
        "({int} < {int})",
        "({int} == {string})",
        "({string} == {string})",
        "({string} != {version})",
        "{string}.startsWith({string})",
        "({string} in [{string}, {string}])",
        "{quantity}.isGreaterThan({quantity})",
        "({quantity} == {quantity})",
        "{version}.isLessThan({version})",
        "[{int}, {int}].exists(x, x > {int})",
        "[{string}].all(x, x == {string} || {bool})",
        "cel.bind(v, {int}, v > {int} && {bool})",
        'has(device.attributes["gpu.example.com"].model)',
        "{string}.matches({string})",
        "optional.of({bool}).orValue({bool})",
    ],
    "int": ["({int} + {int})", "({int} / {int})", "{quantity}.compareTo({quantity})", "{string}.indexOf({string})"],
    "string": [
        "({string} + {string})",
        "{string}.substring({int})",
        '{string}.replace("-", {string})',
        "string({int})",
    ],
    "quantity": ["{quantity}.add({quantity})", "({bool} ? {quantity} : {quantity})"],
    "version": ["({bool} ? {version} : {version})"],
}


def _random(kind: str, depth: int, chance: random.Random) -> str:
    if depth == 0 or chance.random() < 0.2:
        return chance.choice(_ATOMS[kind])
    form = chance.choice(_FORMS[kind])
    while "{" in form and (found := next((name for name in _ATOMS if f"{{{name}}}" in form), None)):
        wrong = chance.random() < 0.01
        inner = _random(chance.choice(list(_ATOMS)) if wrong else found, depth - 1, chance)
        form = form.replace(f"{{{found}}}", inner, 1)
    return form


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return go_program(SOURCE, tmp_path_factory.mktemp("go"))


def _differences(program: Path, expressions: list[str]) -> dict[str, str]:
    questions = [(expression, stored) for expression in expressions for stored in (False, True)]
    found = {}
    for (expression, stored), theirs in zip(questions, answers_of(program, questions), strict=True):
        difference = compared(asked(expression, stored=stored), theirs, stored=stored)
        if difference:
            found[expression] = difference
    return found


def test_selectors_are_answered_as_kubernetes_answers_them(oracle: Path) -> None:
    assert _differences(oracle, EXPRESSIONS) == {}


def test_random_selectors_are_answered_as_kubernetes_answers_them(oracle: Path) -> None:
    chance = random.Random(int(os.environ.get("PLUGWRIGHT_SEED", "32")))
    assert _differences(oracle, [_random("bool", 4, chance) for _ in range(RANDOM)]) == {}


def record(program: Path) -> None:
    new = answers_of(program, [(expression, False) for expression in EXPRESSIONS])
    stored = answers_of(program, [(expression, True) for expression in EXPRESSIONS])
    rows = zip(EXPRESSIONS, new, stored, strict=True)
    lines = [f"{json.dumps(each)}: {json.dumps({'new': one, 'stored': other})}" for each, one, other in rows]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
