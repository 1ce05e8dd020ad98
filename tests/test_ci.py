"""`.ci/run` says which tests did not run and why, and the full run of ring 2 is recorded as it was."""

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests import ci_summary, session_records
from tests.ci_summary import Gate
from tests.kubernetes import passes
from tests.kubernetes.passes import Pass
from tests.session_records import SessionRecord

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
TESTS = """
import pytest
def test_good(): pass
def test_bad(): assert False
@pytest.mark.skip(reason="no drive")
def test_skipped(): pass
@pytest.fixture
def broken(): raise OSError
def test_broken(broken): pass
@pytest.mark.parametrize("number", [1, 2])
def test_other(number): pass
"""
CONFTEST = """
from tests import session_records
def pytest_configure(config):
    session_records.register(config)
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "workers"])
def test_a_session_records_what_ran_and_why_the_rest_did_not(workers: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    record = tmp_path / "record.jsonl"
    environment = {**os.environ, session_records.VARIABLE: str(record), "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        *workers,
        "-k",
        "not other",
        "-p",
        "no:cacheprovider",
        str(tmp_path),
    ]
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    [found] = session_records.read(record)
    assert found.passed == ["test_it.py::test_good"]
    assert sorted(found.failed) == ["test_it.py::test_bad", "test_it.py::test_broken"]
    assert found.not_run == {
        "test_it.py::test_skipped": "no drive",
        "test_it.py::test_other[1]": "deselected by -k 'not other'",
        "test_it.py::test_other[2]": "deselected by -k 'not other'",
    }


def test_tests_marked_full_are_skipped_with_their_reason_and_others_run_in_reduced_size(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    environment = {**os.environ, session_records.VARIABLE: str(record), "PLUGWRIGHT_VERIFY_KUBELET": "all"}
    skipped = "tests/conformance/test_own_plugins.py::test_our_own_plugin_keeps_every_rule[generic-1.26]"
    command = [sys.executable, "-m", "pytest", "-q", skipped]
    subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    [found] = session_records.read(record)
    assert (found.passed, found.failed) == ([], [])
    assert found.not_run == {skipped: "--full: every plugin at every version"}


def session(**changes: object) -> SessionRecord:
    values = {"kubernetes": "", "seconds": 61.0, "passed": [], "failed": [], "not_run": {}, "reduced": [], **changes}
    return SessionRecord(**values)  # type: ignore[arg-type]


def test_the_summary_lists_tests_that_no_gate_ran_with_reasons_and_each_gates_time() -> None:
    never = {"t.py::test_a[1]": "no drive", "t.py::test_a[2]": "no drive", "t.py::test_b": "no helm"}
    gates = [
        Gate("check", 5, 0, ()),
        Gate("test", 61, 0, (session(passed=["t.py::test_c", "t.py::test_d"], not_run=never),)),
        Gate(
            "test-kubernetes",
            600,
            1,
            (
                session(kubernetes="1.36.4", passed=["t.py::test_b"], reduced=["t.py::test_b"]),
                session(kubernetes="1.37.0", failed=["t.py::test_d"], not_run={"t.py::test_c": "deselected by -m x"}),
            ),
        ),
    ]
    lines = [" ".join(line.split()) for line in ci_summary.lines(gates, MAKEFILE)]
    assert lines[1:7] == [
        "check 0:05",
        "test 1:01 2 0 3",
        "test-kubernetes 10:00 exit status 1",
        "1.36.4 1:01 1 0 0",
        "1.37.0 1:01 0 1 1",
        "all 11:06",
    ]
    start = lines.index("not run in any gate: 2 tests")
    assert lines[start + 1 : start + 3] == ["no drive", "t.py::test_a (2 cases)"]
    assert "test: 1 tests: no helm" in lines
    assert "test-kubernetes 1.37.0: 1 tests: deselected by -m x" in lines
    assert "t.py::test_b" in lines[lines.index("run in reduced size, in full size with --full: 1 tests") :]
    assert lines[-1] == "2 passed, 1 failed, 2 skipped"


def test_a_test_that_passes_only_when_run_again_is_named_and_has_passed() -> None:
    first = session(kubernetes="1.36.4", passed=["t.py::test_a"], failed=["t.py::test_b", "t.py::test_c"])
    again = session(kubernetes="1.36.4", passed=["t.py::test_b"], failed=["t.py::test_c"])
    other = session(kubernetes="1.37.0", passed=["t.py::test_c"])
    lines = [*ci_summary.lines([Gate("test-kubernetes", 60, 1, (first, other, again))], MAKEFILE)]
    start = lines.index("\nfailed, and passed only when run again, for a reason to be found: 1 tests")
    assert lines[start + 1] == "  t.py::test_b"
    assert lines[-1] == "\n2 passed, 1 failed, 0 skipped"


@pytest.mark.parametrize(("failed", "is_few"), [(0, False), (1, True), (3, True), (4, False)])
def test_only_few_failed_tests_are_run_again(failed: int, is_few: bool, tmp_path: Path) -> None:
    record = tmp_path / "test.jsonl"
    found = session(failed=[f"t.py::test_{number}" for number in range(failed)], kubernetes="1.36.4")
    record.write_bytes(msgspec.json.encode(found))
    assert ci_summary.failed_few(record) is is_few
    chosen = passes.last_failed(passes.CHANGE, record)
    assert [(each.version, each.arguments) for each in chosen] == [("1.36.4", tuple(found.failed))][: len(found.failed)]


def test_a_gate_without_a_record_is_not_run_again(tmp_path: Path) -> None:
    assert not ci_summary.failed_few(tmp_path / "check.jsonl")


def test_the_summary_names_the_targets_that_ci_leaves_out() -> None:
    gates = [Gate(name, 1, 0, ()) for name in gates_of_ci()]
    left_out = ci_summary.targets_not_run(gates, MAKEFILE)
    assert {"fuzz", "soak", "mutants", "chaos", "chaos-kubernetes", "test-kubernetes-full", "bench"} <= {*left_out}
    assert not {"help", "setup", "demo", "kubernetes-programs", *gates_of_ci()} & {*left_out}


def test_the_page_is_tested_and_a_gate_of_its_own_installs_its_browser() -> None:
    gates = gates_of_ci()
    assert gates.index("chromium") < gates.index("test-page")
    assert re.search(r'^export PLUGWRIGHT_REQUIRE=".*\bchromium\b', (ROOT / ".ci" / "run").read_text(), re.MULTILINE)


def gates_of_ci() -> list[str]:
    return re.findall(r"^gate ([a-z-]+) make \1\b", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)


def test_each_gate_has_the_name_of_its_target() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert len(gates_of_ci()) == len(re.findall(r"^gate ", script, re.MULTILINE)) >= 8


def test_a_full_run_replaces_the_rows_of_its_versions_alone() -> None:
    page = f"before\n{passes.BEGIN}\n| h |\n| --- |\n| 1.36.4 | old |\n| 1.9.0 | old |\n{passes.END}\nafter\n"
    record = session(
        kubernetes="1.36.4",
        seconds=600.0,
        passed=["a", "b"],
        failed=["c"],
        not_run={"d": "no helm", "e": "deselected by -m smoke"},
    )
    new = passes.row(Pass("1.36.4", "full"), record)
    written = passes.with_rows(page, {"1.36.4": new, "1.37.0": "| 1.37.0 | new |"}).splitlines()
    assert written[4:7] == ["| 1.37.0 | new |", new, "| 1.9.0 | old |"]
    assert " | full -m smoke | " in passes.row(Pass("1.36.4", "full"), record, "-m", "smoke")
    assert (written[0], written[-2:]) == ("before", [passes.END, "after"])
    assert re.fullmatch(
        r"\| 1\.36\.4 \| full \| \d{4}-\d\d-\d\d \| [0-9a-f]+( with changes)? \| 2 \| 1 \| 1 \| 10 \|", new
    )


def test_the_page_of_the_full_run_has_its_table() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    assert passes.with_rows(page, {}) == page


def test_every_change_meets_the_current_versions_and_the_full_run_the_older_ones() -> None:
    assert [each.version for each in passes.CHANGE] == ["1.36.4", "1.37.0"]
    assert [each.version.rpartition(".")[0] for each in passes.FULL] == ["1.36", "1.37", "1.35", "1.34"]
    [alone] = passes.chosen(passes.FULL, "1.35.9")
    assert (alone.version, alone.tests, alone.arguments[-1]) == ("1.35.9", "full", "--full")


def test_ring_2_runs_the_named_tests_alone() -> None:
    assert passes.chosen_tests(["-k", "x"]) == ["tests/kubernetes", "-k", "x"]
    named = "tests/kubernetes/test_day.py::test_a"
    assert passes.chosen_tests([named, "-q"]) == [named, "-q"]
