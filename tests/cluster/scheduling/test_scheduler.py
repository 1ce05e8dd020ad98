"""The scheduler over a store: pods are bound, or wait and are scheduled again after a change."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from tests.cluster.pods_and_nodes import node_object, pod_object

from plugwright.apiserver.kinds import EVENTS, NAMESPACES, NODES, PODS
from plugwright.apiserver.registry import DeleteOptions, ResourcePath, Writer
from plugwright.apiserver.store import Change, Object, ObjectKey, Store
from plugwright.cluster.events import ClusterClient
from plugwright.cluster.scheduling.scheduler import Scheduler
from plugwright.cluster.scheduling.scheduling_queue import SchedulingQueue
from plugwright.errors import ClusterError

LIMIT = 60.0


class FullDisk:
    """Refuses every write of a binding until there is room."""

    def __init__(self) -> None:
        self.refused = 0
        self.is_full = False

    def load(self) -> tuple[int, list[tuple[ObjectKey, Object]]]:
        return 1, []

    def save(self, change: Change) -> None:
        if self.is_full and change.key.kind == PODS.qualified:
            self.refused += 1
            self.is_full = self.refused < 3
            raise ClusterError("cannot write objects.db: database or disk is full")


class Lab:
    def __init__(self, disk: FullDisk | None = None) -> None:
        self.store = Store(disk)
        self.writer = Writer(self.store)
        self.writer.create(ResourcePath(NAMESPACES, "", "default"), {"metadata": {"name": "default"}}, "test")

    def node(self, name: str, allocatable: Mapping[str, str] | None = None, **more: object) -> None:
        self.writer.create(ResourcePath(NODES, "", name), node_object(name, allocatable, **more), "kubelet")

    def pod(self, name: str, limits: Mapping[str, str] | None = None, **spec: object) -> None:
        """`labels` are set apart; everything else goes into its spec."""
        labels = spec.pop("labels", {})
        pod = pod_object(name, limits, **spec)
        pod["metadata"]["labels"] = labels
        self.writer.create(ResourcePath(PODS, "default", name), pod, "test")

    def read(self, name: str) -> Object:
        return self.store.require(ObjectKey(PODS.qualified, "default", name))

    def condition(self, name: str) -> Object:
        conditions = self.read(name)["status"].get("conditions") or [{}]
        return dict(conditions[0])

    def events(self, name: str, reason: str) -> list[Object]:
        events = self.store.objects(EVENTS.qualified)
        return [event for event in events if (event["involvedObject"]["name"], event["reason"]) == (name, reason)]

    async def until(self, fact: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT):
            while not fact():
                await self.store.changes(self.store.revision)

    async def bound(self, name: str) -> str:
        await self.until(lambda: bool(self.read(name)["spec"].get("nodeName")))
        return str(self.read(name)["spec"]["nodeName"])

    async def unschedulable(self, name: str, words: str = "") -> str:
        await self.until(lambda: words in self.condition(name).get("message", "") != "")
        return str(self.condition(name)["message"])


@asynccontextmanager
async def scheduling(lab: Lab) -> AsyncIterator[Lab]:
    async with asyncio.TaskGroup() as tasks:
        queue = SchedulingQueue(first=0.01)
        running = tasks.create_task(Scheduler(ClusterClient(lab.store, lab.writer), queue).run())
        yield lab
        running.cancel()


async def test_a_pod_is_bound_with_a_scheduled_event() -> None:
    async with scheduling(Lab()) as lab:
        lab.node("n1")
        lab.pod("p", {"mock/gpu": "2"})
        assert await lab.bound("p") == "n1"
        await lab.until(lambda: bool(lab.events("p", "Scheduled")))
        (event,) = lab.events("p", "Scheduled")
        assert event["message"] == "Successfully assigned default/p to n1"
        assert (event["type"], event["reportingComponent"], event["action"]) == (
            "Normal",
            "default-scheduler",
            "Binding",
        )


async def test_an_unschedulable_pod_has_a_condition_and_one_event() -> None:
    async with scheduling(Lab()) as lab:
        lab.node("n1")
        lab.pod("p", {"mock/gpu": "3"})
        message = await lab.unschedulable("p")
        assert message.startswith("0/1 nodes are available: 1 Insufficient mock/gpu.")
        condition = lab.condition("p")
        assert (condition["type"], condition["status"], condition["reason"]) == (
            "PodScheduled",
            "False",
            "Unschedulable",
        )
        assert [event["message"] for event in lab.events("p", "FailedScheduling")] == [message]


async def test_a_waiting_pod_is_bound_when_a_node_offers_more() -> None:
    async with scheduling(Lab()) as lab:
        lab.node("n1", {"cpu": "1", "memory": "1Gi", "pods": "9"})
        lab.pod("p", {"mock/gpu": "1"})
        await lab.unschedulable("p")
        offer = node_object("n1")["status"]
        lab.writer.change(ResourcePath(NODES, "", "n1", "status"), lambda node: {**node, "status": offer}, "kubelet")
        assert await lab.bound("p") == "n1"
        assert lab.condition("p")["status"] == "True"


async def test_a_waiting_pod_is_bound_when_another_is_deleted() -> None:
    async with scheduling(Lab()) as lab:
        lab.node("n1")
        lab.pod("first", {"mock/gpu": "2"})
        await lab.bound("first")
        lab.pod("second", {"mock/gpu": "1"})
        await lab.unschedulable("second")
        lab.writer.delete(ResourcePath(PODS, "default", "first"), DeleteOptions(grace=0))
        assert await lab.bound("second") == "n1"


async def test_a_finished_pod_holds_nothing() -> None:
    async with scheduling(Lab()) as lab:
        lab.node("n1")
        lab.pod("first", {"mock/gpu": "2"})
        await lab.bound("first")
        lab.pod("second", {"mock/gpu": "2"})
        await lab.unschedulable("second")
        place = ResourcePath(PODS, "default", "first", "status")
        lab.writer.change(place, lambda pod: {**pod, "status": {**pod["status"], "phase": "Succeeded"}}, "kubelet")
        assert await lab.bound("second") == "n1"


async def test_a_repeated_event_is_counted() -> None:
    async with scheduling(Lab()) as lab:
        lab.pod("p", {"mock/gpu": "3"})
        assert await lab.unschedulable("p") == "no nodes available to schedule pods"
        lab.node("n1")
        one = await lab.unschedulable("p", "0/1 nodes")
        lab.node("n2")
        await lab.unschedulable("p", "0/2 nodes")
        lab.writer.delete(ResourcePath(NODES, "", "n2"), DeleteOptions())
        await lab.unschedulable("p", "0/1 nodes")
        counts = {
            event["message"]: (event.get("series") or {}).get("count", 1)
            for event in lab.events("p", "FailedScheduling")
        }
        assert sorted(counts.values()) == [1, 1, 2]
        assert counts[one] == 2


async def test_an_unschedulable_pod_shows_a_new_reason() -> None:
    async with scheduling(Lab()) as lab:
        lab.node("n1")
        lab.pod("p", {"mock/gpu": "3"})
        await lab.unschedulable("p", "1 Insufficient mock/gpu")
        cordoned = {"unschedulable": True}
        lab.writer.change(
            ResourcePath(NODES, "", "n1"), lambda node: {**node, "spec": {**node["spec"], **cordoned}}, "kubectl"
        )
        await lab.unschedulable("p", "1 node(s) were unschedulable")


async def test_pods_bound_before_the_scheduler_started_are_counted() -> None:
    lab = Lab()
    lab.node("n1")
    lab.pod("first", {"mock/gpu": "2"})
    lab.writer.bind(ResourcePath(PODS, "default", "first"), "n1")
    lab.pod("second", {"mock/gpu": "1"})
    async with scheduling(lab):
        assert "1 Insufficient mock/gpu" in await lab.unschedulable("second")


async def test_a_pod_of_another_scheduler_is_left_alone() -> None:
    async with scheduling(Lab()) as lab:
        lab.node("n1")
        lab.pod("foreign", schedulerName="mine")
        lab.pod("ours")
        await lab.bound("ours")
        assert "nodeName" not in lab.read("foreign")["spec"]


async def test_a_pod_bound_by_another_scheduler_is_counted() -> None:
    async with scheduling(Lab()) as lab:
        lab.node("n1")
        lab.pod("first", {"mock/gpu": "2"}, schedulerName="mine")
        lab.writer.bind(ResourcePath(PODS, "default", "first"), "n1")
        lab.pod("second", {"mock/gpu": "1"})
        assert "1 Insufficient mock/gpu" in await lab.unschedulable("second")


async def test_many_pods_fill_the_nodes_to_the_last_device_and_no_further() -> None:
    async with scheduling(Lab()) as lab:
        for number in range(5):
            lab.node(f"n{number}")
        for number in range(12):
            lab.pod(f"p{number}", {"mock/gpu": "1"})
        pods = [f"p{number}" for number in range(12)]
        await lab.until(lambda: all(lab.condition(name) for name in pods))
        nodes = [node for name in pods if (node := lab.read(name)["spec"].get("nodeName"))]
        assert sorted(nodes) == sorted(f"n{number}" for number in range(5) for _ in range(2))


async def test_a_pod_with_scheduling_gates_is_scheduled_when_they_are_removed() -> None:
    async with scheduling(Lab()) as lab:
        lab.node("n1")
        lab.pod("p", schedulingGates=[{"name": "example.com/quota"}])
        lab.pod("other")
        await lab.bound("other")
        condition = lab.condition("p")
        assert (condition["status"], condition["reason"]) == ("False", "SchedulingGated")
        assert condition["message"] == "Scheduling is blocked due to non-empty scheduling gates"
        path = ResourcePath(PODS, "default", "p")
        lab.writer.change(path, lambda pod: {**pod, "spec": {**pod["spec"], "schedulingGates": []}}, "test")
        assert await lab.bound("p") == "n1"


async def test_a_pod_whose_binding_could_not_be_written_is_tried_again() -> None:
    disk = FullDisk()
    async with scheduling(Lab(disk)) as lab:
        lab.pod("p")
        disk.is_full = True
        lab.node("n1")
        assert await lab.bound("p") == "n1"
        assert disk.refused == 3


async def test_pods_of_a_higher_priority_are_scheduled_first() -> None:
    lab = Lab()
    lab.pod("first", {"mock/gpu": "2"})
    lab.pod("urgent", {"mock/gpu": "2"}, priorityClassName="system-node-critical")
    lab.node("n1")
    async with scheduling(lab):
        assert await lab.bound("urgent") == "n1"
        assert "Insufficient mock/gpu" in await lab.unschedulable("first")


async def test_a_pod_that_would_have_to_preempt_others_says_that_this_is_not_emulated() -> None:
    async with scheduling(Lab()) as lab:
        lab.node("n1")
        lab.pod("first", {"mock/gpu": "2"})
        await lab.bound("first")
        lab.pod("urgent", {"mock/gpu": "2"}, priorityClassName="system-node-critical")
        message = await lab.unschedulable("urgent")
        assert message.startswith("plugwright does not emulate preemption; use `plugwright join`")
        lab.pod("too-large", {"mock/gpu": "3"}, priorityClassName="system-node-critical")
        assert "Preemption is not helpful" in await lab.unschedulable("too-large")


async def test_a_pod_that_asks_for_what_is_not_emulated_stays_pending() -> None:
    async with scheduling(Lab()) as lab:
        lab.node("n1")
        volumes = [{"name": "a", "nfs": {"server": "a", "path": "/b"}}, {"name": "b", "csi": {"driver": "d"}}]
        lab.pod("p", volumes=volumes)
        advice = "use `plugwright join` with a real API server"
        message = f"plugwright does not emulate volumes.csi, volumes.nfs; {advice}"
        assert await lab.unschedulable("p") == message
        assert [event["message"] for event in lab.events("p", "FailedScheduling")] == [message]


async def test_a_pod_with_a_volume_claim_waits_in_the_scheduler_s_words() -> None:
    async with scheduling(Lab()) as lab:
        lab.node("n1")
        lab.pod("p", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
        assert (await lab.unschedulable("p")).startswith(
            '0/1 nodes are available: persistentvolumeclaim "data" not found. '
        )


async def test_a_pod_that_others_keep_away_is_scheduled_when_they_are_gone() -> None:
    apart = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}}
    rules = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    async with scheduling(Lab()) as lab:
        lab.node("n1", labels={"zone": "east"})
        lab.pod("first", affinity=rules)
        await lab.bound("first")
        lab.pod("second", labels={"app": "a"})
        assert "1 node(s) didn't satisfy existing pods anti-affinity rules" in await lab.unschedulable("second")
        lab.writer.delete(ResourcePath(PODS, "default", "first"), DeleteOptions(grace=0))
        assert await lab.bound("second") == "n1"


async def test_a_pod_that_wants_to_be_near_another_waits_for_it() -> None:
    near = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}}
    rules = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}}
    async with scheduling(Lab()) as lab:
        lab.node("n1", labels={"zone": "east"})
        lab.node("n2", labels={"zone": "west"})
        lab.pod("second", affinity=rules)
        assert "2 node(s) didn't match pod affinity rules" in await lab.unschedulable("second")
        lab.pod("first", labels={"app": "a"}, nodeSelector={"zone": "west"})
        assert await lab.bound("second") == "n2"
