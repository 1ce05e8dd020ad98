"""The plugin is killed, upgraded, reloaded and taken out of the configuration, beside a real kubelet."""

import signal

import pytest
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pods
from tests.kubernetes.serving import Plugins
from tests.kubernetes.waiting import until


@pytest.mark.essential
@pytest.mark.smoke
def test_a_plugin_that_was_killed_and_started_again_has_its_resource_back(
    plugins: Plugins, node: Node, pods: Pods
) -> None:
    first = plugins.run({"mock/killed": {"count": 3}})
    node.shows("mock/killed", capacity=3, allocatable=3)
    pod = pods.create("unharmed", {"mock/killed": 1}).runs()
    before = pod.containers(), pod.devices()

    first.process.stop(signal.SIGKILL)
    node.shows("mock/killed", capacity=3, allocatable=0)
    second = plugins.run({"mock/killed": {"count": 3}})
    node.shows("mock/killed", capacity=3, allocatable=3)

    assert second.logged("sockets of an earlier run removed")
    assert (pod.containers(), pod.devices()) == before
    other = pods.create("another", {"mock/killed": 2}).runs()
    assert not set(other.devices()) & set(pod.devices())


@pytest.mark.essential
def test_an_upgrade_with_two_instances_for_a_moment_ends_well(plugins: Plugins, node: Node, pods: Pods) -> None:
    resources = {"mock/upgraded": {"count": 3}}
    first = plugins.run(resources)
    node.shows("mock/upgraded", capacity=3, allocatable=3)
    pod = pods.create("unharmed", {"mock/upgraded": 1}).runs()
    before = pod.containers(), pod.devices()

    second = plugins.run(resources)
    until("the second is registered", lambda: second.registrations("mock/upgraded"))
    assert first.process.stop() == 0

    until("the second is watched", lambda: second.status("mock/upgraded")["streams"] == 1)
    node.shows("mock/upgraded", capacity=3, allocatable=3)
    pods.create("another", {"mock/upgraded": 2}).runs()
    assert second.logged("allocated", resource="mock/upgraded")
    assert (pod.containers(), pod.devices()) == before


@pytest.mark.essential
def test_a_reload_changes_only_what_changed(plugins: Plugins, node: Node) -> None:
    daemon = plugins.run({"mock/kept": {"count": 2}, "mock/grown": {"count": 2}, "mock/dropped": {"count": 2}})
    for resource in ("mock/kept", "mock/grown", "mock/dropped"):
        node.shows(resource, capacity=2, allocatable=2)

    daemon.configure({"mock/kept": {"count": 2}, "mock/grown": {"count": 5}})

    node.shows("mock/grown", capacity=5, allocatable=5)
    node.shows("mock/dropped", capacity=2, allocatable=0)
    node.shows("mock/kept", capacity=2, allocatable=2)
    assert len(daemon.registrations("mock/kept")) == 1
    assert len(daemon.registrations("mock/grown")) == 1


@pytest.mark.essential
def test_a_restart_with_a_bad_file_serves_the_last_good_one(plugins: Plugins, node: Node, pods: Pods) -> None:
    daemon = plugins.run({"mock/restored": {"count": 2}})
    node.shows("mock/restored", capacity=2, allocatable=2)
    pod = pods.create("undisturbed", {"mock/restored": 1}).runs()
    before = pod.containers()
    until("the file is kept", lambda: any(daemon.place.rglob("last-good-config.json")))
    assert daemon.process.stop() == 0
    node.shows("mock/restored", capacity=2, allocatable=0)
    (daemon.place / "config.yaml").write_text("resources: [{name: restored, mock: {count: 2}}]")

    again = plugins.run_again(daemon)

    node.shows("mock/restored", capacity=2, allocatable=2)
    assert again.logged("configuration rejected, the last valid one is active")
    assert pods.create("newcomer", {"mock/restored": 1}).runs().devices() != pod.devices()
    assert pod.containers() == before


def test_gpus_that_a_pod_holds_whole_are_given_out_in_shares_when_it_has_ended(
    plugins: Plugins, node: Node, pods: Pods
) -> None:
    whole, shared = "example.com/whole", "example.com/shared"
    t4 = {"simulate": "t4"}
    daemon = plugins.run({whole: {"nvidia": t4}})
    node.shows(whole, capacity=4, allocatable=4)
    holder = pods.create("holder", {whole: 4}).runs()
    assert len(holder.devices("PLUGWRIGHT_GPU_UUID")) == 4

    daemon.configure(
        {
            whole: {"nvidia": {**t4, "select": {"index": [0, 1]}}},
            shared: {"nvidia": {**t4, "select": {"index": [2, 3]}, "share": {"replicas": 2}}},
        }
    )

    node.shows(shared, capacity=4, allocatable=0)
    reasons = {device["reason"] for device in daemon.status(shared)["devices"]}
    assert reasons == {f"held by default/holder ({whole}) until it ends"}
    pods.delete(holder.name)
    node.shows(shared, capacity=4, allocatable=4)
    tenant = pods.create("tenant", {shared: 1}).runs()
    assert len(tenant.devices("PLUGWRIGHT_GPU_UUID")) == 1


@pytest.mark.essential
@pytest.mark.smoke
def test_a_plugin_that_ends_leaves_nothing_to_allocate(plugins: Plugins, node: Node) -> None:
    daemon = plugins.run({"mock/ended": {"count": 2}})
    node.shows("mock/ended", capacity=2, allocatable=2)
    assert daemon.process.stop() == 0
    node.shows("mock/ended", capacity=2, allocatable=0)
