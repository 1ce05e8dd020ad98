"""Every fact about the real kubelet is cited by a test, or said to have no effect here: README.md keeps the list.

A test cites a fact by its number at the beginning of a comment or of its docstring, as in `# 3.16` or `# 2.5, 2.8`.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LAST = {0: 8, 1: 52, 2: 25, 3: 74, 7: 13}  # the last fact of each section; 4, 5, 6 and 9 have their tables as tests
FACTS = {(section, number) for section, last in LAST.items() for number in range(1, last + 1)}
CITED = re.compile(r"\d+\.\d+(?:(?:, | to )\d+\.\d+)*")
ROW = re.compile(r"^\| (\S+) \| (.+) \|$", re.MULTILINE)
Fact = tuple[int, int]


def parsed(text: str) -> Iterator[Fact]:
    """`3.1, 3.4 to 3.6` as facts."""
    for part in text.split(", "):
        first, last = (tuple(map(int, each.split("."))) for each in (part.split(" to ") * 2)[:2])
        for number in range(first[1], last[1] + 1):
            yield first[0], number


def written(facts: set[Fact]) -> str:
    return ", ".join(f"{section}.{number}" for section, number in sorted(facts))


def citations(path: Path) -> set[Fact]:
    """Of the sections listed above, in comments and docstrings of one file."""
    source = path.read_text()
    comments = [
        token.string.removeprefix("#").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    texts = [*comments, *(ast.get_docstring(each) or "" for each in functions)]
    return {fact for text in texts if (cited := CITED.match(text)) for fact in parsed(cited[0])} & FACTS


def cited() -> dict[str, set[Fact]]:
    found = {path.name: citations(path) for path in sorted(HERE.rglob("test_*.py"))}
    return {name: facts for name, facts in found.items() if facts}


def listed() -> tuple[dict[str, set[Fact]], dict[Fact, str]]:
    """What the README says: the facts by file, and those without effect with the reason."""
    tested, without, *_ = (HERE / "README.md").read_text().split("\n## ")
    files = {name: set(parsed(facts)) for name, facts in ROW.findall(tested) if name.startswith("test_")}
    reasons = {fact: reason for facts, reason in ROW.findall(without) if CITED.match(facts) for fact in parsed(facts)}
    return files, reasons


def test_every_fact_is_tested_or_said_to_have_no_effect() -> None:
    files, without = listed()
    missing = FACTS - set().union(*files.values()) - without.keys()
    assert not missing, written(missing)
    assert all(len(reason) > 20 for reason in without.values())


@pytest.mark.parametrize("name", listed()[0])
def test_a_file_cites_what_the_list_says(name: str) -> None:
    claimed, found = listed()[0][name], cited().get(name, set())
    assert not claimed - found, f"not cited in {name}: {written(claimed - found)}"


def test_what_has_no_effect_is_not_tested() -> None:
    _, without = listed()
    assert not written(without.keys() & set().union(*cited().values()))
