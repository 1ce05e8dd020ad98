"""Every fact about the real kubelet is cited by a test or has no effect here: README.md keeps the list.

A file cites a fact by its number in parentheses anywhere in a comment or a docstring, as in `(3.16)` or `(2.5, 2.8)`,
or at the beginning of one, as in `# 3.16` or `# 2.5, 2.8`.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LAST = {0: 8, 1: 52, 2: 25, 3: 74, 7: 13}  # the last fact of a section; 4, 5, 6 and 9 have their tables as tests
FACTS = {(section, number) for section, last in LAST.items() for number in range(1, last + 1)}
NUMBERS = r"\d+\.\d+(?:(?:, | to )\d+\.\d+)*"
CITED = re.compile(NUMBERS)
CITATION = re.compile(rf"^({NUMBERS})|\(({NUMBERS})\)")
ROW = re.compile(r"^\| (\S+) \| (.+) \|$", re.MULTILINE)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
Fact = tuple[int, int]


def parsed(text: str) -> Iterator[Fact]:
    """`3.1, 3.4 to 3.6` as facts."""
    for part in text.split(", "):
        first, last = (tuple(map(int, number.split("."))) for number in (part.split(" to ") * 2)[:2])
        for number in range(first[1], last[1] + 1):
            yield first[0], number


def written(facts: set[Fact]) -> str:
    return ", ".join(f"{section}.{number}" for section, number in sorted(facts))


def citations(path: Path) -> set[Fact]:
    """The facts of the sections above that comments and docstrings of one file cite."""
    source = path.read_text()
    comments = [
        token.string.removeprefix("#").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    documented = [node for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED)]
    texts = [*comments, *(" ".join((ast.get_docstring(node) or "").split()) for node in documented)]
    cited = [first or second for text in texts for first, second in CITATION.findall(text)]
    return {fact for numbers in cited for fact in parsed(numbers)} & FACTS


@cache
def cited() -> dict[str, set[Fact]]:
    facts_by_file = {path.name: citations(path) for path in sorted(HERE.rglob("test_*.py"))}
    return {name: facts for name, facts in facts_by_file.items() if facts}


def listed() -> tuple[dict[str, set[Fact]], dict[Fact, str]]:
    """The lists of the README: the facts by file, and those without effect with the reason."""
    tested, without, *_ = (HERE / "README.md").read_text().split("\n## ")
    files = {name: set(parsed(facts)) for name, facts in ROW.findall(tested) if name.startswith("test_")}
    reasons = {fact: reason for facts, reason in ROW.findall(without) if CITED.match(facts) for fact in parsed(facts)}
    return files, reasons


def test_every_fact_is_tested_or_listed_without_effect() -> None:
    files, without = listed()
    missing = FACTS - set().union(*files.values()) - without.keys()
    assert not missing, written(missing)
    assert all(len(reason) > 20 for reason in without.values())


@pytest.mark.parametrize("name", listed()[0])
def test_a_file_cites_what_the_list_says(name: str) -> None:
    missing = listed()[0][name] - cited().get(name, set())
    assert not missing, f"not cited in {name}: {written(missing)}"


def test_facts_without_effect_are_not_cited() -> None:
    _, without = listed()
    assert not written(without.keys() & set().union(*cited().values()))


@pytest.mark.parametrize(
    ("source", "facts"),
    [
        ("# 3.16\n", {(3, 16)}),
        ("# The kubelet refuses such a pod (3.16, 3.18 to 3.20).\n", {(3, 16), (3, 18), (3, 19), (3, 20)}),
        ('def test() -> None:\n    """A refusal (2.5) and its reason\n    (2.8)."""\n', {(2, 5), (2, 8)}),
        ("x = 3.16  # since version 1.28, which is no citation\n", set()),
    ],
)
def test_citation_is_a_number_in_parentheses_or_at_the_beginning(source: str, facts: set[Fact], tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(source)
    assert citations(tmp_path / "test_it.py") == facts
