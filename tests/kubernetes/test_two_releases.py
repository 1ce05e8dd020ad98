"""Two releases of the chart on one node: each keeps its own state, the node keeps cordons, a resource has one owner."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.kubectl import KubectlFailed, Object
from tests.kubernetes.node import Node
from tests.kubernetes.shipping import Release
from tests.kubernetes.waiting import until

FIRST, SECOND, SAME = "two.chart/first", "two.chart/second", "two.chart/same"

pytestmark = pytest.mark.timeout(600)  # the images may have to be built first


@pytest.fixture
def releases(cluster: Cluster, helm: Path, images: None) -> Iterator[tuple[Release, Release]]:
    found = Release(cluster, helm, "plugwright-first"), Release(cluster, helm, "plugwright-second")
    yield found
    for release in found:
        release.remove()
    until("their pods have ended", lambda: not any(release.pods() for release in found), 120)


def values(resource: str, count: int) -> list[str]:
    return [
        f"config.resources[0].name={resource}",
        f"config.resources[0].mock.count={count}",
        "cleanup.enabled=false",
    ]


def report(release: Release) -> Object:
    found: Object = json.loads(release.plugwright("status", "--output=json"))
    return found


def served(release: Release, resource: str) -> Object:
    [found] = [each for each in report(release)["resources"] if each["name"] == resource]
    return dict(found)


def owner(release: Release) -> str:
    """The owner that a daemon waits for; empty while it starts."""
    try:
        return str(served(release, SAME)["owner"])
    except KubectlFailed:
        return ""


def registered(release: Release, resource: str) -> None:
    def is_registered() -> bool:
        try:
            return bool(served(release, resource)["state"] == "registered")
        except KubectlFailed:  # its container starts
            return False

    until("it is registered", is_registered, 120, last=release.logs)


def restart(cluster: Cluster, release: Release) -> None:
    """Replaces its pod; a daemon that has refused its file is not ready afterwards."""
    before = release.pods()
    cluster.kubectl(f"--namespace={release.name}", "rollout", "restart", f"daemonset/{release.name}")
    until("its pod is replaced", lambda: release.pods() and not set(before) & set(release.pods()), 120)


def test_releases_keep_their_configuration_and_the_cordons_of_each_other(
    releases: tuple[Release, Release], cluster: Cluster, node: Node
) -> None:
    counts = {FIRST: 3, SECOND: 2}
    for release, resource in zip(releases, counts, strict=True):
        release.install(*values(resource, counts[resource]))
        release.rolled_out()
        node.shows(resource, capacity=counts[resource], allocatable=counts[resource])
    for release, resource in zip(releases, counts, strict=True):
        device = served(release, resource)["devices"][0]["id"]
        release.plugwright("cordon", resource, device, "--reason=fan replaced")
        node.shows(resource, capacity=counts[resource], allocatable=counts[resource] - 1)

    # A file that is refused makes the daemon serve its last good one after a restart: its own, not the other's.
    first, second = releases
    refused = json.dumps({"data": {"plugwright.yaml": "resources: none\n"}})
    cluster.kubectl(f"--namespace={first.name}", "patch", "configmap", first.name, "--type=merge", f"--patch={refused}")
    restart(cluster, first)
    restart(cluster, second)
    for release, resource in zip(releases, counts, strict=True):
        registered(release, resource)
        assert [each["name"] for each in report(release)["resources"]] == [resource], "served another's last good file"
        assert [each["cordoned"] for each in served(release, resource)["devices"]].count("fan replaced") == 1
        node.shows(resource, capacity=counts[resource], allocatable=counts[resource] - 1)


def test_a_second_release_waits_for_the_owner_of_a_resource(
    releases: tuple[Release, Release], cluster: Cluster, node: Node
) -> None:
    first, second = releases
    first.install(*values(SAME, 3))
    first.rolled_out()
    node.shows(SAME, capacity=3, allocatable=3)
    second.install(*values(SAME, 5))
    until("it names the owner", lambda: owner(second), 120, last=second.logs)
    assert "plugwright-first" in served(second, SAME)["owner"]
    assert not report(second)["daemon"]["ready"]
    assert report(first)["daemon"]["ready"]
    assert node.resource(SAME) == (3, 3)
    first.uninstall()
    node.shows(SAME, capacity=5, allocatable=5)
    until("it is ready", lambda: report(second)["daemon"]["ready"], 120, last=second.logs)
