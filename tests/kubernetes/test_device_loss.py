"""Devices fail, are cordoned, or vanish while pods hold them: the kubelet must not crash, and pods must tell.

With a topology policy, because only then does a kubelet crash over a held device that is no longer listed (fact 2.25).
"""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.enclosure import Process
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pods
from tests.kubernetes.serving import Plugins
from tests.kubernetes.waiting import until

_PATIENCE = 2.0
_FORGOTTEN = "removed devices are no longer listed"


@pytest.fixture(scope="module")
def topology(cluster: Cluster) -> Iterator[None]:
    with cluster.kubelet_settings(topologyManagerPolicy="best-effort"):
        yield


@pytest.fixture(autouse=True)
def the_kubelet_does_not_crash(cluster: Cluster, node: Node, topology: None) -> Iterator[None]:
    yield
    assert cluster.kubelet.alive
    assert node.panics() == []


def test_a_cordoned_device_shows_in_the_pod_that_holds_it_and_is_given_to_no_other(
    plugins: Plugins, node: Node, pods: Pods
) -> None:
    daemon = plugins.run({"mock/cordoned": {"count": 2}})
    node.shows("mock/cordoned", capacity=2, allocatable=2)
    pod = pods.create("holder", {"mock/cordoned": 1}).runs()
    [device], before = pod.devices(), pod.containers()

    daemon.ask("cordon", "mock/cordoned", device, "--reason", "fan replaced on Monday")
    pod.shows({device: "Unhealthy"})
    node.shows("mock/cordoned", capacity=2, allocatable=1)
    pod.delete()
    assert pods.create("another", {"mock/cordoned": 1}).runs().devices() != [device]

    daemon.ask("uncordon", "mock/cordoned", device)
    node.shows("mock/cordoned", capacity=2, allocatable=2)
    assert before[0][1] == 0


@pytest.mark.essential
@pytest.mark.smoke
def test_fewer_devices_by_a_reload_leave_the_pods_that_hold_them_running(
    cluster: Cluster, plugins: Plugins, node: Node, pods: Pods
) -> None:
    daemon = plugins.run({"mock/fewer": {"count": 4}})
    node.shows("mock/fewer", capacity=4, allocatable=4)
    made = [pods.create(f"holder-{number}", {"mock/fewer": 1}).runs() for number in range(4)]
    before = [(pod.containers(), pod.devices()) for pod in made]
    kubelet = cluster.kubelet.pid

    daemon.configure({"mock/fewer": {"count": 1}})
    node.shows("mock/fewer", capacity=4, allocatable=1)
    for pod in made if cluster.version >= "1.36" else []:  # earlier pods do not show the health of devices (7.1)
        [device] = pod.devices()
        pod.shows({device: "Healthy" if device.startswith("mock-0-") else "Unhealthy"})
    assert cluster.kubelet.pid == kubelet

    cluster.restart("kubelet")
    node.shows("mock/fewer", capacity=4, allocatable=1)
    assert [(pod.containers(), pod.devices()) for pod in made] == before
    gone = [device["id"] for device in daemon.status("mock/fewer")["devices"] if "configuration" in device["reason"]]
    assert len(gone) == 3


def test_pulling_out_a_held_device_and_plugging_it_in_again_is_seen_in_the_pod(
    plugins: Plugins, node: Node, pods: Pods
) -> None:
    daemon = plugins.run({"mock/pulled": {"count": 2}})
    node.shows("mock/pulled", capacity=2, allocatable=2)
    pod = pods.create("holder", {"mock/pulled": 1}).runs()
    [device], before = pod.devices(), pod.containers()

    daemon.ask("mock", "remove", device)
    pod.shows({device: "Unhealthy"})
    daemon.ask("mock", "add", device, "--resource=mock/pulled")
    pod.shows({device: "Healthy"})
    assert pod.containers() == before


async def test_a_device_that_is_gone_is_listed_for_as_long_as_a_pod_holds_it(
    cluster: Cluster, plugins: Plugins, node: Node, pods: Pods
) -> None:
    units, plugin = _units(cluster, plugins, node, "example.com/unit")
    pod = pods.create("holder", {"example.com/unit": 2}).runs()
    held = pod.devices("UNITS")

    _change(units, plugin, "")
    until("the free one is forgotten", lambda: plugin.lines(_FORGOTTEN), limit=30)
    node.shows("example.com/unit", capacity=2, allocatable=0)
    pod.shows(dict.fromkeys(held, "Unhealthy"))
    looked = time.monotonic()
    until("it was looked for twice", lambda: time.monotonic() > looked + 2 * _PATIENCE)
    assert len(plugin.lines(_FORGOTTEN)) == 1

    pod.delete()
    assert not await node.holdings()  # being asked makes the kubelet see that nobody holds them any more,
    _change(units, plugin, "another")  # and whatever the plugin tells makes it write that into its checkpoint
    until("the others are forgotten", lambda: len(plugin.lines(_FORGOTTEN)) == 2, limit=30)
    node.shows("example.com/unit", capacity=1, allocatable=1)


def test_a_device_that_is_gone_is_forgotten_on_a_node_where_nothing_else_happens(
    cluster: Cluster, plugins: Plugins, node: Node, pods: Pods
) -> None:
    units, plugin = _units(cluster, plugins, node, "example.com/quiet")
    pod = pods.create("holder", {"example.com/quiet": 3}).runs()
    _change(units, plugin, "")
    node.shows("example.com/quiet", capacity=3, allocatable=0)
    pod.delete()
    until("they are forgotten", lambda: plugin.lines(_FORGOTTEN), limit=30)


def _units(cluster: Cluster, plugins: Plugins, node: Node, resource: str) -> tuple[Path, Process]:
    """A plugin with three units, and the file where they stand."""
    units = cluster.state / f"units-of-{resource.replace('/', '-')}"
    units.write_text("a b c")
    plugin = plugins.script("from_file", resource, units, str(_PATIENCE))
    node.shows(resource, capacity=3, allocatable=3)
    return units, plugin


def _change(units: Path, plugin: Process, devices: str) -> None:
    units.write_text(devices)
    plugin.send(signal.SIGHUP)
