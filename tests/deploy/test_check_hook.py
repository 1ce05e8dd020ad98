"""The Job that checks configurations before an install or upgrade: its command, with its files, as it is rendered."""

from pathlib import Path

import pytest
import yaml
from tests.cli.processes import Ended, ended, python
from tests.deploy.rendered import Object, helm

GOOD = "config: {resources: [{name: example.com/tape, mock: {count: 2}}]}"
# Each fits the schema, and no daemon would take it.
BAD = {
    "config: {resources: [{name: nvidia.com/gpu, nvidia: {simulate: hgx-h1000}}]}": "hgx-h1000",
    "config: {resources: [{name: example.com/tape, mock: {}, serve: {api: dra, split: {dra: 1}}}]}": "split needs api",
    "config: {resources: [{name: example.com/tape, mock: {}, expect: {min: 4, max: 2}}]}": "max must be at least min",
}


def rendered(values: str, directory: Path) -> list[Object]:
    path = directory / "values.yaml"
    path.write_text(values)
    result = helm("template", "-f", path)
    assert result.returncode == 0, result.stderr
    return [each for each in yaml.safe_load_all(result.stdout) if each]


def hooks(objects: list[Object]) -> dict[str, Object]:
    """Of the check, by kind."""
    label = "app.kubernetes.io/component"
    return {each["kind"]: each for each in objects if each["metadata"].get("labels", {}).get(label) == "check"}


async def checked(values: str, directory: Path) -> Ended:
    """The command of its one container, with its files."""
    found = hooks(rendered(values, directory))
    for name, text in found["ConfigMap"]["data"].items():
        (directory / name).write_text(text)
    (container,) = found["Job"]["spec"]["template"]["spec"]["containers"]
    (mount,) = container["volumeMounts"]
    arguments = [argument.replace(mount["mountPath"], str(directory)) for argument in container["args"]]
    return await ended(python("-m", "plugwright", *arguments))


async def test_a_valid_configuration_passes(tmp_path: Path) -> None:
    done = await checked(GOOD, tmp_path)
    assert (done.code, "valid" in done.out) == (0, True), done.err


@pytest.mark.parametrize("values", BAD)
async def test_an_error_that_helm_cannot_see_fails_the_upgrade(values: str, tmp_path: Path) -> None:
    done = await checked(values, tmp_path)
    assert done.code == 1
    assert BAD[values] in done.err


def test_it_runs_before_anything_changes_and_uses_nothing_of_the_release(tmp_path: Path) -> None:
    objects = rendered(GOOD, tmp_path)
    found = hooks(objects)
    weights = {}
    for kind, each in found.items():
        annotations = each["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "pre-install,pre-upgrade"
        weights[kind] = int(annotations["helm.sh/hook-weight"])
    assert weights["ConfigMap"] < weights["Job"]
    pod = found["Job"]["spec"]["template"]["spec"]
    assert "serviceAccountName" not in pod  # that of the release does not exist before an install
    assert pod["automountServiceAccountToken"] is False
    own = found["ConfigMap"]["metadata"]["name"]
    assert [volume["configMap"]["name"] for volume in pod["volumes"]] == [own]
    assert own not in {each["metadata"]["name"] for each in objects if "helm.sh/hook" not in str(each["metadata"])}
    assert found["Job"]["spec"]["backoffLimit"] == 0


def test_each_configuration_is_checked_in_the_image_of_its_daemon(tmp_path: Path) -> None:
    more = "configs: {gpus: {config: {resources: [{name: a.com/gpu, nvidia: {}}]}, nodeSelector: {a.com/gpu: here}}}"
    objects = rendered(f"{GOOD}\n{more}", tmp_path)
    pod = hooks(objects)["Job"]["spec"]["template"]["spec"]
    daemons = [each["spec"]["template"]["spec"]["containers"][0] for each in objects if each["kind"] == "DaemonSet"]
    assert sorted(each["image"] for each in pod["containers"]) == sorted(each["image"] for each in daemons)
    assert len({each["image"] for each in daemons}) == 2


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    assert not hooks(rendered(f"{GOOD}\ncheck: {{enabled: false}}", tmp_path))
