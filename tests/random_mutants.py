"""`make mutants-random SEED=7`: makes mistakes by rule in the daemon's code, and counts those that tests notice.

The seed chooses COUNT mistakes, evenly among the rules, in `sdk/`, `dra/`, `protocol/` and `system/`. For each mistake
the tests that execute its statement run until the first failure, the fastest first, and then all that import its
module. If it is not known which tests execute the statement, the tests of its package run. A mistake that survives is
printed with its line. Results are stored in `build/` until the code or the tests change, so that a run continues where
it was stopped. Exit code 1 if fewer than 90 % are noticed.
"""

import argparse
import ast
import json
import random
import re
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.executed_lines import ExecutedLines, content_of_the_tree, executed_lines, statement_line
from tests.mutant_worker import MutantWorker
from tests.mutants import ROOT, Outcome, copies_of_the_tree, outcome_of, own_processes, pytest_arguments, run_tests

__all__ = [
    "PACKAGES",
    "RULES",
    "RandomMutant",
    "candidates",
    "choose",
    "importing_tests",
    "main",
    "relevant_tests",
    "steps",
]

PACKAGES = ("sdk", "dra", "protocol", "system")
_SOURCE = Path("src") / "plugwright"
_BAR = 0.9  # of all mistakes must be noticed

Span = tuple[int, int]  # byte offsets
Edit = tuple[Span, str]  # the text in place of that
Rule = Callable[[ast.AST, "_Source"], Iterator[Edit]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomMutant:
    """`start` and `end` are byte offsets in `file`, which has `new` there instead."""

    rule: str
    file: str
    line: int
    start: int
    end: int
    new: str

    def applied(self, text: str) -> str:
        encoded = text.encode()
        return b"".join((encoded[: self.start], self.new.encode(), encoded[self.end :])).decode()

    def described(self, text: str) -> str:
        old = " ".join(text.encode()[self.start : self.end].decode().split())
        return f"{self.file}:{self.line}  {self.rule}: {_short(old)} -> {_short(' '.join(self.new.split()))}"


def _short(text: str) -> str:
    return text if len(text) <= 70 else f"{text[:67]}..."


def _negated_condition(node: ast.AST, source: "_Source") -> Iterator[Edit]:
    if isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.Constant):
        yield source.span(node.test), f"(not ({source.of(node.test)}))"
    if isinstance(node, ast.comprehension):
        yield from ((source.span(test), f"(not ({source.of(test)}))") for test in node.ifs)


def _dropped_await(node: ast.AST, source: "_Source") -> Iterator[Edit]:
    if isinstance(node, ast.Await):
        yield source.span(node), f"({source.of(node.value)})"


def _swapped_arguments(node: ast.AST, source: "_Source") -> Iterator[Edit]:
    if not isinstance(node, ast.Call) or len(node.args) < 2 or _is_log_line(node):
        return
    first, second = node.args[:2]
    if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
        (start, between), (end_of_gap, end) = source.span(first), source.span(second)
        if source.of(first) != source.of(second):
            yield (start, end), f"{source.of(second)}{source.between(between, end_of_gap)}{source.of(first)}"


def _off_by_one(node: ast.AST, source: "_Source") -> Iterator[Edit]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _NEIGHBOURS:
        left, right = source.of(node.left), source.of(node.comparators[0])
        yield source.span(node), f"{left} {_NEIGHBOURS[type(node.ops[0])]} {right}"
    if isinstance(node, ast.BinOp | ast.Slice | ast.Compare):
        for value in ast.iter_child_nodes(node):
            if isinstance(value, ast.Constant) and type(value.value) is int:
                yield source.span(value), str(value.value + 1)


_NEIGHBOURS: dict[type[ast.cmpop], str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}


def _swallowed_exception(node: ast.AST, source: "_Source") -> Iterator[Edit]:
    if isinstance(node, ast.Raise):
        yield source.span(node), "pass"
    if isinstance(node, ast.ExceptHandler) and ast.unparse(ast.Module(node.body, [])) not in _LITTLE:
        yield (source.span(node.body[0])[0], source.span(node.body[-1])[1]), "pass"


_LITTLE = ("pass", "raise", "return", "return None", "continue")  # in a handler: as good as `pass`, or another mistake


