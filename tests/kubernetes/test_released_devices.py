"""A plugin is told when its devices are free: the kubelet has no call for that, so it is read from what it shows."""

import signal
from pathlib import Path

import pytest
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.enclosure import Process
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pods
from tests.kubernetes.serving import Plugins
from tests.kubernetes.waiting import until

_INTERVAL = "2"


@pytest.mark.essential
def test_devices_are_released_when_their_pod_is_gone_and_no_earlier(
    cluster: Cluster, plugins: Plugins, node: Node, pods: Pods
) -> None:
    marks, plugin = _released(cluster, plugins, node, "example.com/marked")
    kept = pods.create("kept", {"example.com/marked": 1}).runs()
    for name in ("first", "second"):
        pod = pods.create(name, {"example.com/marked": 2}).runs()
        assert _marked(marks) == {"unit-0", "unit-1", "unit-2"}
        pod.delete()
        until("its units are released", lambda: _marked(marks) == set(kept.devices("UNITS")), limit=60)
    assert not plugin.lines("not released")


def test_a_pod_that_ends_while_the_plugin_is_away_is_noticed_by_the_next_one(
    cluster: Cluster, plugins: Plugins, node: Node, pods: Pods
) -> None:
    marks, plugin = _released(cluster, plugins, node, "example.com/away")
    pod = pods.create("holder", {"example.com/away": 2}).runs()
    plugin.stop(signal.SIGKILL)
    pod.delete()
    assert len(_marked(marks)) == 2
    plugins.script("released", "example.com/away", marks, _INTERVAL)
    until("its units are released", lambda: not _marked(marks), limit=60)


def test_a_release_that_fails_is_tried_again(cluster: Cluster, plugins: Plugins, node: Node, pods: Pods) -> None:
    marks, plugin = _released(cluster, plugins, node, "example.com/stuck")
    (marks / "refuse").touch()
    pods.create("holder", {"example.com/stuck": 1}).runs().delete()
    until("it has failed", lambda: plugin.lines("the units are stuck"), limit=60)
    (marks / "refuse").unlink()
    until("its unit is released", lambda: not _marked(marks), limit=60)
    assert len(plugin.lines("the units are stuck")) == 1


def _released(cluster: Cluster, plugins: Plugins, node: Node, resource: str) -> tuple[Path, Process]:
    marks = cluster.state / f"marks-of-{resource.replace('/', '-')}"
    marks.mkdir()
    plugin = plugins.script("released", resource, marks, _INTERVAL)
    node.shows(resource, capacity=3, allocatable=3)
    return marks, plugin


def _marked(marks: Path) -> set[str]:
    return {path.name for path in marks.iterdir()} - {"refuse"}
