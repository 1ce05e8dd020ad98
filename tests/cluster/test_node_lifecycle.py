"""Nodes that fall silent, and what is cleared away, in a time that the test makes pass."""

from datetime import UTC, datetime, timedelta

import pytest
from tests.cluster.pods_and_nodes import node_object, pod_object

from plugwright.cluster import clock
from plugwright.cluster.api.kinds import EVENTS, LEASES, NAMESPACES, NODES, PODS
from plugwright.cluster.api.registry import ResourcePath, Writer
from plugwright.cluster.events import Access, Happening, Recorder, Teller
from plugwright.cluster.node_lifecycle import Monitor, MonitorSettings
from plugwright.cluster.store import Object, Store

GRACE = 50.0
UNREACHABLE = "node.kubernetes.io/unreachable"


class Lab:
    def __init__(self) -> None:
        self.time = datetime(2026, 11, 15, 12, tzinfo=UTC)
        self.store = Store()
        self.writer = Writer(self.store, self.now)
        self.access = Access(self.store, self.writer, self.now)
        self.monitor = Monitor(self.access, MonitorSettings(GRACE, most_events=3))
        for name in ("default", "kube-node-lease"):
            self.writer.create(ResourcePath(NAMESPACES, "", name), {"metadata": {"name": name}}, "test")

    def now(self) -> datetime:
        return self.time

    def later(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)
        self.monitor.look()

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
        return next(dict(each) for each in self.node(name)["status"]["conditions"] if each["type"] == "Ready")

    def taints(self, name: str) -> list[tuple[str, str]]:
        return [(each["key"], each["effect"]) for each in self.node(name)["spec"].get("taints") or ()]

    def happenings(self) -> list[str]:
        return [each["reason"] for each in self.store.objects(EVENTS.qualified)]


def test_a_node_that_is_heard_of_stays_ready() -> None:
    lab = Lab()
    lab.add()
    for _ in range(5):
        lab.later(GRACE - 1)
        lab.renew()
    assert (lab.ready()["status"], lab.node()["spec"]) == ("True", {})


def test_a_silent_node_is_given_up_once() -> None:
    lab = Lab()
    lab.add()
    lab.later(GRACE + 1)
    first = lab.node()
    assert lab.ready()["status"] == "Unknown"
    lab.later(10)
    assert lab.node() == first
    assert lab.happenings().count("NodeNotReady") == 1


def test_a_node_that_never_had_a_kubelet_is_said_to_have_none() -> None:
    lab = Lab()
    lab.writer.create(ResourcePath(NODES, "", "n1"), {"metadata": {"name": "n1"}, "spec": {}}, "kubectl")
    lab.later(GRACE + 1)
    ready = lab.ready()
    assert (ready["reason"], ready["message"]) == ("NodeStatusNeverUpdated", "Kubelet never posted node status.")


def test_while_no_node_is_heard_of_nobody_is_evicted() -> None:
    """As a real cluster of one node was seen to do."""
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


def test_pods_of_a_silent_node_are_not_ready_any_more() -> None:
    lab = Lab()
    lab.add()
    lab.add("other")
    place = ResourcePath(PODS, "default", "p")
    lab.writer.create(place, pod_object("p"), "test")
    lab.writer.bind(place, "n1")
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    lab.writer.change(ResourcePath(PODS, "default", "p", "status"), lambda pod: {**pod, "status": ready}, "kubelet")
    lab.later(1)
    lab.later(GRACE)
    lab.renew("other")
    lab.later(1)
    (condition,) = lab.store.require(place.key)["status"]["conditions"]
    assert condition["status"] == "False"
    assert "deletionTimestamp" not in lab.store.require(place.key)["metadata"]
    lab.time += timedelta(seconds=298)
    lab.renew("other")
    lab.later(1)
    assert "deletionTimestamp" not in lab.store.require(place.key)["metadata"]
    lab.later(1)
    assert "deletionTimestamp" in lab.store.require(place.key)["metadata"]


@pytest.mark.parametrize(("age", "left"), [(3599, 2), (3601, 1)])
def test_events_are_kept_for_an_hour(age: float, left: int) -> None:
    lab = Lab()
    lab.add()
    recorder = Recorder(lab.writer, Teller("kubelet", "n1"), lab.now)
    recorder.tell(lab.node(), Happening("First", "first"))
    lab.time += timedelta(seconds=age)
    recorder.tell(lab.node(), Happening("Second", "second"))
    lab.monitor.tidy()
    assert len(lab.store.objects(EVENTS.qualified)) == left


def test_of_too_many_events_the_newest_are_kept() -> None:
    lab = Lab()
    lab.add()
    recorder = Recorder(lab.writer, Teller("default-scheduler", series=True), lab.now)
    for number in range(5):
        lab.time += timedelta(seconds=1)
        recorder.tell(lab.node(), Happening(f"Number{number}", "text"))
    lab.monitor.tidy()
    assert sorted(lab.happenings()) == ["Number2", "Number3", "Number4"]


def test_an_event_that_was_cleared_away_may_happen_again() -> None:
    lab = Lab()
    lab.add()
    recorder = Recorder(lab.writer, Teller("kubelet", "n1"), lab.now)
    recorder.tell(lab.node(), Happening("First", "first"))
    lab.time += timedelta(hours=2)
    lab.monitor.tidy()
    recorder.tell(lab.node(), Happening("First", "first"))
    assert lab.happenings() == ["First"]
