"""`make mutants`: makes each mistake of mutants.toml in a copy of the tree, and expects its tests to fail.

A mistake that no test finds is a promise that nothing holds. The list is data: what a mistake breaks, the exact text
that it replaces, and the tests that must find it. The work tree is never touched. Exit code 1 if a mistake survives, if
its text is no longer in the file exactly once, or if its tests fail without it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import NamedTuple, Protocol

__all__ = [
    "ROOT",
    "Mistake",
    "Mutant",
    "Outcome",
    "copies_of_the_tree",
    "load",
    "main",
    "outcome_of",
    "own_processes",
    "pytest_arguments",
    "run_tests",
    "try_mistake",
]

ROOT = Path(__file__).parents[1]
_LIST = ROOT / "tests" / "mutants.toml"
_TEST_LIMIT = 90  # seconds for one test: many mistakes show as something that never happens
_LIMIT = 900  # seconds for all tests of one mistake
_TESTS_FAILED, _COLLECTION_FAILED, _INTERNAL_ERROR = 1, 2, 3  # pytest's exit codes
_ARGUMENTS = ".mutant-tests"  # the file of pytest's arguments in a copy


class Mistake(Protocol):
    @property
    def file(self) -> str: ...

    def applied(self, text: str) -> str | None:
        """The text with the mistake; None where it cannot be made."""


class Outcome(NamedTuple):
    """`killed`, `survived`, `stale` where the mistake cannot be made, or `error` where the tests could not be run."""

    name: str
    noticed_by: str = ""  # the test that failed first


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """`old` is in `file` exactly once; `tests` are pytest's names, of which at least one must fail with `new`."""

    id: str
    promise: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str | None:
        """The text with the mistake; None where it cannot be made."""
        return text.replace(self.old, self.new) if text.count(self.old) == 1 and self.old != self.new else None


def load(path: Path = _LIST) -> list[Mutant]:
    entries = tomllib.loads(path.read_text())["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("ids", nargs="*", help="only these")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    mutants = [mutant for mutant in load() if not options.ids or mutant.id in options.ids]
    with copies_of_the_tree(options.jobs) as copies:
        baseline = try_mistake(copies, None, sorted({test for mutant in mutants for test in mutant.tests}))
        if baseline.name != "survived":
            print("the tests must pass without a mistake, and do not", file=sys.stderr)
            return 1
        with ThreadPoolExecutor(options.jobs) as pool:
            outcomes = []
            tried = pool.map(lambda mutant: try_mistake(copies, mutant, mutant.tests), mutants)
            for mutant, outcome in zip(mutants, tried, strict=True):
                print(f"{outcome.name:9} {mutant.id:45} {mutant.promise}", flush=True)
                outcomes.append(outcome.name)
    killed = outcomes.count("killed")
    print(f"{killed} of {len(outcomes)} mistakes found by their tests")
    return 0 if killed == len(outcomes) else 1


def try_mistake(copies: "SimpleQueue[Path]", mistake: Mistake | None, tests: Iterable[str]) -> Outcome:
    """Runs the tests in a copy with this mistake, or without any."""
    copy = copies.get()
    file = copy / (mistake.file if mistake is not None else "pyproject.toml")
    text = file.read_text()
    try:
        changed = mistake.applied(text) if mistake is not None else text
        if changed is None:
            return Outcome("stale")
        file.write_text(changed)
        return run_tests(copy, tests)
    finally:
        file.write_text(text)
        copies.put(copy)


def pytest_arguments(copy: Path, tests: Iterable[str], timeout: float = _TEST_LIMIT) -> list[str]:
    """Ends at the first failure; the tests are in a file, because they may be too many for a command line."""
    (copy / _ARGUMENTS).write_text("".join(f"{test}\n" for test in tests))
    return ["-q", "-x", "--timeout", str(timeout), f"@{_ARGUMENTS}"]


def run_tests(copy: Path, tests: Iterable[str]) -> Outcome:
    """Runs tests in a copy of the tree as it is."""
    command = [*own_processes(), sys.executable, "-m", "pytest", *pytest_arguments(copy, tests)]
    # The copy's code comes before the installed one, which is the work tree's.
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": ""}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, timeout=_LIMIT, check=False, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        return Outcome("killed", "the limit for all tests")
    return outcome_of(done.returncode, done.stdout + done.stderr)


def outcome_of(code: int, output: str) -> Outcome:
    """By the exit code of pytest, or of the signal that ended it."""
    failed = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - |$)", output, re.MULTILINE)
    if code in (_TESTS_FAILED, _COLLECTION_FAILED, _INTERNAL_ERROR) or code < 0:
        return Outcome("killed", failed[1] if failed else f"exit code {code}")
    if not code:
        return Outcome("survived")
    print(output, file=sys.stderr)
    return Outcome("error")


@cache
def own_processes() -> tuple[str, ...]:
    """As root, a command in front: a mistake may signal a process by a wrong id, and ends with all that it started."""
    command = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    try:
        done = subprocess.run([*command, "true"], check=False, capture_output=True)
    except OSError:
        return ()
    return command if done.returncode == 0 else ()


@contextmanager
def copies_of_the_tree(count: int) -> Iterator["SimpleQueue[Path]"]:
    """Copies of the tree as git sees it, files that are not committed yet included."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True,
    ).stdout  # fmt: skip
    copies: SimpleQueue[Path] = SimpleQueue()
    with TemporaryDirectory(prefix="mutants-") as directory:
        for number in range(count):
            copy = Path(directory, str(number))
            for name in filter(None, listed.decode().split("\0")):
                source, target = ROOT / name, copy / name
                if source.is_file():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(source, target, follow_symlinks=False)
            _compile(copy)
            copies.put(copy)
        yield copies


def _compile(copy: Path) -> None:
    """Bytecode is compared by the hash of its source: a mistake may be made and taken back within a file time stamp."""
    command = [
        sys.executable,
        "-m",
        "compileall",
        "-q",
        "--invalidation-mode",
        "checked-hash",
        "src",
        "tests",
        "examples",
    ]
    subprocess.run(command, cwd=copy, check=True)


if __name__ == "__main__":
    sys.exit(main())
