"""Rollouts of the chart: pods are Ready at once, and a mistake or a bad node stops them."""

import json
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
import yaml
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.components import NODE
from tests.kubernetes.documented import Page
from tests.kubernetes.kubectl import Object
from tests.kubernetes.node import Node
from tests.kubernetes.shipping import Release
from tests.kubernetes.waiting import until

RESOURCE, NAME = "rollouts.chart/gpu", "plugwright-rollouts"
INSTALL = Page("install.md")
LATE = 3  # seconds from the registration to a pod that is Ready

pytestmark = pytest.mark.timeout(600)  # the images may have to be built first


@pytest.fixture(scope="module")
def release(cluster: Cluster, helm: Path, images: None) -> Iterator[Release]:
    release = Release(cluster, helm, NAME)
    release.install(f"config.resources[0].name={RESOURCE}", "config.resources[0].mock.count=3", "cleanup.enabled=false")
    release.rolled_out()
    yield release
    release.uninstall()


def daemon(cluster: Cluster) -> Object:
    """The newest of the daemons' pods."""
    return max(daemons(cluster), key=lambda pod: pod["metadata"]["creationTimestamp"])


def daemons(cluster: Cluster) -> list[Object]:
    """The pods of daemons that are not ending."""
    components = "app.kubernetes.io/component in (daemon, daemon-canary)"
    found = cluster.kubectl.every("pods", f"--namespace={NAME}", f"--selector={components}")
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def seconds_until_ready(cluster: Cluster, release: Release) -> float:
    """From the daemon's registration, by its log, to the pod's Ready, whose time has no fraction."""
    lines = (json.loads(line) for line in release.logs().splitlines())
    registered = next(line["time"] for line in lines if line["message"] == "registered")
    conditions = {each["type"]: each for each in daemon(cluster)["status"]["conditions"]}
    ready = datetime.fromisoformat(conditions["Ready"]["lastTransitionTime"])
    return (ready - datetime.fromisoformat(registered)).total_seconds()


def test_pods_are_ready_soon_after_they_have_registered(release: Release, cluster: Cluster, full: bool) -> None:
    """The usual pod within three seconds; none waits for a period of the probe."""
    waits = []
    for _ in range(25 if full else 4):
        cluster.kubectl(f"--namespace={NAME}", "rollout", "restart", f"daemonset/{NAME}")
        release.rolled_out()
        waits.append(round(seconds_until_ready(cluster, release), 1))
    print("seconds from registered to Ready:", *waits)
    assert sorted(waits)[len(waits) // 2] <= LATE, waits
    assert max(waits) <= 15, waits


def helm_upgrade(cluster: Cluster, helm: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    chart = str(Path(__file__).parents[2] / "deploy" / "helm" / "plugwright")
    return cluster.run(helm, f"--namespace={NAME}", "upgrade", NAME, chart, "--reuse-values", *flags)


@pytest.mark.essential
def test_a_mistake_that_helm_cannot_see_fails_the_upgrade_and_reaches_no_node(
    release: Release, cluster: Cluster, helm: Path
) -> None:
    def state() -> tuple[object, ...]:
        config = cluster.kubectl(f"--namespace={NAME}", "get", "configmap", NAME, "--output=jsonpath={.data}")
        return config, daemon(cluster)["metadata"]["name"]

    before = state()
    wrong = {"name": RESOURCE, "mock": {"count": 3}, "expect": {"min": 4, "max": 2}}
    done = helm_upgrade(cluster, helm, "--set-json", f"config.resources={json.dumps([wrong])}")
    assert done.returncode != 0
    assert "pre-upgrade hooks failed" in done.stderr
    logs = INSTALL.command("Upgrading", "kubectl --namespace plugwright logs job/plugwright-check").split()[1:]
    said = cluster.kubectl(*(word.replace("plugwright", NAME) for word in logs))
    assert "max must be at least min" in said
    assert state() == before


@pytest.mark.essential
def test_a_label_gives_a_node_the_canary_and_takes_it_away(
    release: Release, cluster: Cluster, node: Node, helm: Path, tmp_path: Path
) -> None:
    """The commands of docs/install.md. Each node has one daemon: cordons stay, as they belong to the node."""
    heading = "A configuration on a few nodes first"
    canary = yaml.safe_load(INSTALL.yaml(heading))
    [resource] = canary["configs"]["canary"]["config"]["resources"]
    resource["name"] = RESOURCE
    path = tmp_path / "canary.yaml"
    path.write_text(yaml.safe_dump(canary))
    node.shows(RESOURCE, capacity=3, allocatable=3)
    assert INSTALL.command(heading, "helm upgrade").endswith("--reuse-values -f canary.yaml")
    done = helm_upgrade(cluster, helm, "-f", str(path))
    assert done.returncode == 0, done.stderr
    rollout = INSTALL.command(heading, "kubectl --namespace plugwright rollout").split()[1:]
    label = INSTALL.command(heading, "kubectl label node worker-17").replace("worker-17", NODE).split()[1:]
    cluster.kubectl(*label)
    node.shows(RESOURCE, capacity=6, allocatable=6)
    cluster.kubectl(*(word.replace("plugwright", NAME) for word in rollout), "--timeout=60s")
    assert len(daemons(cluster)) == 1
    cluster.kubectl("label", "node", NODE, "plugwright.dev/config-")
    until("the first one is back", lambda: node.resource(RESOURCE) == (3, 3), last=lambda: node.resource(RESOURCE))
    assert len(daemons(cluster)) == 1
