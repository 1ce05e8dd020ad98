"""The node lifecycle controller with a clock that the test advances: silent nodes and evictions."""

from datetime import UTC, datetime, timedelta

from tests.cluster.pods_and_nodes import node_object, pod_object

from plugwright.apiserver import clock
from plugwright.apiserver.kinds import EVENTS, LEASES, NAMESPACES, NODES, PODS
from plugwright.apiserver.registry import DeleteOptions, ResourcePath, Writer
from plugwright.apiserver.store import Object, Store
from plugwright.cluster.controllers.node_lifecycle import NodeLifecycleController, NodeLifecycleSettings
from plugwright.cluster.events import ClusterClient

GRACE = 50.0
UNREACHABLE = "node.kubernetes.io/unreachable"


class Lab:
    def __init__(self) -> None:
        self.time = datetime(2026, 11, 15, 12, tzinfo=UTC)
        self.store = Store()
        self.writer = Writer(self.store, self.now)
        self.client = ClusterClient(self.store, self.writer, self.now)
        self.controller = NodeLifecycleController(self.client, NodeLifecycleSettings(GRACE))
        for name in ("default", "kube-node-lease"):
            self.writer.create(ResourcePath(NAMESPACES, "", name), {"metadata": {"name": name}}, "test")

    def now(self) -> datetime:
        return self.time

    def later(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)
        self.controller.check_nodes()

    def add(self, name: str = "n1") -> None:
        self.writer.create(ResourcePath(NODES, "", name), node_object(name), "kubelet")
        spec = {"holderIdentity": name, "renewTime": clock.micro_time(self.time)}
        content = {"metadata": {"name": name}, "spec": spec}
        self.writer.create(ResourcePath(LEASES, "kube-node-lease", name), content, "kubelet")

    def renew(self, name: str = "n1") -> None:
        place = ResourcePath(LEASES, "kube-node-lease", name)
        spec = {"renewTime": clock.micro_time(self.time)}
        self.writer.change(place, lambda lease: {**lease, "spec": {**lease["spec"], **spec}}, "kubelet")

    def node(self, name: str = "n1") -> Object:
        return self.store.require(ResourcePath(NODES, "", name).key)

    def ready(self, name: str = "n1") -> Object:
        return next(
            dict(condition) for condition in self.node(name)["status"]["conditions"] if condition["type"] == "Ready"
        )

    def taints(self, name: str) -> list[tuple[str, str]]:
        return [(taint["key"], taint["effect"]) for taint in self.node(name)["spec"].get("taints") or ()]

    def event_reasons(self) -> list[str]:
        return [event["reason"] for event in self.store.objects(EVENTS.qualified)]


def test_a_node_that_renews_its_lease_stays_ready() -> None:
    lab = Lab()
    lab.add()
    for _ in range(5):
        lab.later(GRACE - 1)
        lab.renew()
    assert (lab.ready()["status"], lab.node()["spec"]) == ("True", {})


def test_a_node_that_could_not_renew_its_lease_while_the_process_was_stopped_stays_ready() -> None:
    lab = Lab()
    lab.add()
    lab.time += timedelta(seconds=GRACE + 1)
    lab.controller.run_round()
    assert lab.ready()["status"] == "True"
    lab.time += timedelta(seconds=1)
    lab.controller.run_round()
    assert lab.ready()["status"] == "Unknown"


def test_a_silent_node_is_marked_not_ready_once() -> None:
    lab = Lab()
    lab.add()
    lab.later(GRACE + 1)
    first = lab.node()
    assert lab.ready()["status"] == "Unknown"
    lab.later(10)
    assert lab.node() == first
    assert lab.event_reasons().count("NodeNotReady") == 1


def test_a_node_that_never_had_a_kubelet_has_a_reason_of_its_own() -> None:
    lab = Lab()
    lab.writer.create(ResourcePath(NODES, "", "n1"), {"metadata": {"name": "n1"}, "spec": {}}, "kubectl")
    lab.later(GRACE + 1)
    ready = lab.ready()
    assert (ready["reason"], ready["message"]) == ("NodeStatusNeverUpdated", "Kubelet never posted node status.")


def test_pods_are_not_evicted_while_every_node_is_silent() -> None:
    """As a real cluster of one node does."""
    lab = Lab()
    lab.add("n1")
    lab.add("n2")
    lab.later(GRACE + 1)
    assert lab.taints("n1") == lab.taints("n2") == [(UNREACHABLE, "NoSchedule")]
    lab.renew("n2")
    lab.later(1)
    assert lab.taints("n1") == [(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]
    lab.later(GRACE + 1)
    assert lab.taints("n1") == [(UNREACHABLE, "NoSchedule")]


def test_pods_of_a_silent_node_become_unready() -> None:
    lab = Lab()
    lab.add()
    place = ResourcePath(PODS, "default", "p")
    lab.writer.create(place, pod_object("p"), "test")
    lab.writer.bind(place, "n1")
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    lab.writer.change(ResourcePath(PODS, "default", "p", "status"), lambda pod: {**pod, "status": ready}, "kubelet")
    lab.later(GRACE + 1)
    (condition,) = lab.store.require(place.key)["status"]["conditions"]
    assert condition["status"] == "False"


def test_a_deleted_node_has_an_event() -> None:
    lab = Lab()
    lab.add()
    lab.later(1)
    lab.writer.delete(ResourcePath(NODES, "", "n1"), DeleteOptions())
    lab.later(1)
    messages = [event["message"] for event in lab.store.objects(EVENTS.qualified)]
    assert "Node n1 event: Removing Node n1 from Controller" in messages


def test_a_node_that_was_deleted_and_created_between_two_rounds_is_another_one() -> None:
    lab = Lab()
    lab.add()
    lab.later(1)
    lab.writer.delete(ResourcePath(NODES, "", "n1"), DeleteOptions())
    created = lab.writer.create(ResourcePath(NODES, "", "n1"), node_object("n1"), "kubelet")
    lab.controller.node_changed(created)
    lab.later(1)
    assert lab.event_reasons() == ["RegisteredNode", "RemovingNode", "RegisteredNode"]
    uids = [event["involvedObject"]["uid"] for event in lab.store.objects(EVENTS.qualified)]
    assert uids[0] == uids[1] != uids[2] == created["metadata"]["uid"]
