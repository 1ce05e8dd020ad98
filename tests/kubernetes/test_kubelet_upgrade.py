"""A node is upgraded in place to the next version of Kubernetes while pods hold devices of both APIs."""

import os
from collections.abc import Iterator

import pytest
from tests.kubernetes import building
from tests.kubernetes.claims import Claims
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pods
from tests.kubernetes.serving import Daemon, Plugins
from tests.kubernetes.waiting import until

BEFORE, AFTER = building.DEFAULT_VERSION, "1.37.0"
SESSION = os.environ.get("PLUGWRIGHT_KUBERNETES_VERSION") or BEFORE
COUNTED, CLAIMED, DRIVER = "example.com/counted", "example.com/claimed", "claimed.example.com"


@pytest.fixture
def upgradable(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster of its own, because that of the session keeps its version; the latter shows that the machine can."""
    with Cluster(cluster.version) as found:
        yield found


@pytest.mark.full("a second cluster, and the programs of another version")
@pytest.mark.timeout(2400)  # which may have to be built first
@pytest.mark.skipif(SESSION != BEFORE, reason=f"the upgrade begins at {BEFORE}")
def test_a_node_that_is_upgraded_in_place_keeps_the_devices_of_pods_of_both_apis(upgradable: Cluster) -> None:
    node, pods, plugins = Node(upgradable), Pods(upgradable.kubectl), Plugins(upgradable)
    claims = Claims(upgradable.kubectl, DRIVER)
    claims.template("one")
    daemon = plugins.run({COUNTED: {"count": 2}, CLAIMED: {"count": 2, "serve": "dra"}})
    node.shows(COUNTED, capacity=2, allocatable=2)
    claims.published(2)
    until("the driver is registered", lambda: registrations(daemon)[1])
    counted, claimed = pods.create("counted", {COUNTED: 1}).runs(), claims.pod("claimed", "one").runs()
    before = [(pod.containers(), pod.devices()) for pod in (counted, claimed)]
    already = registrations(daemon)

    upgradable.upgrade(AFTER)
    until("both are registered again", lambda: all(map(int.__gt__, registrations(daemon), already)), limit=120)
    node.shows(COUNTED, capacity=2, allocatable=2)
    claims.published(2)
    others = [pods.create("counted-later", {COUNTED: 1}).runs(), claims.pod("claimed-later", "one").runs()]
    for held, other in zip((counted, claimed), others, strict=True):
        assert set(held.devices()).isdisjoint(other.devices())
    assert [(pod.containers(), pod.devices()) for pod in (counted, claimed)] == before

    counted.delete()
    claimed.delete()
    again = [pods.create("counted-again", {COUNTED: 1}).runs(), claims.pod("claimed-again", "one").runs()]
    assert [pod.devices() for pod in again] == [devices for _, devices in before]
    assert node.panics() == []
    assert daemon.process.alive
    plugins.end()


def registrations(daemon: Daemon) -> tuple[int, int]:
    """How often the kubelet accepted each: the plugin, and the driver."""
    return len(daemon.registrations(COUNTED)), len(daemon.logged("registered", driver=DRIVER))
