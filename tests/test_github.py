"""The files for GitHub and pre-commit: valid by GitHub's schemas, in step with the Makefile and pyproject.toml."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"
MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RELEASES = GITHUB / "workflows" / "release.yml"
RELEASE = RELEASES.read_text()
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PINNED = [*WORKFLOWS, ROOT / "action.yml"]
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
SCHEMAS = {
    "github-workflows": WORKFLOWS,
    "github-issue-forms": FORMS,
    "github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "dependabot": [GITHUB / "dependabot.yml"],
    "github-actions": [ROOT / "action.yml"],
    "gitlab-ci": [ROOT / "deploy" / "gitlab" / "verify.yml"],
}
Yaml = Mapping[str, object]


def loaded(path: Path) -> Yaml:
    return cast("Yaml", yaml.safe_load(path.read_text()))


def jobs(path: Path) -> Iterator[tuple[str, Yaml]]:
    yield from cast("Mapping[str, Yaml]", loaded(path)["jobs"]).items()


def steps(path: Path) -> Iterator[Yaml]:
    for _, job in jobs(path):
        yield from cast("list[Yaml]", job.get("steps", []))


def matrix(job: str) -> Mapping[str, list[Any]]:
    strategy = cast("Mapping[str, Mapping[str, list[Any]]]", dict(jobs(RELEASES))[job]["strategy"])
    return strategy["matrix"]


def commands(job: Yaml) -> list[str]:
    return [str(step.get("run", "")) for step in cast("list[Yaml]", job["steps"])]


def make_targets(command: str) -> list[str]:
    return re.findall(r"\bmake ([a-z0-9-]+)", command)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_github_accepts_the_files(schema: str) -> None:
    assert SCHEMAS[schema]
    files = [str(path) for path in SCHEMAS[schema]]
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_make_targets_of_a_workflow_exist(path: Path) -> None:
    targets = [target for step in steps(path) for target in make_targets(str(step.get("run", "")))]
    assert all(re.search(rf"^{target}:", MAKEFILE, re.MULTILINE) for target in targets)


def test_workflows_run_all_that_must_pass_before_a_change_lands() -> None:
    on_pull_request = [path for path in WORKFLOWS if "pull_request:" in path.read_text()]
    run = {target for path in on_pull_request for step in steps(path) for target in make_targets(str(step.get("run")))}
    assert set(make_targets((ROOT / ".ci" / "run").read_text())) <= run


@pytest.mark.parametrize("path", PINNED, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_with_their_version_beside_it(path: Path) -> None:
    used = re.findall(r"uses: (?!\./)(.*)$", path.read_text(), re.MULTILINE)
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+(; .*)?", action) for action in used), used


def test_one_action_is_pinned_to_one_commit() -> None:
    pins = {pin for path in PINNED for pin in re.findall(r"uses: ([\w./-]+)@([0-9a-f]{40})", path.read_text())}
    assert len({action for action, _ in pins}) == len(pins)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_read_and_a_job_says_what_else_it_needs(path: Path) -> None:
    assert loaded(path)["permissions"] == {"contents": "read"}
    granted = {name: job["permissions"] for name, job in jobs(path) if "permissions" in job}
    if path.name != "release.yml":
        assert not granted
        return
    assert granted == {
        "pypi": {"id-token": "write"},
        "images": {"contents": "read", "packages": "write"},
        "manifests": {"packages": "write", "id-token": "write"},
        "chart": {"contents": "read", "packages": "write", "id-token": "write"},
        "release": {"contents": "write"},
    }


def test_images_and_chart_are_signed_by_digest() -> None:
    release = dict(jobs(RELEASES))
    for name, signed in {"manifests": '--recursive "$IMAGE@$digest"', "chart": '"$charts/plugwright@$digest"'}.items():
        assert any(f"cosign sign --yes {signed}" in command for command in commands(release[name]))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_job_has_a_time_limit(path: Path) -> None:
    assert all("timeout-minutes" in job or "uses" in job for _, job in jobs(path))


def test_the_tests_run_on_every_python_that_the_package_names() -> None:
    [(_, job)] = jobs(GITHUB / "workflows" / "test.yml")
    tested = cast("Mapping[str, Mapping[str, list[str]]]", job["strategy"])["matrix"]
    classifiers = re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert tested["python"] == classifiers
    assert PROJECT["requires-python"] == f">={classifiers[0]}"
    build = cast("list[Mapping[str, Mapping[str, str]]]", dict(jobs(RELEASES))["build"]["steps"])
    [versions] = [step["with"]["python-version"] for step in build if "python-version" in step.get("with", {})]
    assert sorted(versions.split()) == classifiers


def test_a_released_image_is_one_of_those_that_are_built_here() -> None:
    script = (ROOT / "deploy" / "build-image.sh").read_text()
    [names] = re.findall(r"images=\((plugwright [^)]+)\)", script)
    [extras] = re.findall(r"\|\| extras='([^']+)'", script)
    assert matrix("images")["image"] == matrix("manifests")["image"] == names.split()
    assert [each["extras"] for each in matrix("images")["include"] if "image" in each] == ["", extras]


def test_images_are_released_for_both_architectures_each_built_on_its_own_machine() -> None:
    architectures = matrix("images")["architecture"]
    runners = {each["architecture"]: each["runner"] for each in matrix("images")["include"] if "runner" in each}
    assert runners == {"amd64": "ubuntu-24.04", "arm64": "ubuntu-24.04-arm"}
    assert architectures == list(runners)
    [tag] = [command for command in commands(dict(jobs(RELEASES))["manifests"]) if "imagetools create" in command]
    assert f"for architecture in {' '.join(architectures)};" in tag
    chart = loaded(ROOT / "deploy/helm/plugwright/Chart.yaml")
    annotations = cast("Mapping[str, str]", chart["annotations"])
    for image in yaml.safe_load(annotations["artifacthub.io/images"]):
        assert image["platforms"] == [f"linux/{architecture}" for architecture in architectures]


def test_an_image_gets_its_tag_only_after_it_has_run_as_the_chart_starts_it() -> None:
    release = dict(jobs(RELEASES))
    [pushed] = [step for step in cast("list[Yaml]", release["images"]["steps"]) if step.get("id") == "push"]
    inputs = cast("Mapping[str, str]", pushed["with"])
    assert "push-by-digest=true" in inputs["outputs"]
    assert "tags" not in inputs
    assert any("make smoke-images" in command for command in commands(release["images"]))
    assert "images" in cast("list[str]", release["manifests"]["needs"])


def test_a_bug_report_asks_for_the_status_and_the_kubelet() -> None:
    text = (GITHUB / "ISSUE_TEMPLATE" / "bug.yml").read_text()
    assert "plugwright status -o json" in text
    assert "kubelet --version" in text


def test_every_part_of_make_check_is_a_hook() -> None:
    [parts] = re.findall(r"^check: ([a-z -]+) ##", MAKEFILE, re.MULTILINE)
    config = loaded(ROOT / ".pre-commit-config.yaml")
    repositories = cast("list[Mapping[str, list[Yaml]]]", config["repos"])
    hooks = [hook for repository in repositories for hook in repository["hooks"]]
    assert [hook["id"] for hook in hooks] == parts.split()
    assert all(hook["entry"] == f"make {hook['id']}" and hook["language"] == "system" for hook in hooks)


def test_a_release_has_the_address_of_its_repository(tmp_path: Path) -> None:
    address, chart = "https://github.com/example/plugwright", Path("deploy/helm/plugwright/Chart.yaml")
    (tmp_path / chart).parent.mkdir(parents=True)
    for path in (Path("pyproject.toml"), chart, chart.with_name("values.yaml")):
        (tmp_path / path).write_text((ROOT / path).read_text())
    script = str(ROOT / "deploy" / "repository_urls.py")
    subprocess.run([sys.executable, script, address, str(tmp_path)], check=True)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
    assert project["urls"]["Homepage"] == address
    assert PROJECT | {"urls": project["urls"]} == project
    released = loaded(tmp_path / chart)
    assert (released["home"], released["sources"]) == (address, [address])
    values: Any = loaded(tmp_path / chart.with_name("values.yaml"))
    assert values["metrics"]["prometheusRule"]["runbooks"] == f"{address}/blob/main/docs/operations.md"
    assert f'{script.removeprefix(f"{ROOT}/")} "$GITHUB_SERVER_URL/$GITHUB_REPOSITORY"' in RELEASE
