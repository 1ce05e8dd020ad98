"""Devices of the mock plugin and of a plugin written with the SDK arrive in containers of a real cluster."""

import json
from pathlib import Path

import pytest
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.kubectl import Object
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pods
from tests.kubernetes.serving import Plugins
from tests.kubernetes.waiting import until


@pytest.mark.essential
@pytest.mark.smoke
def test_a_pod_gets_what_the_mock_plugin_answers(cluster: Cluster, plugins: Plugins, node: Node, pods: Pods) -> None:
    facts = "/run/mock-facts"
    plugins.run({"mock/gpu": {"count": 4, "model": "Mock-A100", "memory": "40Gi", "nodes": True, "facts": facts}})
    node.shows("mock/gpu", capacity=4, allocatable=4)

    pod = pods.create("reader", {"mock/gpu": 2}).runs()

    environment = pod.environment()
    devices = environment["MOCK_VISIBLE_DEVICES"].split(",")
    assert len(devices) == 2
    assert (environment["MOCK_MODEL"], environment["MOCK_MEMORY"]) == ("Mock-A100", str(40 * 2**30))
    for device in devices:
        told = json.loads(pod.exec("cat", f"/run/mock/{device}.json"))
        assert (told["id"], told["model"]) == (device, "Mock-A100")
        assert pod.exec("stat", "-c", "%F", f"/dev/mock{told['index']}").strip() == "character special file"


@pytest.mark.essential
def test_a_pod_gets_what_a_plugin_of_our_own_answers(
    cluster: Cluster, plugins: Plugins, node: Node, pods: Pods
) -> None:
    directory = _directory(cluster, "own")
    plugins.script("prepared", "example.com/own", directory)
    node.shows("example.com/own", capacity=6, allocatable=6)

    pod = pods.create("holder", {"example.com/own": 1}).runs()

    [unit] = pod.devices("UNITS")
    assert pod.exec("stat", "-c", "%F %t:%T", f"/dev/{unit}").strip() == "character special file 1:5"
    assert "Read-only" in pod.exec("sh", "-c", "touch /prepared/mine 2>&1 || true")


@pytest.mark.essential
@pytest.mark.smoke
def test_a_container_starts_only_after_its_devices_were_prepared(
    cluster: Cluster, plugins: Plugins, node: Node, pods: Pods
) -> None:
    directory = _directory(cluster, "prepared")
    refuse = directory / "refuse"
    refuse.touch()
    plugins.script("prepared", "example.com/prepared", directory)
    node.shows("example.com/prepared", capacity=6, allocatable=6)

    pod = pods.create("patient", {"example.com/prepared": 2}, command="sleep 0.5")
    until("the start is refused", lambda: "the units are not ready" in _waiting(pod.read()), last=pod.read)
    refuse.unlink()

    until("it was started again", lambda: pod.containers()[0][1] >= 1, last=lambda: pod.read()["status"])
    prepared = {path.name: path.read_text().count("prepared") for path in directory.iterdir()}
    assert set(prepared) == {"unit-4", "unit-5"}, "the two that the plugin likes best"
    assert all(count >= 2 for count in prepared.values()), "before each start, not only before the first"


@pytest.mark.essential
@pytest.mark.smoke
def test_the_kubelet_honours_what_the_plugin_prefers(plugins: Plugins, node: Node, pods: Pods) -> None:
    plugins.run({"mock/paired": {"count": 8, "links": "pairs"}})
    node.shows("mock/paired", capacity=8, allocatable=8)
    made = [pods.create(f"pair-{number}", {"mock/paired": 2}) for number in range(4)]
    for pod in made:
        first, second = (int(device.split("-")[1]) for device in pod.runs().devices())
        assert first ^ 1 == second, "two that are linked to each other"


@pytest.mark.essential
def test_pod_status_tells_when_a_device_fails_and_recovers(plugins: Plugins, node: Node, pods: Pods) -> None:
    daemon = plugins.run({"mock/frail": {"count": 2}})
    node.shows("mock/frail", capacity=2, allocatable=2)
    pod = pods.create("watched", {"mock/frail": 1}).runs()
    [device] = pod.devices()
    before = pod.containers()
    holders = {
        each["id"]: [f"{holder['namespace']}/{holder['pod']}" for holder in each["holders"]]
        for each in daemon.status("mock/frail")["devices"]
    }
    assert {key: pods for key, pods in holders.items() if pods} == {device: ["default/watched"]}

    daemon.ask("mock", "fail", device, "--reason", "fell off the bus")
    pod.shows({device: "Unhealthy"})
    node.shows("mock/frail", capacity=2, allocatable=1)

    daemon.ask("mock", "recover", device)
    pod.shows({device: "Healthy"})
    node.shows("mock/frail", capacity=2, allocatable=2)
    assert pod.containers() == before


def _directory(cluster: Cluster, name: str) -> Path:
    """The same inside and outside of the cluster's namespaces."""
    directory = cluster.state / name
    directory.mkdir()
    return directory


def _waiting(pod: Object) -> str:
    """Why its container does not start."""
    [status] = pod["status"].get("containerStatuses") or [{}]
    return str(status.get("state", {}).get("waiting", {}).get("message", ""))
