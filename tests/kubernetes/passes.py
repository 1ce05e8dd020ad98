"""`python -m tests.kubernetes.passes`: the passes of ring 2, each a pytest session with one version of Kubernetes.

Without --full: what every change must pass. With --full: every test in full size, and a smoke test of older kubelets;
--write PAGE then records the date, the commit and the counts in the table of PAGE. --last-failed runs the tests that
failed according to the record. Other arguments go to pytest.

Passes run side by side, two at a time and the first one with two clusters, since half of their time is waiting. A pass
begins as soon as its own programs are built. The first one is shown while it runs, the others when they have ended.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests import session_records
from tests.kubernetes import building
from tests.session_records import SessionRecord

__all__ = [
    "BEGIN",
    "CHANGE",
    "END",
    "FULL",
    "Pass",
    "chosen",
    "chosen_tests",
    "last_failed",
    "main",
    "row",
    "with_rows",
]

BEGIN, END = "<!-- make test-kubernetes-full: begin -->", "<!-- make test-kubernetes-full: end -->"
_HEADINGS = ("Kubernetes", "tests", "date", "commit", "passed", "failed", "skipped", "minutes")
_ROOT = Path(__file__).parents[2]
_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Pass:
    """A pytest session of ring 2."""

    version: str
    tests: str  # which of them, for the table
    arguments: tuple[str, ...] = ()


_WORKERS = ("-n", "2", "--dist", "loadfile")  # each with a cluster of its own
CHANGE = (
    Pass(building.DEFAULT_VERSION, "all but full", _WORKERS),
    Pass("1.37.0", "essential", ("-m", "essential")),
)
FULL = (
    Pass(building.DEFAULT_VERSION, "full", (*_WORKERS, "--full")),
    Pass("1.37.0", "full", ("--full",)),
    Pass("1.35.4", "smoke", ("-m", "smoke")),
    Pass("1.34.4", "smoke", ("-m", "smoke")),
)


def main(arguments: Sequence[str]) -> int:
    options, others = _parser().parse_known_args(arguments)
    passes = chosen(FULL if options.full else CHANGE, options.version)
    if options.build:
        building.main([each.version for each in passes])
        return 0
    with tempfile.TemporaryDirectory(prefix="ring-2-") as directory:
        record = Path(os.environ.get(session_records.VARIABLE) or Path(directory, "record.jsonl")).absolute()
        if options.last_failed:
            passes, others = last_failed(passes, record), []
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            statuses = [*pool.map(lambda each: _run(each, others, record, shown=each == passes[0]), passes)]
        records = {found.kubernetes: found for found in session_records.read(record)}
    if options.write:
        rows = {each.version: row(each, records[each.version], *others) for each in passes if each.version in records}
        options.write.write_text(with_rows(options.write.read_text(), rows))
    return max(statuses, default=1)


def last_failed(passes: Sequence[Pass], record: Path) -> list[Pass]:
    """A pass for each version with tests that failed in its last session in `record`, and only with these."""
    failed = {found.kubernetes: found.failed for found in session_records.read(record)}
    return [
        Pass(each.version, "failed before", tuple(failed[each.version])) for each in passes if failed.get(each.version)
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.passes", allow_abbrev=False)
    parser.add_argument("--full", action="store_true", help="every test in full size, and older kubelets")
    parser.add_argument("--last-failed", action="store_true", help="only the tests that failed before, by the record")
    parser.add_argument("--build", action="store_true", help="only build the programs")
    parser.add_argument("--version", default="", help="this version of Kubernetes only, with all tests")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="record the result in the table of this page")
    return parser


def chosen(passes: Sequence[Pass], version: str) -> Sequence[Pass]:
    """`passes`, or all tests with `version` alone, in full size if `passes` are."""
    if not version:
        return passes
    return [Pass(version, passes[0].tests, passes[0].arguments)]


def _run(found: Pass, arguments: Sequence[str], record: Path, *, shown: bool) -> int:
    command = [sys.executable, "-m", "pytest", "--timeout", "3000", *chosen_tests([*found.arguments, *arguments])]
    own = {"PLUGWRIGHT_KUBERNETES_VERSION": found.version, session_records.VARIABLE: str(record)}
    output = None if shown else subprocess.PIPE
    done = subprocess.run(
        command, cwd=_ROOT, env={**os.environ, **own}, stdout=output, stderr=subprocess.STDOUT, check=False, text=True
    )
    if done.stdout is not None:
        print(f"\n=== Kubernetes {found.version}, {found.tests}\n{done.stdout}", flush=True)
    return done.returncode


def chosen_tests(arguments: Sequence[str]) -> list[str]:
    """The arguments of pytest; without a test file or directory among them, all of `tests/kubernetes`."""
    named = any(argument.startswith("tests/kubernetes") for argument in arguments)
    return [*([] if named else ["tests/kubernetes"]), *arguments]


def row(found: Pass, record: SessionRecord, *arguments: str) -> str:
    """The table's line about a pass that has just ended; `arguments` of pytest may have left tests out."""
    skipped = [reason for reason in record.not_run.values() if not reason.startswith("deselected")]
    counts = (len(record.passed), len(record.failed), len(skipped), round(record.seconds / 60))
    return _line(found.version, " ".join([found.tests, *arguments]), datetime.now(UTC).date(), _commit(), *counts)


def _commit() -> str:
    """The commit of the tree, and whether files differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=True).stdout.strip()

    changed = " with changes" if git("status", "--porcelain", "--", ":!docs") else ""
    return git("rev-parse", "--short", "HEAD") + changed


def with_rows(page: str, rows: Mapping[str, str]) -> str:
    """`page` with these rows in its table, by version; rows of versions that were not run now stay."""
    before, begin, rest = page.partition(f"{BEGIN}\n")
    table, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page must contain {BEGIN} and {END}")
    old = {line.split(" | ")[0].removeprefix("| "): line for line in table.splitlines()[2:]}
    lines = {**old, **rows}
    ordered = sorted(lines, key=lambda version: [int(part) for part in version.split(".")], reverse=True)
    texts = [_line(*_HEADINGS), _line(*["---"] * len(_HEADINGS)), *(lines[version] for version in ordered)]
    return before + begin + "".join(f"{text}\n" for text in texts) + end + after


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