RULES: dict[str, Rule] = {
    "negated condition": _negated_condition,
    "dropped await": _dropped_await,
    "swapped arguments": _swapped_arguments,
    "off by one": _off_by_one,
    "swallowed exception": _swallowed_exception,
}


class _Source:
    """The text of a file, by the positions of its nodes."""

    def __init__(self, text: str) -> None:
        self._bytes = text.encode()
        self._lines = [0]
        for line in self._bytes.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> Span:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._lines[node.lineno - 1] + node.col_offset
        return start, self._lines[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: ast.expr | ast.stmt) -> str:
        return self.between(*self.span(node))

    def between(self, start: int, end: int) -> str:
        return self._bytes[start:end].decode()

    def line(self, offset: int) -> int:
        return bisect_right(self._lines, offset)


def _is_log_line(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) in ("logger", "logging")


def candidates(file: str, text: str) -> Iterator[RandomMutant]:
    """All mistakes in the functions of a file."""
    source = _Source(text)
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    seen = set()
    for node in (each for function in functions for statement in function.body for each in ast.walk(statement)):
        for rule, edits in RULES.items():
            for (start, end), new in edits(node, source):
                if (rule, start, new) not in seen:  # a function inside another is walked twice
                    seen.add((rule, start, new))
                    yield RandomMutant(rule=rule, file=file, line=source.line(start), start=start, end=end, new=new)


def choose(seed: int, count: int, packages: Sequence[str] = PACKAGES) -> list[RandomMutant]:
    """The same ones for the same seed and tree; each rule equally often while it has any left."""
    by_rule: dict[str, list[RandomMutant]] = {rule: [] for rule in RULES}
    for package in packages:
        for path in sorted((ROOT / _SOURCE / package).rglob("*.py")):
            for mutant in candidates(str(path.relative_to(ROOT)), path.read_text()):
                by_rule[mutant.rule].append(mutant)
    chance = random.Random(seed)
    for mutants in by_rule.values():
        chance.shuffle(mutants)
    chosen: list[RandomMutant] = []
    while len(chosen) < count and any(by_rule.values()):
        chosen.extend(mutants.pop() for mutants in by_rule.values() if mutants)
    return chosen[:count]


def relevant_tests(file: str) -> tuple[str, ...]:
    """The test file of the module, those that import it, and the folder of its package."""
    module = Path(file).relative_to(_SOURCE)
    nearest = Path("tests", *module.parts[:-1])
    folders = [str(each) for each in (nearest, Path("tests", module.parts[0])) if (ROOT / each).is_dir()]
    return tuple(dict.fromkeys([*importing_tests(file), *folders]))


def importing_tests(file: str) -> tuple[str, ...]:
    """The test file of the module, and those that import it."""
    module = Path(file).relative_to(_SOURCE)
    dotted = ".".join(("plugwright", *module.with_suffix("").parts))
    parent, _, name = dotted.rpartition(".")
    own = Path("tests", *module.parts[:-1], f"test_{module.name}")
    users = [
        str(path.relative_to(ROOT))
        for folder in PACKAGES
        for path in sorted((ROOT / "tests" / folder).rglob("test_*.py"))
        if f"from {dotted} import" in (text := path.read_text()) or f"from {parent} import {name}" in text
    ]
    first = [str(own)] if (ROOT / own).is_file() else []
    return tuple(dict.fromkeys([*first, *users]))


def steps(mutant: RandomMutant, lines: ExecutedLines) -> Iterator[Sequence[str]]:
    """Tests that run one step after the other until one fails."""
    executing = lines.tests_of(mutant.file, statement_line((ROOT / mutant.file).read_text(), mutant.line))
    if executing is None:
        yield relevant_tests(mutant.file)
        return
    importing = importing_tests(mutant.file)
    own = [test for test in executing if test.partition("::")[0] in importing]
    others = [test for test in executing if test not in {*own}]
    ordered = [*own[:_FIRST], *others[:_FIRST], *own[_FIRST:], *others[_FIRST:]]
    yield from filter(None, map(_selected, (ordered[: 2 * _FIRST], ordered[2 * _FIRST :])))
    if executing and importing:
        yield importing


def _selected(tests: Sequence[str]) -> list[str]:
    """All cases of a test instead of one whose name has odd characters: pytest does not find each of them."""
    return list(dict.fromkeys(re.sub(r"\[.*[^\w.,:= -].*\]$", "", test) for test in tests))


_FIRST = 30  # tests of each kind, which nearly always suffice


