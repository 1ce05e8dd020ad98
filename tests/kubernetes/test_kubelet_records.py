"""What plugwright shows and reads on a node with a real kubelet: status, the checkpoint, pod-resources."""

import pytest
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pods
from tests.kubernetes.serving import Plugins
from tests.kubernetes.waiting import until

from plugwright.protocol.pod_resources import HeldDevice


@pytest.mark.essential
def test_status_shows_how_it_stands_with_the_real_kubelet(plugins: Plugins, node: Node) -> None:
    daemon = plugins.run({"mock/shown": {"count": 2, "numa": 1}})
    node.shows("mock/shown", capacity=2, allocatable=2)
    report = daemon.status("mock/shown")
    assert (report["state"], report["streams"], report["registrations"]) == ("registered", 1, 1)
    assert [device["health"] for device in report["devices"]] == ["Healthy", "Healthy"]
    assert "1 watching, 2 of 2 healthy" in daemon.ask("status")


@pytest.mark.essential
@pytest.mark.smoke
async def test_checkpoint_and_pod_resources_name_the_holders(plugins: Plugins, node: Node, pods: Pods) -> None:
    plugins.run({"mock/held": {"count": 4}, "mock/other": {"count": 1, "numa": 0}})
    node.shows("mock/held", capacity=4, allocatable=4)
    node.shows("mock/other", capacity=1, allocatable=1)
    made = [pods.create("one", {"mock/held": 1}), pods.create("two", {"mock/held": 2})]
    holders = {pod.runs().uid: pod for pod in made}

    written = node.checkpoint()
    listed = await node.holdings()

    entries = {entry.pod_uid: entry for entry in written.entries or () if entry.resource == "mock/held"}
    assert set(entries) == set(holders)
    for uid, pod in holders.items():
        devices = pod.devices()
        assert entries[uid].container == "main"
        assert {numa: sorted(ids or ()) for numa, ids in (entries[uid].devices or {}).items()} == {0: devices}
        assert b"MOCK_VISIBLE_DEVICES" in (entries[uid].answer or b"")
        expected = [HeldDevice("mock/held", device, "default", pod.name, "main") for device in devices]
        assert [holding for holding in listed if holding.pod == pod.name] == expected
    assert len((written.registered or {})["mock/held"] or ()) == 4
    assert len((written.registered or {})["mock/other"] or ()) == 1


@pytest.mark.essential
def test_status_shows_the_device_of_an_ended_pod_as_free(plugins: Plugins, node: Node, pods: Pods) -> None:
    """The kubelet frees the device without writing that down (3.60), and no other pod is admitted that would."""
    daemon = plugins.run({"mock/ended": {"count": 3}})
    node.shows("mock/ended", capacity=3, allocatable=3)
    deleted = pods.create("deleted", {"mock/ended": 1}).runs()
    kept = pods.create("kept", {"mock/ended": 1}).runs()
    completed = pods.create("completed", {"mock/ended": 1}, "sleep 5", restartPolicy="Never").runs()

    def holders() -> list[str]:
        return sorted(
            holder["pod"] for device in daemon.status("mock/ended")["devices"] for holder in device["holders"]
        )

    assert holders() == ["completed", "deleted", "kept"]
    deleted.delete()
    until("the completed pod has ended", lambda: completed.read()["status"]["phase"] == "Succeeded")
    until("both devices are free", lambda: holders() == ["kept"], limit=10, last=holders)
    assert kept.containers()[0][1] == 0
