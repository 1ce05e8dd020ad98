"""The files of `make dist`, as their users get them: `make smoke` installs and runs these, never the checkout."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from tests.deploy.rendered import CHART, ROOT, helm_or_skip
from tests.requirements import unavailable

from plugwright import __version__

DIRECTORY = os.environ.get("PLUGWRIGHT_DIST")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
UV = Path(sys.executable).with_name("uv")
OURS = {"UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1"}
# Nothing of the checkout may be found by the installed program.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))} | OURS

pytestmark = [
    pytest.mark.skipif(DIRECTORY is None, reason="`make smoke` runs it"),
    pytest.mark.timeout(180),
]


def artifact(pattern: str) -> Path:
    [path] = Path(DIRECTORY or "").glob(pattern)
    return path


def output(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )  # fmt: skip
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def installed(python: str, extras: str, directory: Path) -> Path:
    """The `bin` of a new environment with the wheel and what it requires."""
    found = subprocess.run(
        [UV, "python", "find", "--no-project", python], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    if found.returncode:
        unavailable("pythons", f"no Python {python} on this machine")
    environment = directory / "environment"
    output(UV, "venv", "--quiet", "--python", found.stdout.strip(), environment, cwd=directory)
    output(
        UV, "pip", "install", "--quiet", "--python", environment / "bin" / "python", f"{artifact('*.whl')}{extras}",
        cwd=directory,
    )  # fmt: skip
    return environment / "bin"


@contextmanager
def started(*command: str | Path, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, cwd=cwd, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], expected: str) -> None:
    assert process.stdout is not None
    read = []
    for line in process.stdout:
        read.append(line)
        if re.search(expected, line):
            return
    raise AssertionError(f"{expected!r} is not in:\n{''.join(read)}")


def files(path: Path) -> Mapping[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("RECORD")}


@pytest.mark.parametrize("python", PYTHONS)
def test_the_wheel_serves_the_plugin_of_the_readme(python: str, tmp_path: Path) -> None:
    programs = installed(python, "", tmp_path)
    assert output(programs / "plugwright", "--version", cwd=tmp_path).split()[-1] == __version__
    output(programs / "kubectl-plugwright", "--help", cwd=tmp_path)
    [plugin, *_] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "tape.py").write_text(plugin)
    with started(programs / "plugwright", "dev", "tape.py", cwd=tmp_path) as dev:
        read_until(dev, r" Allocate +example\.com/tape \[st[01]\]")
        dev.send_signal(signal.SIGINT)
        dev.communicate(timeout=60)


def test_the_wheel_with_its_cluster_extra_starts_a_cluster(tmp_path: Path) -> None:
    programs = installed(f"{sys.version_info.major}.{sys.version_info.minor}", "[cluster]", tmp_path)
    with started(programs / "plugwright", "up", "--state", tmp_path / "state", cwd=tmp_path) as up:
        read_until(up, "KUBECONFIG")
        up.send_signal(signal.SIGINT)
        up.communicate(timeout=60)
        assert up.returncode == 0


def test_a_new_project_passes_its_ci_with_the_wheel(tmp_path: Path) -> None:
    programs = installed(f"{sys.version_info.major}.{sys.version_info.minor}", "", tmp_path)
    output(programs / "plugwright", "new", "npu", cwd=tmp_path)
    project, environment = tmp_path / "npu", tmp_path / "ci"
    shutil.copytree(DIRECTORY or "", project / "wheels", ignore=shutil.ignore_patterns("image-*.tar"))
    output(UV, "venv", "--quiet", "--seed", "--python", sys.executable, environment, cwd=tmp_path)
    [job] = yaml.safe_load((project / ".github/workflows/test.yml").read_text())["jobs"].values()
    steps = [step["run"] for step in job["steps"] if "run" in step]
    assert len(steps) == 5
    for step in steps:
        output("sh", "-ec", f"PATH={environment}/bin:$PATH; {step}", cwd=project)


def test_the_action_runs_from_its_own_directory(tmp_path: Path) -> None:
    """From the files that a runner checks out, in an environment without plugwright, in another directory."""
    action, environment, project = (tmp_path / each for each in ("action", "environment", "project"))
    project.mkdir()
    (project / "plugwright.yaml").write_text("resources: [{name: example.com/tape, mock: {count: 2}}]\n")
    output("git", "checkout-index", "--all", f"--prefix={action}/", cwd=ROOT)
    output(UV, "venv", "--quiet", "--seed", "--python", sys.executable, environment, cwd=tmp_path)
    described = yaml.safe_load((action / "action.yml").read_text())
    values = {f"${{{{ inputs.{name} }}}}": str(given.get("default", "")) for name, given in described["inputs"].items()}
    values |= {
        "${{ github.action_path }}": str(action),
        "${{ inputs.arguments }}": "--rules ALO-01",
        "${{ inputs.command }}": "plugwright run -c plugwright.yaml --kubelet-dir {root} --control-socket {root}/c",
    }
    files = [f"{name}={tmp_path / name}" for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")]
    for step in [step for step in described["runs"]["steps"] if "run" in step]:
        given = [f"{name}={values.get(text, '')}" for name, text in step["env"].items()]
        path = f"PATH={environment}/bin:{os.environ['PATH']}"
        output("env", path, *files, *given, "bash", "-eo", "pipefail", "-c", step["run"], cwd=project)
    assert (project / "plugwright-verify" / "verify.sarif").is_file()
    assert (tmp_path / "GITHUB_STEP_SUMMARY").read_text().startswith("## plugwright verify: passed")


def test_the_sdist_builds_the_same_wheel(tmp_path: Path) -> None:
    output(
        UV, "build", "--quiet", "--wheel", "--out-dir", tmp_path, "--require-hashes",
        "--build-constraints", ROOT / "deploy" / "image" / "build-requirements.txt", artifact("*.tar.gz"), cwd=tmp_path,
    )  # fmt: skip
    [built] = tmp_path.glob("*.whl")
    assert files(built) == files(artifact("*.whl"))


def test_the_wheel_has_every_file_of_the_package() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "src/plugwright"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert {name.removeprefix("src/") for name in listed} <= set(files(artifact("*.whl")))


def test_the_sbom_of_the_packages_has_every_installed_distribution(tmp_path: Path) -> None:
    installed(f"{sys.version_info.major}.{sys.version_info.minor}", "[cluster,nvidia]", tmp_path)
    python = tmp_path / "environment" / "bin" / "python"
    listed = json.loads(output(UV, "pip", "list", "--format", "json", "--python", python, cwd=tmp_path))
    document = json.loads(artifact(f"plugwright-{__version__}.cdx.json").read_text())
    assert document["metadata"]["component"]["version"] == __version__
    components = {component["name"] for component in document["components"]}
    assert {package["name"] for package in listed} - {"plugwright"} <= components
    assert all(component["purl"].startswith("pkg:pypi/") for component in document["components"])


def test_the_sboms_of_images_differ_by_their_extras() -> None:
    named = {
        image: {component["name"] for component in json.loads(path.read_text())["components"]}
        for image in ("plugwright", "plugwright-tools")
        for path in [artifact(f"image-{image}-{__version__}.cdx.json")]
    }
    assert named["plugwright-tools"] - named["plugwright"] >= {"nvidia-ml-py", "starlette", "uvicorn"}


def test_the_chart_renders_from_its_package_as_from_its_directory(tmp_path: Path) -> None:
    package = artifact(f"plugwright-{__version__}.tgz")
    with tarfile.open(package) as archive:
        archive.extractall(tmp_path, filter="data")
    packed = {path.relative_to(tmp_path / "plugwright") for path in (tmp_path / "plugwright").rglob("*")}
    assert {path.relative_to(CHART) for path in CHART.rglob("*") if path.name != ".helmignore"} <= packed
    config = 'config={"resources":[{"name":"mock/gpu","mock":{"count":2}}]}'
    flags = ("--kube-version", "1.36.4", "--namespace", "devices", "--set-json", config)
    rendered = [
        output(helm_or_skip(), "template", "release", chart, *flags, cwd=tmp_path) for chart in (package, CHART)
    ]
    assert rendered[0] == rendered[1]
