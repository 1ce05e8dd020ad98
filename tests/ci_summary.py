"""`python -m tests.ci_summary DIRECTORY`: how long each gate of `.ci/run` took, which tests did not run, and why.

DIRECTORY contains `gates`, a line for each gate with its name, its seconds and its exit status, and the records of the
gates' test sessions as `<gate>.jsonl`. `.ci/run` runs the tests of a gate again if few have failed (`--failed-few
RECORD` tells by its exit status). A test that passes only then is a defect, which the summary names.
"""

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests import session_records
from tests.session_records import SessionRecord

__all__ = ["Gate", "failed_few", "lines", "main", "read_gates", "targets_not_run"]

_MAKEFILE = Path(__file__).parents[1] / "Makefile"
_TARGET = re.compile(
    r"^(?P<name>[a-z-]+):[^\n]*?## (?P<help>[^\n]*)\n(?P<recipe>(?:(?:\t|ifeq|else|endif)[^\n]*\n)+)", re.MULTILINE
)
_FEW = 3
_TESTS_SOMETHING = re.compile(r"-m (pytest|tests\.mutants|tests\.kubernetes\.passes(?! --build)|chaos\.|bench\.)")


@dataclass(frozen=True, slots=True)
class Gate:
    """One command of `.ci/run`, with the records of its test sessions."""

    name: str
    seconds: int
    status: int
    sessions: tuple[SessionRecord, ...]


def main(directory: Path) -> None:
    for line in lines(read_gates(directory), _MAKEFILE.read_text()):
        print(line)


def failed_few(record: Path) -> bool:
    """Whether some tests have failed in the sessions of a record, but so few that each can have a cause of its own."""
    return 0 < sum(len(session.failed) for session in session_records.read(record)) <= _FEW


def read_gates(directory: Path) -> list[Gate]:
    gates = []
    for line in (directory / "gates").read_text().splitlines():
        name, seconds, status = line.split("\t")
        gates.append(Gate(name, int(seconds), int(status), (*session_records.read(directory / f"{name}.jsonl"),)))
    return gates


def lines(gates: list[Gate], makefile: str) -> Iterator[str]:
    yield f"{'gate':24}{'time':>8}{'passed':>8}{'failed':>8}{'not run':>9}"
    for gate in gates:
        yield from _gate_lines(gate)
    yield f"{'all':24}{_time(sum(gate.seconds for gate in gates)):>8}"
    ran = {test for gate in gates for session in gate.sessions for test in session.ran}
    yield from _repeated_lines(gates)
    yield from _never_run(gates, ran)
    yield from _run_elsewhere(gates, ran)
    reduced = sorted({test for gate in gates for session in gate.sessions for test in session.reduced})
    if reduced:
        yield f"\nrun in reduced size, in full size with --full: {len(reduced)} tests"
        yield from (f"  {test}" for test in _shortened(reduced))
    yield "\nnot part of this run:"
    for name, about in targets_not_run(gates, makefile).items():
        yield f"  make {name:22} {about}"
    yield f"\n{_totals(gates, ran)}"


def _totals(gates: list[Gate], ran: set[str]) -> str:
    """The result of all gates in one line, each test counted once; a test that failed in any gate has failed."""
    sessions = [session for gate in gates for session in gate.sessions]
    failed = {test for gate in gates for _, test in _failed(gate)}
    not_run = {test for session in sessions for test in session.not_run} - ran
    return f"{len(ran - failed)} passed, {len(failed)} failed, {len(not_run)} skipped"


def _failed(gate: Gate) -> set[tuple[str, str]]:
    """The tests that failed in the last session in which they ran, with the version of the cluster."""
    failed: set[tuple[str, str]] = set()
    for session in gate.sessions:
        failed -= {(session.kubernetes, test) for test in session.passed}
        failed |= {(session.kubernetes, test) for test in session.failed}
    return failed


def _repeated_lines(gates: list[Gate]) -> Iterator[str]:
    repeated = {
        test
        for gate in gates
        for session in gate.sessions
        for test in session.failed
        if (session.kubernetes, test) not in _failed(gate)
    }
    if repeated:
        yield f"\nfailed, and passed only when run again, for a reason to be found: {len(repeated)} tests"
        yield from (f"  {test}" for test in sorted(repeated))


def _gate_lines(gate: Gate) -> Iterator[str]:
    failed = f"  exit status {gate.status}" if gate.status else ""
    if len(gate.sessions) != 1:
        yield f"{gate.name:24}{_time(gate.seconds):>8}{failed}"
    for session in gate.sessions:
        alone = len(gate.sessions) == 1
        name = gate.name if alone else f"  {session.kubernetes}"
        seconds = gate.seconds if alone else session.seconds
        counts = f"{len(session.passed):8}{len(session.failed):8}{len(session.not_run):9}"
        yield f"{name:24}{_time(seconds):>8}{counts}{failed if alone else ''}"


def _never_run(gates: list[Gate], ran: set[str]) -> Iterator[str]:
    reasons: dict[str, set[str]] = defaultdict(set)
    for gate in gates:
        for session in gate.sessions:
            for test, reason in session.not_run.items():
                if test not in ran:
                    reasons[reason].add(test)
    yield f"\nnot run in any gate: {len({test for tests in reasons.values() for test in tests})} tests"
    for reason, tests in sorted(reasons.items()):
        yield f"  {reason}"
        yield from (f"    {test}" for test in _shortened(sorted(tests)))


def _run_elsewhere(gates: list[Gate], ran: set[str]) -> Iterator[str]:
    counts = Counter(
        (f"{gate.name} {session.kubernetes}".strip(), reason)
        for gate in gates
        for session in gate.sessions
        for test, reason in session.not_run.items()
        if test in ran
    )
    if counts:
        yield "\nnot run in one gate or version, but in another:"
    for (where, reason), count in counts.items():
        yield f"  {where}: {count} tests: {reason}"


def targets_not_run(gates: list[Gate], makefile: str) -> Mapping[str, str]:
    """Targets of the Makefile that test or measure something and are not among the gates, with their help."""
    run = {gate.name for gate in gates}
    found = (match for match in _TARGET.finditer(makefile) if _TESTS_SOMETHING.search(match["recipe"]))
    return {match["name"]: match["help"] for match in found if match["name"] not in run}


def _shortened(tests: list[str]) -> Iterator[str]:
    """Each function once, with the number of its parametrised cases."""
    for test, count in Counter(test.partition("[")[0] for test in tests).items():
        yield test if count == 1 else f"{test} ({count} cases)"


def _time(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


if __name__ == "__main__":
    if sys.argv[1] == "--failed-few":
        sys.exit(not failed_few(Path(sys.argv[2])))
    main(Path(sys.argv[1]))