class _Copies:
    """Copies of the tree, each with a process that has imported the tests."""

    def __init__(self, copies: "SimpleQueue[Path]", count: int, lines: ExecutedLines) -> None:
        self._lines = lines
        self._is_reliable: dict[str, bool] = {}  # tests that have noticed something: whether they pass without it
        self._free: SimpleQueue[tuple[Path, MutantWorker]] = SimpleQueue()
        folders = [f"tests/{package}" for package in PACKAGES]
        for _ in range(count):
            copy = copies.get()
            self._free.put((copy, MutantWorker(copy, folders, own_processes())))

    def outcome(self, mutant: RandomMutant) -> Outcome:
        outcome = Outcome("survived", "no test executes it")
        for tests in steps(mutant, self._lines):
            outcome = self._step(mutant, tests)
            if outcome.name != "survived":
                break
        return outcome

    def _step(self, mutant: RandomMutant, tests: Sequence[str]) -> Outcome:
        """A test that fails without the mistake too, for example on a busy machine, notices nothing."""
        copy, worker = self._free.get()
        try:
            while True:
                tests = [test for test in tests if self._is_reliable.get(test, True)]
                outcome = (
                    self._trial(copy, worker, mutant.file, mutant.applied, tests) if tests else Outcome("survived")
                )
                noticed = outcome.noticed_by
                if outcome.name != "killed" or noticed not in tests:
                    return outcome
                if noticed not in self._is_reliable:
                    alone = self._trial(copy, worker, mutant.file, str, [noticed])
                    self._is_reliable[noticed] = alone.name != "killed"
                if self._is_reliable[noticed]:
                    return outcome
        finally:
            self._free.put((copy, worker))

    def _trial(
        self, copy: Path, worker: MutantWorker, name: str, applied: Callable[[str], str], tests: Sequence[str]
    ) -> Outcome:
        file = copy / name
        before = file.read_text()
        after = applied(before)
        try:
            file.write_text(after)
            arguments = pytest_arguments(copy, tests, self._lines.test_limit(tests))
            done = worker.run(name, before, after, arguments, self._lines.run_limit(tests))
            return run_tests(copy, tests) if done is None else outcome_of(*done)
        finally:
            file.write_text(before)

    def close(self) -> None:
        while not self._free.empty():
            self._free.get()[1].close()


class _Results:
    """Outcomes so far, stored after each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(exist_ok=True)
        stored = path.read_text().splitlines() if path.is_file() else []
        self._known = {text: Outcome(*rest) for text, *rest in map(json.loads, stored)}

    def outcome(self, described: str, tried: Callable[[], Outcome]) -> Outcome:
        if described not in self._known:
            self._known[described] = outcome = tried()
            with self._path.open("a") as file:
                file.write(f"{json.dumps([described, *outcome])}\n")
        return self._known[described]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutants-random", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--package", action="append", choices=PACKAGES, help="only this; may be given several times")
    options = parser.parse_args(arguments)
    mutants = choose(options.seed, options.count, options.package or PACKAGES)
    described = [mutant.described((ROOT / mutant.file).read_text()) for mutant in mutants]
    with copies_of_the_tree(options.jobs) as copies:
        counts: Counter[str] = Counter()
        for text, outcome in zip(described, _outcomes(copies, mutants, described, options.jobs), strict=True):
            print(f"{outcome.name:9} {text}  {outcome.noticed_by}", flush=True)
            counts[outcome.name] += 1
    print(f"seed {options.seed}: {counts['killed']} of {len(mutants)} mistakes noticed", dict(sorted(counts.items())))
    return 0 if counts["killed"] >= _BAR * len(mutants) else 1


def _outcomes(
    copies: "SimpleQueue[Path]", mutants: Sequence[RandomMutant], described: Sequence[str], jobs: int
) -> Iterator[Outcome]:
    content = content_of_the_tree()
    copy = copies.get()
    lines = executed_lines(copy, content, PACKAGES, jobs)
    copies.put(copy)
    results = _Results(ROOT / "build" / f"random-mutants-{content}.jsonl")
    with ThreadPoolExecutor(jobs) as pool, closing(_Copies(copies, jobs, lines)) as trials:
        yield from pool.map(
            lambda text, mutant: results.outcome(text, lambda: trials.outcome(mutant)), described, mutants
        )


if __name__ == "__main__":
    sys.exit(main())
