"""docs/kubelet-behaviour.md: every fact has one number with an anchor, and every number cited in the tree is there.

A citation is a number at the beginning of a comment or docstring (`# 3.57`, `# 2.6, 2.8`), a number in parentheses in a
comment, a docstring or a page (`(2.25)`, `(1.12 to 1.18)`), a finding's code, or a link to the page. Versions of
Kubernetes are no citations.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from plugwright.kubelet.events import Finding

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "kubelet-behaviour.md"
TEXT = PAGE.read_text()
FACT = r"(?<![\w.])(?:1[01]|\d)\.\d{1,2}[ab]?(?![\w.]*\d)"
CITED = rf"{FACT}(?:(?:, and |, | to | and ){FACT})*"
COMMENT_WITH_A_NUMBER = re.compile(rf"#.*{FACT}")
AT_THE_BEGINNING = re.compile(rf"({CITED})(?=$|[.:;,])")
IN_PARENTHESES = re.compile(rf"\(({CITED})(?=[);])")
IN_A_CELL = re.compile(rf"(?<=\| )({CITED})(?= \|)")
NAMED = re.compile(rf"\b(?:finding|fact) ({FACT})")
LINKED = re.compile(r"kubelet-behaviour\.md#([\w.-]+)")
ANCHORS = re.findall(r'<a id="([^"]+)"></a>', TEXT)
HEADINGS = {
    re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    for heading in re.findall(r"^##+ (.+)$", TEXT, re.MULTILINE)
}
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests" / "kubelet").rglob("*.py"))
PAGES = [
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path != PAGE),
    ROOT / "tests" / "kubelet" / "README.md",
]


def numbers(text: str) -> Iterator[str]:
    """Both ends of a range are cited."""
    yield from re.findall(FACT, text)


def comments(source: str) -> Iterator[str]:
    if not COMMENT_WITH_A_NUMBER.search(source):
        return  # a module takes a hundredth of a second to be split
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("# ")


def docstrings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def codes(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Strings that are nothing but a number, as findings are reported by."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(FACT, node.value):
            yield node.value


@cache
def cited_in_module(path: Path) -> frozenset[str]:
    source = path.read_text()
    return frozenset(citations(path, source) if re.search(FACT, source) else ())


def citations(path: Path, source: str) -> Iterator[str]:
    nodes = list(ast.walk(ast.parse(source)))
    for text in (*comments(source), *docstrings(nodes)):
        if beginning := AT_THE_BEGINNING.match(text):
            yield from numbers(beginning[1])
        for cited in IN_PARENTHESES.findall(text):
            yield from numbers(cited)
    if path.is_relative_to(ROOT / "src" / "plugwright" / "kubelet") and path.name != "versions.py":
        yield from codes(nodes)


def cited_in_page(path: Path) -> Iterator[str]:
    text = path.read_text()
    for pattern in (IN_PARENTHESES, NAMED, *([IN_A_CELL] if path.name == "README.md" else [])):
        for cited in pattern.findall(text):
            yield from numbers(cited)
    yield from LINKED.findall(text)


def order(fact: str) -> tuple[int, int, str]:
    section, number = fact.split(".")
    return int(section), int(number.rstrip("abcd")), number[-1]


def test_every_number_is_there_once_and_in_order() -> None:
    assert len(ANCHORS) == len(set(ANCHORS)) > 280
    assert sorted(ANCHORS, key=order) == ANCHORS


def test_the_numbers_of_a_section_have_no_gaps() -> None:
    for section in {fact.partition(".")[0] for fact in ANCHORS}:
        section_numbers = [
            order(fact)[1] for fact in ANCHORS if fact.startswith(f"{section}.") and fact[-1] not in "abcd"
        ]
        assert section_numbers == list(range(1, len(section_numbers) + 1))


def test_every_fact_shows_its_number_and_ends_with_its_versions() -> None:
    facts = re.findall(r'^- <a id="([^"]+)"></a>\*\*([^*]+)\*\* .+ _\([^()]*\b1\.\d+\b.*\)_$', TEXT, re.MULTILINE)
    assert [anchor for anchor, shown in facts if anchor == shown] == ANCHORS


def test_links_within_the_page_lead_somewhere() -> None:
    assert not set(re.findall(r"\]\(#([^)]+)\)", TEXT)) - HEADINGS - set(ANCHORS)


def test_citations_of_a_module_are_on_the_page() -> None:
    cited = {str(path.relative_to(ROOT)): cited_in_module(path) - set(ANCHORS) for path in (*SOURCES, *TESTS)}
    assert {path: unknown for path, unknown in cited.items() if unknown} == {}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_citations_of_a_page_are_on_the_page(path: Path) -> None:
    assert not set(cited_in_page(path)) - set(ANCHORS) - HEADINGS


def test_citations_are_recognised() -> None:
    emulator = {fact for path in SOURCES if "kubelet" in path.parts for fact in cited_in_module(path)}
    assert len(emulator) > 60
    assert {"2.25", "10.4"} <= emulator
    assert len({fact for path in TESTS for fact in cited_in_module(path)}) > 150


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("3.57", ["3.57"]),
        ("2.6, 2.8", ["2.6", "2.8"]),
        ("1.12 to 1.16", ["1.12", "1.16"]),
        ("5.4; the real kubelet crashes", ["5.4"]),
        ("4.28: an entry is dropped", ["4.28"]),
        ("10.18a, 10.18b", ["10.18a", "10.18b"]),
        ("1.37 on: refused", []),
        ("1.34.7, 1.35.4", []),
        ("0.5 s", []),
    ],
)
def test_a_citation_begins_a_comment_and_a_version_is_none(text: str, facts: list[str]) -> None:
    beginning = AT_THE_BEGINNING.match(text)
    assert (list(numbers(beginning[1])) if beginning else []) == facts


def test_a_finding_names_its_place_on_the_page() -> None:
    finding = Finding("2.25", "example.com/gpu", "a device was dropped", "crashes")
    path, _, anchor = finding.page.partition("#")
    assert ROOT / path == PAGE
    assert anchor in ANCHORS
