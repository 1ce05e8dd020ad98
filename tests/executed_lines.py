"""Which tests execute a line of the daemon's packages, fastest first: recorded by one run of these tests.

The record is stored under the hash of these packages and their tests in `build/`. Statements that a test executes in a
process of its own count too. Tests that fail while lines are recorded are left out.
"""

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from tests.mutants import ROOT

__all__ = ["ExecutedLines", "content_of_the_tree", "executed_lines", "ordered_tests", "statement_line"]

_LIMIT = 3600  # seconds for the run that records
_LEAST_LIMIT, _TIMES_SLOWER = 15.0, 6  # seconds for one test
_SOURCE = "src/plugwright/"


class ExecutedLines(msgspec.Struct, kw_only=True):
    """`lines` are the tests of each "sdk/control.py:12", as positions in `tests`, which has the fastest first."""

    tests: list[str]
    seconds: list[float]  # of each test
    lines: dict[str, list[int]]
    unknown: list[str]  # lines that ran in a process of which the test is not known

    def tests_of(self, file: str, line: int) -> list[str] | None:
        """None if the tests that execute the line are not known."""
        key = f"{file.removeprefix(_SOURCE)}:{line}"
        found = self.lines.get(key)
        if found is None:
            return None if key in self.unknown else []
        return [self.tests[number] for number in found]

    def test_limit(self, tests: Iterable[str]) -> float:
        """Seconds for each of these tests: some mistakes show only as something that never happens."""
        return max(_LEAST_LIMIT, *self._expected(tests))

    def run_limit(self, tests: Sequence[str]) -> float:
        """Seconds for all of these tests: others show as a loop without an end."""
        return self.test_limit(tests) + sum(self._expected(tests))

    def _expected(self, tests: Iterable[str]) -> Iterator[float]:
        known = dict(zip(self.tests, self.seconds, strict=True))
        return (_TIMES_SLOWER * known.get(test, _LEAST_LIMIT) for test in tests)


def executed_lines(copy: Path, content: str, packages: Sequence[str], jobs: int) -> ExecutedLines:
    """Runs the packages' tests in this copy of the tree if they were not recorded with this content before."""
    stored = ROOT / "build" / f"executed-lines-{content}.json"
    if stored.is_file():
        return msgspec.json.decode(stored.read_bytes(), type=ExecutedLines)
    made = _record(copy, packages, jobs)
    stored.parent.mkdir(exist_ok=True)
    stored.write_bytes(msgspec.json.encode(made))
    return made


def content_of_the_tree() -> str:
    """A hash of the code and the tests."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py")):
        digest.update(f"{path.relative_to(ROOT)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _record(copy: Path, packages: Sequence[str], jobs: int) -> ExecutedLines:
    directory = copy / ".recorder"
    (directory / "records").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "line_recorder.py", directory / "sitecustomize.py")
    environment = {
        **os.environ,
        "PYTHONPATH": f"{copy / 'src'}:{directory}",
        "PYTHONPYCACHEPREFIX": str(directory / "bytecode"),  # with the added calls
        "PYTHONDONTWRITEBYTECODE": "",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(jobs), "--durations=0", "--durations-min=0"]
    command += [f"tests/{package}" for package in packages]
    done = subprocess.run(
        command, cwd=copy, env=environment, timeout=_LIMIT, check=False, capture_output=True, text=True
    )
    if done.returncode > 1:
        raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    found = ordered_tests(done.stdout, _records(directory / "records"))
    shutil.rmtree(directory)
    return found


def _records(directory: Path) -> Iterator[tuple[str, str]]:
    for path in directory.iterdir():
        test = ""
        for line in path.read_text().splitlines():
            if line.startswith("test "):
                test = line[5:]
            else:
                yield test, line


def ordered_tests(output: str, records: Iterable[tuple[str, str]]) -> ExecutedLines:
    """From pytest's output with durations, and the recorded pairs of test and line."""
    seconds: dict[str, float] = {}
    for time, test in re.findall(r"^\s*([\d.]+)s (?:call|setup|teardown)\s+(tests/.+)$", output, re.MULTILINE):
        seconds[test] = seconds.get(test, 0.0) + float(time)
    for failed in re.findall(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", output, re.MULTILINE):
        seconds.pop(failed, None)
    tests = sorted(seconds, key=lambda test: (seconds[test], test))
    numbers = {test: number for number, test in enumerate(tests)}
    lines: dict[str, set[int]] = {}
    unknown: set[str] = set()
    for test, line in records:
        if test in numbers:
            lines.setdefault(line, set()).add(numbers[test])
        elif not test:
            unknown.add(line)
    return ExecutedLines(
        tests=tests,
        seconds=[seconds[test] for test in tests],
        lines={line: sorted(found) for line, found in lines.items()},
        unknown=sorted(unknown),
    )


def statement_line(text: str, line: int) -> int:
    """The first line of the innermost statement at this line."""
    around = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max((node.lineno for node in around), default=line)
