"""The image runs as a pod, the chart installs, changes and uninstalls it, and nothing is left on the node."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.components import NODE
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pods
from tests.kubernetes.serving import Plugins
from tests.kubernetes.shipping import Release
from tests.kubernetes.waiting import until

GRACE = 5 * 60  # how long a kubelet keeps a resource whose plugin is gone


@pytest.fixture
def release(cluster: Cluster, helm: Path, images: None) -> Iterator[Release]:
    release = Release(cluster, helm, "plugwright")
    yield release
    release.remove()


@pytest.mark.full("the kubelet keeps a resource for five minutes after its plugin has gone")
def test_the_chart_is_installed_changed_and_uninstalled_without_a_trace(
    release: Release, cluster: Cluster, node: Node, pods: Pods, plugins: Plugins
) -> None:
    mock = ("mock.enabled=true", "mock.resource=chart/gpu")
    release.install(*mock, "config.resources[0].name=chart/old", "config.resources[0].mock.count=2")
    release.rolled_out()
    node.shows("chart/gpu", capacity=10, allocatable=10)
    node.shows("chart/old", capacity=2, allocatable=2)
    daemons = release.pods()
    holder = pods.create("holder", {"chart/gpu": 2}).runs()
    before = holder.containers(), holder.devices()

    release.upgrade(*mock, "mock.count=12")
    release.sync()
    until("the change arrives", lambda: node.resource("chart/gpu") == (12, 12), limit=150)
    assert release.pods() == daemons
    assert (holder.containers(), holder.devices()) == before

    killed = plugins.run({"mock/left": {"count": 3}})
    node.shows("mock/left", capacity=3, allocatable=3)
    pods.end()
    release.uninstall()
    killed.process.stop(signal.SIGKILL)
    node.shows("chart/gpu", capacity=12, allocatable=0)
    _the_clean_up_has_no_way_to_the_node(cluster)

    _a_resource_left_behind_is_removed_when_it_stays_away(cluster, node)
    until("the chart's resource is gone", lambda: node.resource("chart/gpu") is None, limit=GRACE)
    until("what an upgrade had dropped is gone", lambda: node.resource("chart/old") is None, limit=GRACE)
    until("nothing of the chart is left", lambda: not release.leftovers(), limit=120, last=release.leftovers)
    assert node.resource("chart/gpu") is None


def _the_clean_up_has_no_way_to_the_node(cluster: Cluster) -> None:
    def may(*action: str) -> bool:
        return cluster.kubectl.works("auth", "can-i", *action, f"--as={account}", "--namespace=plugwright", "--quiet")

    account = "system:serviceaccount:plugwright:plugwright-cleanup"
    until("its rights are there", lambda: may("patch", "nodes/n", "--subresource=status"))
    for kind in ("pods", "jobs.batch", "cronjobs.batch", "daemonsets.apps", "serviceaccounts", "clusterroles"):
        assert not any(may(verb, f"{kind}/plugwright-cleanup") for verb in ("create", "update", "patch")), kind
    assert not may("create", "pods", "--subresource=exec")
    assert not may("get", "secrets")


def test_ordinary_devices_are_served_without_naming_their_mounts(release: Release, node: Node, pods: Pods) -> None:
    """The node's /dev is mounted read-only, and nothing is left in it."""
    before = set(Path("/dev").iterdir())
    release.install(
        "config.resources[0].name=chart/null", "config.resources[0].paths[0]=/dev/null", "config.resources[0].count=3"
    )
    release.rolled_out()
    node.shows("chart/null", capacity=3, allocatable=3)
    pods.create("holder", {"chart/null": 1}).runs()
    assert not {path.name for path in set(Path("/dev").iterdir()) - before}
    release.test()


def _a_resource_left_behind_is_removed_when_it_stays_away(cluster: Cluster, node: Node) -> None:
    """`plugwright node`, by an administrator, in the same five minutes."""
    node.shows("mock/left", capacity=3, allocatable=0)
    at_once = _plugwright(cluster, "remove", NODE, "mock/left")
    assert at_once[0] == 1, at_once
    assert "put it back" in at_once[1]
    waited = _plugwright(cluster, "remove", NODE, "mock/left", "--wait", "--round=1s")
    assert waited[0] == 0, waited
    assert node.resource("mock/left") is None


def test_a_resource_is_added_by_hand_and_removed_when_nobody_holds_it(cluster: Cluster, node: Node, pods: Pods) -> None:
    assert _plugwright(cluster, "add", NODE, "example.com/dongle=4", "--wait", "--round=1s")[0] == 0
    node.shows("example.com/dongle", capacity=4, allocatable=4)
    pods.create("holder", {"example.com/dongle": 3}).runs()
    assert "manual" in _plugwright(cluster, "resources", NODE)[1]

    refused = _plugwright(cluster, "remove", NODE, "example.com/dongle")
    assert (refused[0], "holder" in refused[1]) == (1, True)
    pods.end()
    assert _plugwright(cluster, "remove", NODE, "example.com/dongle", "--wait", "--round=1s")[0] == 0
    assert node.resource("example.com/dongle") is None


@pytest.mark.essential
def test_what_a_live_plugin_serves_is_told_and_left_alone(cluster: Cluster, node: Node, plugins: Plugins) -> None:
    plugins.run({"mock/alive": {"count": 2}})
    node.shows("mock/alive", capacity=2, allocatable=2)
    assert "plugin" in _plugwright(cluster, "resources", NODE, f"--kubelet-dir={cluster.kubelet_dir}")[1]
    assert _plugwright(cluster, "remove", NODE, "mock/alive")[0] == 1
    node.shows("mock/alive", capacity=2, allocatable=2)


def _plugwright(cluster: Cluster, *arguments: str) -> tuple[int, str]:
    done = cluster.run(sys.executable, "-m", "plugwright", "node", *arguments, limit=GRACE + 180)
    return done.returncode, done.stdout + done.stderr
