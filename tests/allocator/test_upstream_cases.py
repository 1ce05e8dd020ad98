"""Upstream's own test table, recorded while its allocator runs: the same devices for every case that we support."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.allocator.comparing import differences, our_answer
from tests.requirements import unavailable

MODULE = "k8s.io/dynamic-resource-allocation@v0.37.0"
RECORDER = Path(__file__).parent / "upstream_recorder" / "recorder.go.txt"
PACKAGE = Path("structured", "internal", "experimental")
CASES = 277
ALPHA = {"DRADerivedAttributes", "DRADeviceCompatibilityGroups", "DRAListTypeAttributes", "DRAOptionalNodeOperations"}
_Case = Mapping[str, Any]


def go(directory: Path, *arguments: str, **variables: str) -> str:
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod", "GOWORK": "off", **variables}
    done = subprocess.run(
        ["go", *arguments], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        unavailable("go", f"go {' '.join(arguments)}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[_Case]:
    if shutil.which("go") is None:
        unavailable("go", "needs Go")
    directory = tmp_path_factory.mktemp("upstream")
    downloaded = json.loads(go(directory, "mod", "download", "-json", MODULE))["Dir"]
    copy = directory / "module"
    shutil.copytree(downloaded, copy)
    for path in (copy, *copy.rglob("*")):  # the module cache is read-only
        path.chmod(path.stat().st_mode | 0o200)
    for test in (copy / PACKAGE).glob("*_test.go"):
        test.unlink()
    shutil.copyfile(RECORDER, copy / PACKAGE / "recorder_test.go")
    records = directory / "cases.jsonl"
    go(copy, "test", "-run", "TestRecord", f"./{PACKAGE}/", RECORDS=str(records))
    return [json.loads(line) for line in records.read_text().splitlines()]


def upstream(case: _Case) -> _Case:
    """Some cases cancel the call, which a question cannot do: it has no answer then."""
    return {**case, "error": None} if str(case.get("error")).startswith("filter operation aborted") else case


@pytest.mark.skipif("PLUGWRIGHT_WORLDS" not in os.environ, reason="needs Go modules: make test-allocator")
@pytest.mark.timeout(600)
def test_upstreams_cases_get_the_same_devices(cases: list[_Case]) -> None:
    assert len(cases) == CASES
    wrong, unsupported = [], []
    for number, case in enumerate(cases):
        ours = our_answer(case)
        if "unsupported" in ours:
            unsupported.append((ours["unsupported"], case))
            continue
        difference = differences(case, upstream(case), ours)
        if difference:
            wrong.append(f"case {number}: {difference}")
    assert not wrong, "\n".join(wrong)
    alpha = [name for name, case in unsupported if ALPHA & set(case["features"] or ())]
    binding = [name for name, case in unsupported if not ALPHA & set(case["features"] or ())]
    assert len(alpha) == 45
    assert len(binding) <= 15
    assert set(alpha) <= ALPHA
    assert set(binding) <= {"DRADeviceBindingConditions+DRAResourceClaimDeviceStatus"}
