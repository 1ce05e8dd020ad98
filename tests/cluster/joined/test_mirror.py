"""The objects of another server, with a node's own writes laid over them."""

from plugwright.apiserver.kinds import EVENTS, PODS
from plugwright.apiserver.store import Object, ObjectKey
from plugwright.cluster.joined.mirror import Mirror

KEY = ObjectKey(PODS.qualified, "default", "one")


def pod(version: int, phase: str = "Pending", uid: str = "1") -> Object:
    metadata = {"name": "one", "namespace": "default", "uid": uid, "resourceVersion": str(version)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": "a"},
        "status": {"phase": phase},
    }


def test_an_older_version_does_not_replace_a_newer_one() -> None:
    mirror = Mirror()
    mirror.received(KEY, pod(10, "Running"))
    mirror.received(KEY, pod(9))
    assert mirror.require(KEY)["status"]["phase"] == "Running"


def test_an_answer_does_not_bring_back_what_the_watch_has_removed() -> None:
    mirror = Mirror()
    mirror.received(KEY, pod(10))
    mirror.answered(KEY, pod(11, "Running"))
    assert mirror.require(KEY)["status"]["phase"] == "Running"
    mirror.removed(KEY)
    mirror.answered(KEY, pod(12, "Running"))
    assert mirror.get(KEY) is None
    assert mirror.bound_pods("a") == []


def test_the_version_is_the_servers() -> None:
    mirror = Mirror()
    assert mirror.version(KEY) is None
    mirror.created(KEY, pod(0))
    assert mirror.version(KEY) == ""
    mirror.received(KEY, pod(10))
    mirror.changed(KEY, {"status": {"phase": "Running"}})
    assert mirror.version(KEY) == "10"


def test_a_write_shows_until_the_server_has_it_and_survives_what_the_server_sends_before() -> None:
    mirror = Mirror()
    mirror.received(KEY, pod(1))
    wanted = {"status": {"phase": "Running"}}
    assert mirror.changed(KEY, wanted)["status"]["phase"] == "Running"
    mirror.received(KEY, pod(2))
    assert mirror.require(KEY)["status"]["phase"] == "Running"
    mirror.received(KEY, pod(3, "Failed"))
    mirror.sent(KEY, wanted)
    assert mirror.require(KEY)["status"]["phase"] == "Failed"


def test_a_write_that_came_while_another_was_sent_stays() -> None:
    mirror = Mirror()
    mirror.received(KEY, pod(1))
    first = {"status": {"phase": "Running"}}
    mirror.changed(KEY, first)
    mirror.changed(KEY, {"status": {"phase": "Succeeded"}})
    mirror.sent(KEY, first)
    assert mirror.require(KEY)["status"]["phase"] == "Succeeded"


def test_another_object_of_the_same_name_has_none_of_the_writes() -> None:
    mirror = Mirror()
    mirror.received(KEY, pod(5))
    mirror.changed(KEY, {"status": {"phase": "Running"}})
    mirror.received(KEY, pod(2, uid="2"))
    assert mirror.require(KEY)["status"]["phase"] == "Pending"
    assert [found["metadata"]["uid"] for found in mirror.bound_pods("a")] == ["2"]
    mirror.removed(KEY)
    assert mirror.bound_pods("a") == []


def test_events_are_forgotten_when_there_are_many() -> None:
    mirror = Mirror()
    for number in range(4100):
        mirror.created(ObjectKey(EVENTS.qualified, "default", str(number)), {"metadata": {}})
    assert len(mirror.objects(EVENTS.qualified)) == 4096
    assert mirror.get(ObjectKey(EVENTS.qualified, "default", "0")) is None


def test_of_an_object_only_what_nodes_read_is_kept_and_equal_strings_once() -> None:
    mirror, content = Mirror(), pod(1)
    content["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    content["spec"]["nodeName"] = "node-" + "a"
    mirror.received(KEY, content)
    other = pod(1)
    other["spec"]["nodeName"] = "node-" + content["metadata"]["name"][:0] + "a"  # equal, and made anew
    mirror.received(ObjectKey(PODS.qualified, "default", "two"), other)
    first, second = mirror.objects(PODS.qualified)
    assert "managedFields" not in first["metadata"]
    assert first["spec"]["nodeName"] is second["spec"]["nodeName"]
