"""Both ways to a real kubelet: calling it, and being found by its plugin watcher."""

import pytest
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pods
from tests.kubernetes.serving import Daemon, Plugins
from tests.kubernetes.waiting import until


@pytest.mark.essential
@pytest.mark.parametrize("way", ["direct", "watcher"])
@pytest.mark.smoke
def test_a_plugin_is_registered_again_whatever_cuts_it_off(
    cluster: Cluster, plugins: Plugins, node: Node, pods: Pods, way: str
) -> None:
    resource = f"mock/{way}"
    daemon = plugins.run({resource: {"count": 2}}, f"--registration={way}")
    node.shows(resource, capacity=2, allocatable=2)
    pod = pods.create("holder", {resource: 1}).runs()
    before = pod.containers()

    cluster.restart("kubelet")
    _until_registered(daemon, resource, times=2)
    node.shows(resource, capacity=2, allocatable=2)

    directory = "device-plugins" if way == "direct" else "plugins_registry"
    (cluster.kubelet_dir / directory / daemon.status(resource)["endpoint"]).unlink()
    _until_registered(daemon, resource, times=3)
    node.shows(resource, capacity=2, allocatable=2)

    pods.create("another", {resource: 1}).runs()
    assert pod.containers() == before


def _until_registered(daemon: Daemon, resource: str, times: int) -> None:
    until(f"{resource} is registered {times} times", lambda: len(daemon.registrations(resource)) >= times)
