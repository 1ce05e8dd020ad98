"""The GitHub action: its step runs the command, writes the reports, annotates, and keeps the exit code."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PLUGIN = ROOT / "tests" / "conformance" / "plugin.py"
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
[STEP] = [step for step in ACTION["runs"]["steps"] if step.get("id") == "verify"]


def run(directory: Path, mutant: str, **inputs: str) -> subprocess.CompletedProcess[str]:
    """The step as a runner would run it, with the given inputs and the defaults of the others."""
    command = shlex.join([sys.executable, str(PLUGIN), "--root", "{root}", *(["--mutant", mutant] if mutant else [])])
    values = {name: str(described.get("default", "")) for name, described in ACTION["inputs"].items()}
    values |= {"command": command, "arguments": "--rules 'ALO-0[1-3]' --exclude ALO-02", **inputs}
    github = {"action_repository": "example/plugwright", "action_ref": "v1.2.3"}
    environment = {
        name: values.get(text.removeprefix("${{ inputs.").removesuffix(" }}"), "")
        or github.get(text.removeprefix("${{ github.").removesuffix(" }}"), "")
        for name, text in STEP["env"].items()
    }
    files = {"GITHUB_OUTPUT": str(directory / "output"), "GITHUB_STEP_SUMMARY": str(directory / "summary")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEP["run"]],
        cwd=directory,
        env={**os.environ, **environment, **files, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_action_reports_a_failure_in_every_way(tmp_path: Path) -> None:
    done = run(tmp_path, "response-per-device")
    assert done.returncode == 1
    assert "::error title=ALO-03 " in done.stdout
    assert "https://github.com/example/plugwright/blob/v1.2.3/docs/verify.md#alo-03" in done.stdout
    assert (tmp_path / "summary").read_text().startswith("## plugwright verify: failed")
    outputs = dict(line.split("=") for line in (tmp_path / "output").read_text().splitlines())
    assert all((tmp_path / path).is_file() for path in outputs.values())


def test_the_action_takes_a_baseline(tmp_path: Path) -> None:
    (tmp_path / "known.txt").write_text("ALO-03  # our issue 7\n")
    done = run(tmp_path, "response-per-device", baseline="known.txt")
    assert (done.returncode, "::error" in done.stdout) == (0, False)


@pytest.mark.parametrize("name", ["junit", "sarif"])
def test_the_outputs_of_the_action_exist(name: str) -> None:
    assert ACTION["outputs"][name]["value"] == f"${{{{ steps.verify.outputs.{name} }}}}"


def test_the_action_installs_the_version_that_was_checked_out() -> None:
    [install] = [step for step in ACTION["runs"]["steps"] if "pip install" in step.get("run", "")]
    assert install["env"]["ACTION"] == "${{ github.action_path }}"
    assert "PACKAGE=$ACTION" in install["run"]
