"""Device selectors beside the recorded answers of Kubernetes' own evaluator, and against hostile input."""

import json
import sys

import pytest
from tests.allocator.selector_cases import DEVICES, EXPRESSIONS, RECORDED, asked, compared, device_of

from plugwright.allocator.cel import CelDevice, SelectorError, SelectorTooCostly, compile_selector, version

GPU = device_of(DEVICES[0])
# Stored, they run for seconds until they reach the limit of cost; `make test-allocator` asks them too.
LONG = ("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all(a, [1, 2", "lists.range(1000).all(a, lists.range")


@pytest.mark.parametrize("stored", [False, True], ids=["new", "stored"])
def test_every_selector_is_answered_as_kubernetes_answered_it(stored: bool) -> None:
    recorded = json.loads(RECORDED.read_text())
    assert len(recorded) == len(EXPRESSIONS) >= 300
    differences = {}
    for expression, answers in recorded.items():
        if stored and expression.startswith(LONG):
            continue
        found = compared(asked(expression, stored=stored), answers["stored" if stored else "new"], stored=stored)
        if found:
            differences[expression] = found
    assert not differences


def test_a_selector_that_does_not_compile_names_the_place() -> None:
    with pytest.raises(SelectorError) as failed:
        compile_selector('true &&\n  device.model == "A100"')
    assert str(failed.value) == (
        "compilation failed: ERROR: <input>:2:9: undefined field 'model'\n |   device.model == \"A100\"\n | ........^"
    )


def test_an_unknown_domain_is_empty() -> None:
    assert compile_selector('device.attributes["unknown.example.com"] == {}').matches(GPU)
    with pytest.raises(SelectorError, match="no such key: model"):
        compile_selector('device.attributes["unknown.example.com"].model == "A100"').matches(GPU)


def test_a_version_attribute_that_is_no_version_is_refused() -> None:
    with pytest.raises(SelectorError, match="parse semantic version"):
        version("535")


def test_an_invalid_quantity_of_a_device_is_an_error() -> None:
    device = CelDevice("gpu.example.com", {}, {"gpu.example.com": {"memory": "much"}})
    with pytest.raises(SelectorError, match="quantities must match"):
        compile_selector("true").matches(device)


HOSTILE = {
    "nested parentheses": "(" * 5000 + "true" + ")" * 5000,
    "nested lists": "[" * 3000 + "]" * 3000 + " == []",
    "nested conditions": "true ? " * 1500 + "true" + " : false" * 1500,
    "a long sum": "1" + " + 1" * 3000 + " > 0",
    "a long member chain": "device" + ".a" * 4000,
    "a huge number": "9" * 9000 + " > 1",
    "a huge hexadecimal number": "0x" + "f" * 9000 + " > 1",
    "a huge exponent": "1e999999999 > 1.0",
    "a doubling macro": "optional.of(1)" + ".optMap(x, x)" * 40 + ".hasValue()",
    "an unfinished string": "'" + "a" * 9000,
    "many unfinished strings": "'\\" * 4000,
    "a nested pattern": '"a".matches("' + "(" * 4000 + ")" * 4000 + '")',
    "a repeated pattern": '"a".matches("((((a{999}){999}){999}){999})")',
    "a large precision": '"%.999999999f".format([dyn(1.0)]) == ""',
    "a huge range": "lists.range(900000000000).size() > 0",
    "nested loops": "lists.range(5000).all(a, lists.range(5000).all(b, lists.range(5000).all(c, a + b + c >= 0)))",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("stored", [False, True], ids=["new", "stored"])
def test_hostile_selectors_are_refused_in_little_time(name: str, stored: bool) -> None:
    limit = sys.getrecursionlimit()
    with pytest.raises(SelectorError):
        compile_selector(HOSTILE[name], stored=stored).matches(GPU)
    assert sys.getrecursionlimit() == limit


def test_many_alternatives_are_no_deep_expression() -> None:
    terms = " || ".join(f'device.driver == "d{number}"' for number in range(300))
    assert not compile_selector(terms).matches(GPU)


def test_a_selector_over_the_cost_limit_is_refused_at_creation_and_stopped_when_stored() -> None:
    ten = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"
    expression = "1 > 0"
    for variable in "abcdefg":
        expression = f"{ten}.all({variable}, {expression})"
    with pytest.raises(SelectorTooCostly, match="too complex, exceeds cost limit"):
        compile_selector(expression)
    with pytest.raises(SelectorError, match="actual cost limit exceeded"):
        compile_selector(expression, stored=True).matches(GPU)


def test_a_pattern_that_makes_others_backtrack_takes_linear_time() -> None:
    device = CelDevice("gpu.example.com", {"gpu.example.com": {"model": "a" * 64}}, {})
    assert not compile_selector('device.attributes["gpu.example.com"].model.matches("^(a+)+(a|aa)*$b")').matches(device)
