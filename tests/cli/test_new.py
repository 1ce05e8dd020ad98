"""`plugwright new`: a project that passes its own tests and checks as it is made."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from tests.deploy.rendered import CHART, helm_or_skip
from tests.testing.projects import PYTEST

from plugwright.cli.main import cli
from plugwright.errors import PlugwrightError

CACHE = f"--cache-dir={CHART.parents[2] / '.cache' / 'mypy-new'}"  # our own modules are checked once


def made(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["new", *map(str, arguments)])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "npu-card"
    result = made("npu-card", "--dir", directory, "--resource", "acme.example/npu", "--chart", f"file://{CHART}")
    assert result.exit_code == 0, result.output
    return directory


def output(project: Path, *command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PLUGWRIGHT_"))}
    done = subprocess.run(
        command, cwd=project, capture_output=True, text=True, timeout=110, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_project_passes_its_own_tests(project: Path) -> None:
    assert "4 passed" in output(project, *PYTEST)


def test_the_project_passes_mypy_strict(project: Path) -> None:
    assert "no issues found in 2 source files" in output(project, sys.executable, "-m", "mypy", CACHE)


def test_the_plugin_keeps_every_rule_that_its_ci_checks(project: Path) -> None:
    devices = project / "devices"
    devices.mkdir()
    for name in ("one", "two"):
        (devices / name).write_text("ok")
    verify = (sys.executable, "-m", "plugwright", "verify", "--env", "PLUGWRIGHT_KUBELET_DIR={root}")
    verdict = output(project, *verify, "--env", "NPU_CARD_DIR=devices", "--", sys.executable, "npu_card.py")
    counts = re.search(r"^(\d+) pass, 0 fail,", verdict, re.MULTILINE)
    assert counts is not None, verdict
    assert int(counts.group(1)) > 70, verdict  # with devices to allocate


def test_the_project_is_formatted_as_ours(project: Path) -> None:
    flags = ("--isolated", "--line-length", "120", ".")
    output(project, sys.executable, "-m", "ruff", "format", "--check", *flags)
    output(project, sys.executable, "-m", "ruff", "check", *flags)


def test_the_plugin_is_one_that_run_serves(project: Path) -> None:
    checked = output(project, sys.executable, "-m", "plugwright", "run", "npu_card:NpuCard", "--check")
    assert checked == "NpuCard: acme.example/npu, valid\n"


def test_the_printed_steps_and_the_ci_install_plugwright_from_its_source(tmp_path: Path) -> None:
    steps = [line.strip() for line in made("npu", "--dir", tmp_path / "npu").output.splitlines()]
    wheel = shlex.join(["pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "wheels", str(CHART.parents[2])])
    assert steps[1:5] == [
        f"cd {tmp_path / 'npu'}",
        "python3 -m venv .venv && . .venv/bin/activate",
        wheel,
        "pip install --find-links wheels -e '.[test]' && pytest && mypy",
    ]
    workflow = yaml.safe_load((tmp_path / "npu/.github/workflows/test.yml").read_text())
    assert "pip install --find-links wheels '.[test]'" in [
        step.get("run") for step in workflow["jobs"]["test"]["steps"]
    ]


@pytest.mark.parametrize("place", ["npu", "projects/npu"])
def test_the_chart_depends_on_that_of_the_clone(tmp_path: Path, place: str) -> None:
    assert made("npu", "--dir", tmp_path / place).exit_code == 0
    chart = tmp_path / place / "chart"
    [dependency] = yaml.safe_load((chart / "Chart.yaml").read_text())["dependencies"]
    assert Path(os.path.normpath(chart / dependency["repository"].removeprefix("file://"))) == CHART


def test_everything_is_filled_in(project: Path) -> None:
    files = [path for path in project.rglob("*") if path.is_file()]
    assert sorted(str(path.relative_to(project)) for path in files) == [
        ".dockerignore",
        ".github/workflows/test.yml",
        ".gitignore",
        "Dockerfile",
        "README.md",
        "chart/Chart.yaml",
        "chart/values.yaml",
        "npu_card.py",
        "pod.yaml",
        "pyproject.toml",
        "tests/test_npu_card.py",
    ]
    assert not [path for path in files if re.search("@[A-Z]+@", path.read_text())]
    assert yaml.safe_load((project / "pod.yaml").read_text())["spec"]["containers"][0]["resources"] == {
        "limits": {"acme.example/npu": 1}
    }


def test_the_chart_runs_the_plugin_from_its_image(project: Path) -> None:
    helm = helm_or_skip()
    output(project, helm, "dependency", "build", "chart")
    rendered = output(project, helm, "template", "npu", "chart", "--kube-version", "1.36.4")
    [daemon] = [one for one in yaml.safe_load_all(rendered) if one and one["kind"] == "DaemonSet"]
    container = daemon["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "npu-card:0.1.0"
    assert container["args"][:2] == ["run", "npu_card:NpuCard"]
    assert "acme.example/npu" in rendered.partition("kind: CronJob")[2]


@pytest.mark.parametrize("name", ["Npu", "npu card", "-npu", "npu-", "1npu", "npu_card", "", "n" * 41, "../npu"])
def test_a_name_that_cannot_be_one_is_refused(name: str, tmp_path: Path) -> None:
    result = made("--dir", tmp_path / "x", "--", name)
    assert isinstance(result.exception, PlugwrightError)
    assert "name of a project must have lower-case letters, digits and '-', at most 40" in str(result.exception)
    assert str(result.exception).endswith(f"got {name!r}")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["json", "class", "plugwright", "tests"])
def test_a_name_that_would_hide_another_module_is_refused(name: str, tmp_path: Path) -> None:
    result = made(name, "--dir", tmp_path / "x")
    assert f"must not be that of a module that Python or plugwright has, got {name!r}" in str(result.exception)


def test_a_resource_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    result = made("npu", "--dir", tmp_path / "x", "--resource", "npu")
    assert "'npu' is not a resource name: it must have one '/'" in str(result.exception)
    assert not (tmp_path / "x").exists()


def test_a_directory_that_cannot_be_made_is_one_line() -> None:
    program = (sys.executable, "-m", "plugwright", "new", "npu", "--dir", "/proc/npu")
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "plugwright: cannot use /proc/npu: No such file or directory\n")


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    result = made("npu", "--dir", tmp_path)
    assert f"directory of a new project must be empty or not exist, got {tmp_path}" in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
