"""`make mutants`: makes each mistake of mutants.toml in a copy of the tree, and expects its tests to fail.

A mistake that no test finds is a promise that nothing holds. The list is data: what a mistake breaks, the exact text
that it replaces, and the tests that must find it. The work tree is never touched. Exit code 1 if a mistake survives, if
its text is no longer in the file exactly once, or if its tests fail without it.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

__all__ = ["ROOT", "Mutant", "load", "main"]

ROOT = Path(__file__).parents[1]
_LIST = ROOT / "tests" / "mutants.toml"
_TEST_LIMIT = 90  # seconds for one test: many mistakes show as something that never happens
_LIMIT = 900  # seconds for all tests of one mistake
_TESTS_FAILED = 1  # pytest's exit code


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
    with _copies(options.jobs) as copies:
        baseline = _tried(copies, None, sorted({test for mutant in mutants for test in mutant.tests}))
        if baseline != "survived":
            print("the tests must pass without a mistake, and do not", file=sys.stderr)
            return 1
        with ThreadPoolExecutor(options.jobs) as pool:
            outcomes = []
            for mutant, outcome in zip(
                mutants, pool.map(lambda mutant: _outcome(copies, mutant), mutants), strict=True
            ):
                print(f"{outcome:9} {mutant.id:45} {mutant.promise}", flush=True)
                outcomes.append(outcome)
    killed = outcomes.count("killed")
    print(f"{killed} of {len(outcomes)} mistakes found by their tests")
    return 0 if killed == len(outcomes) else 1


def _outcome(copies: "SimpleQueue[Path]", mutant: Mutant) -> str:
    return _tried(copies, mutant, mutant.tests)


def _tried(copies: "SimpleQueue[Path]", mutant: Mutant | None, tests: Iterable[str]) -> str:
    """`killed`, `survived`, `stale` where the mistake cannot be made, or `error` where the tests could not be run."""
    copy = copies.get()
    file = copy / (mutant.file if mutant is not None else "pyproject.toml")
    text = file.read_text()
    try:
        changed = mutant.applied(text) if mutant is not None else text
        if changed is None:
            return "stale"
        file.write_text(changed)
        code = _pytest(copy, tests)
    finally:
        file.write_text(text)
        copies.put(copy)
    return {0: "survived", _TESTS_FAILED: "killed"}.get(code, "error")


def _pytest(copy: Path, tests: Iterable[str]) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--timeout", str(_TEST_LIMIT)]
    # The copy's code comes before the installed one, which is the work tree's; without .pyc files, which have whole
    # seconds: a mistake may be made and taken back within one.
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*command, *tests], cwd=copy, env=environment, timeout=_LIMIT, check=False, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        return _TESTS_FAILED
    if done.returncode not in (0, _TESTS_FAILED):
        print(done.stdout, done.stderr, file=sys.stderr)
    return done.returncode


@contextmanager
def _copies(count: int) -> Iterator["SimpleQueue[Path]"]:
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
            copies.put(copy)
        yield copies


if __name__ == "__main__":
    sys.exit(main())
