"""What the daemon would refuse, the chart refuses before anything is installed, in the same words."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.rendered import helm

from plugwright.config import schema
from plugwright.errors import ConfigError

MOCK = {"count": 1}
NAMES = [
    "gpu",
    "a/b/c",
    "example.kubernetes.io/gpu",
    "requests.example.com/gpu",
    "Example.com/gpu",
    f"{'a' * 245}/gpu",
    "example.com/",
    "example.com/-gpu",
    f"example.com/{'g' * 64}",
    "example.com/{profile}",
]


def refusals(resources: list[dict[str, Any]], tmp_path: Path) -> tuple[str, str]:
    """What the daemon says of a file, without its line, and what Helm says of the same as a value."""
    with pytest.raises(ConfigError) as caught:
        schema.read("plugwright.yaml", json.dumps({"resources": resources}))
    path = tmp_path / "values.yaml"
    path.write_text(json.dumps({"config": {"resources": resources}}))
    result = helm("template", "-f", path)
    assert result.returncode == 1
    _, _, by_helm = result.stderr.rpartition("config.")
    return str(caught.value).partition(": ")[2], by_helm.partition("\n")[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_name_is_refused_in_the_same_words(name: str, tmp_path: Path) -> None:
    said, by_helm = refusals([{"name": name, "mock": MOCK}], tmp_path)
    assert by_helm == said


def test_a_name_that_is_there_already_is_refused(tmp_path: Path) -> None:
    said, by_helm = refusals([{"name": "a.b/c", "mock": MOCK}, {"name": "a.b/c", "mock": MOCK}], tmp_path)
    assert said.startswith(by_helm)


@pytest.mark.parametrize("more", [{"mock": MOCK, "paths": ["/dev/fuse"]}, {"count": 2}])
def test_a_resource_has_one_kind_of_device(more: dict[str, Any], tmp_path: Path) -> None:
    said, by_helm = refusals([{"name": "a.b/c", **more}], tmp_path)
    assert by_helm == said


def test_a_directory_that_the_container_needs_itself_is_not_hidden(tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text("config: {resources: [{name: example.com/agent, paths: [/run/agent.sock]}]}")
    result = helm("template", "-f", path)
    assert "example.com/agent: /run cannot be mounted at its own path in the daemon's pod" in result.stderr
    assert helm("template", "-f", path, "--set", "config.host.root=/host").returncode == 0


OVERLAP = ("--set", "updateStrategy.overlap=true")
GPUS = ("--set", "mock.enabled=true")


def mock_served(serve: str) -> tuple[str, ...]:
    at = "config.resources[0]"
    return ("--set", f"{at}.name=example.com/tape,{at}.mock.count=2,{at}.{serve}")


REFUSED_OVERLAPS = {
    ("--kube-version=1.36.4", *GPUS): "updateStrategy.overlap needs kubelets of 1.37 or newer on all nodes",
    ("--kube-version=1.36.4", *mock_served("serve=both")): "every resource has `serve: dra` (example.com/tape has not)",
    (
        "--kube-version=1.36.4",
        *mock_served("serve=dra"),
        *GPUS,
    ): "every resource has `serve: dra` (mock/gpu has not)",
    ("--kube-version=1.37.0", *GPUS, "--set", "registration=watcher"): "needs registration: direct and no runDir",
    (
        "--kube-version=1.37.0",
        *GPUS,
        "--set",
        "runDir=/run/plugwright",
    ): "needs registration: direct and no runDir",
    (
        "--kube-version=1.37.0",
        *GPUS,
        "--set",
        "probes.enabled=false",
    ): "updateStrategy.overlap needs probes.enabled",
}


@pytest.mark.parametrize("flags", REFUSED_OVERLAPS)
def test_daemons_that_would_disturb_each_other_do_not_overlap(flags: tuple[str, ...]) -> None:
    result = helm("template", *OVERLAP, *flags)
    assert result.returncode == 1
    assert REFUSED_OVERLAPS[flags] in result.stderr


@pytest.mark.parametrize(
    "flags",
    [
        ("--kube-version=1.37.0", *GPUS),
        ("--kube-version=1.36.4", *mock_served("serve=dra")),
        ("--kube-version=1.34.1", *mock_served("serve.api=dra")),
    ],
)
def test_daemons_overlap_where_the_kubelets_allow_it(flags: tuple[str, ...]) -> None:
    result = helm("template", *OVERLAP, *flags)
    assert result.returncode == 0, result.stderr
    assert "maxSurge: 1\n      maxUnavailable: 0\n" in result.stdout
