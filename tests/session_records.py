"""Records of test sessions: which tests ran, which did not and why.

With PLUGWRIGHT_TEST_RECORD=FILE every pytest session appends one line of JSON to FILE. `tests.ci_summary` and
`tests.kubernetes.passes` read them.
"""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest

__all__ = ["REDUCED", "VARIABLE", "SessionRecord", "read", "register"]

VARIABLE = "PLUGWRIGHT_TEST_RECORD"
REDUCED = ("size", "reduced")  # property of a test that --full runs in full size
_DESELECTED = "plugwright_deselected"  # in what a worker of xdist sends when it ends
_NO_TESTS = 5  # pytest's exit status


class SessionRecord(msgspec.Struct, frozen=True):
    """The result of one pytest session: test ids, and for tests that did not run the reasons."""

    kubernetes: str  # version of the cluster; empty without a cluster
    seconds: float
    passed: list[str]
    failed: list[str]
    not_run: dict[str, str]
    reduced: list[str]

    @property
    def ran(self) -> set[str]:
        return {*self.passed, *self.failed}


def read(path: Path) -> Iterator[SessionRecord]:
    """The records in `path`; none if no session has written it."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return (msgspec.json.decode(line, type=SessionRecord) for line in lines)


def register(config: pytest.Config) -> None:
    """Record this session if PLUGWRIGHT_TEST_RECORD asks for it."""
    if path := os.environ.get(VARIABLE):
        config.pluginmanager.register(_Recorder(config, Path(path).absolute()))


class _Recorder:
    """Collects the outcome of each test; a worker of xdist only sends what it has deselected."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config = config
        self._path = path
        self._began = time.monotonic()
        self._passed: dict[str, None] = {}
        self._failed: dict[str, None] = {}
        self._not_run: dict[str, str] = {}
        self._reduced: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = None
        elif report.skipped:
            self._not_run[report.nodeid] = _reason(report.longrepr)
        elif report.when == "call":
            self._passed[report.nodeid] = None
        if REDUCED in map(tuple, report.user_properties):
            self._reduced[report.nodeid] = None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module may be skipped or fail as a whole."""
        if report.failed:
            self._failed[report.nodeid] = None
        elif report.skipped:
            self._not_run[report.nodeid] = _reason(report.longrepr)

    def pytest_deselected(self, items: Iterable[pytest.Item]) -> None:
        options = self._config.option
        chosen = " ".join(
            f"{flag} {value!r}" for flag, value in (("-m", options.markexpr), ("-k", options.keyword)) if value
        )
        self._not_run.update({item.nodeid: f"deselected by {chosen}" for item in items})

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self._not_run.update(getattr(node, "workeroutput", {}).get(_DESELECTED, {}))

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            cast("dict[str, object]", output)[_DESELECTED] = self._not_run
        elif exitstatus != _NO_TESTS or self._not_run:
            self._write()

    def _write(self) -> None:
        passed = [test for test in self._passed if test not in self._failed]
        version = os.environ.get("PLUGWRIGHT_KUBERNETES_VERSION", "")
        seconds = round(time.monotonic() - self._began, 1)
        record = SessionRecord(version, seconds, passed, [*self._failed], self._not_run, [*self._reduced])
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")


def _reason(longrepr: object) -> str:
    """A skipped test's representation is its path, its line and `Skipped: <reason>`."""
    text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return str(text).removeprefix("Skipped: ")
