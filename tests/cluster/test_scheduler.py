"""The scheduler over a store: pods are bound, wait, and are tried again when something changed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from tests.cluster.pods_and_nodes import node_object, pod_object

from plugwright.cluster.api.kinds import EVENTS, NAMESPACES, NODES, PODS
from plugwright.cluster.api.registry import DeleteOptions, ResourcePath, Writer
from plugwright.cluster.scheduler import Scheduler
from plugwright.cluster.store import Object, ObjectKey, Store

LIMIT = 10.0


class Lab:
    def __init__(self) -> None:
        self.store = Store()
        self.writer = Writer(self.store)
        self.writer.create(ResourcePath(NAMESPACES, "", "default"), {"metadata": {"name": "default"}}, "test")

    def node(self, name: str, allocatable: Mapping[str, str] | None = None, **more: object) -> None:
        self.writer.create(ResourcePath(NODES, "", name), node_object(name, allocatable, **more), "kubelet")

    def pod(self, name: str, asked: Mapping[str, str] | None = None, **spec: object) -> None:
        self.writer.create(ResourcePath(PODS, "default", name), pod_object(name, asked, **spec), "test")

    def read(self, name: str) -> Object:
        return self.store.require(ObjectKey(PODS.qualified, "default", name))

    def condition(self, name: str) -> Object:
        conditions = self.read(name)["status"].get("conditions") or [{}]
        return dict(conditions[0])

    def events(self, name: str, reason: str) -> list[Object]:
        found = self.store.objects(EVENTS.qualified)
        return [each for each in found if (each["involvedObject"]["name"], each["reason"]) == (name, reason)]

    async def until(self, fact: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT):
            while not fact():
                await self.store.changes(self.store.revision)

    async def bound(self, name: str) -> str:
        await self.until(lambda: bool(self.read(name)["spec"].get("nodeName")))
        return str(self.read(name)["spec"]["nodeName"])

    async def refused(self, name: str, words: str = "") -> str:
        await self.until(lambda: words in self.condition(name).get("message", "") != "")
        return str(self.condition(name)["message"])


@asynccontextmanager
async def scheduling(lab: Lab) -> AsyncIterator[Lab]:
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(Scheduler(lab.store, lab.writer).run())
        yield lab
        running.cancel()


async def test_a_pod_is_bound_and_it_is_told() -> None:
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


async def test_a_pod_without_room_says_so_in_its_condition_and_in_one_event() -> None:
    async with scheduling(Lab()) as lab:
        lab.node("n1")
        lab.pod("p", {"mock/gpu": "3"})
        message = await lab.refused("p")
        assert message.startswith("0/1 nodes are available: 1 Insufficient mock/gpu.")
        condition = lab.condition("p")
        assert (condition["type"], condition["status"], condition["reason"]) == (
            "PodScheduled",
            "False",
            "Unschedulable",
        )
        assert [each["message"] for each in lab.events("p", "FailedScheduling")] == [message]


async def test_a_waiting_pod_is_bound_when_a_node_offers_more() -> None:
    async with scheduling(Lab()) as lab:
        lab.node("n1", {"cpu": "1", "memory": "1Gi", "pods": "9"})
        lab.pod("p", {"mock/gpu": "1"})
        await lab.refused("p")
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
        await lab.refused("second")
        lab.writer.delete(ResourcePath(PODS, "default", "first"), DeleteOptions(grace=0))
        assert await lab.bound("second") == "n1"


async def test_a_pod_that_is_over_holds_nothing() -> None:
    async with scheduling(Lab()) as lab:
        lab.node("n1")
        lab.pod("first", {"mock/gpu": "2"})
        await lab.bound("first")
        lab.pod("second", {"mock/gpu": "2"})
        await lab.refused("second")
        place = ResourcePath(PODS, "default", "first", "status")
        lab.writer.change(place, lambda pod: {**pod, "status": {**pod["status"], "phase": "Succeeded"}}, "kubelet")
        assert await lab.bound("second") == "n1"


async def test_what_is_said_again_is_counted() -> None:
    async with scheduling(Lab()) as lab:
        lab.pod("p", {"mock/gpu": "3"})
        assert await lab.refused("p") == "no nodes available to schedule pods"
        lab.node("n1")
        one = await lab.refused("p", "0/1 nodes")
        lab.node("n2")
        await lab.refused("p", "0/2 nodes")
        lab.writer.delete(ResourcePath(NODES, "", "n2"), DeleteOptions())
        await lab.refused("p", "0/1 nodes")
        counts = {
            each["message"]: (each.get("series") or {}).get("count", 1) for each in lab.events("p", "FailedScheduling")
        }
        assert sorted(counts.values()) == [1, 1, 2]
        assert counts[one] == 2


async def test_a_pod_that_waits_for_another_reason_now_says_so() -> None:
    async with scheduling(Lab()) as lab:
        lab.node("n1")
        lab.pod("p", {"mock/gpu": "3"})
        await lab.refused("p", "1 Insufficient mock/gpu")
        cordoned = {"unschedulable": True}
        lab.writer.change(
            ResourcePath(NODES, "", "n1"), lambda node: {**node, "spec": {**node["spec"], **cordoned}}, "kubectl"
        )
        await lab.refused("p", "1 node(s) were unschedulable")


async def test_pods_that_were_there_before_the_scheduler_count() -> None:
    lab = Lab()
    lab.node("n1")
    lab.pod("first", {"mock/gpu": "2"})
    lab.writer.bind(ResourcePath(PODS, "default", "first"), "n1")
    lab.pod("second", {"mock/gpu": "1"})
    async with scheduling(lab):
        assert "1 Insufficient mock/gpu" in await lab.refused("second")


async def test_a_pod_of_another_scheduler_is_left_alone() -> None:
    async with scheduling(Lab()) as lab:
        lab.node("n1")
        lab.pod("foreign", schedulerName="mine")
        lab.pod("ours")
        await lab.bound("ours")
        assert "nodeName" not in lab.read("foreign")["spec"]


async def test_a_pod_bound_by_somebody_else_is_counted_where_it_is() -> None:
    async with scheduling(Lab()) as lab:
        lab.node("n1")
        lab.pod("first", {"mock/gpu": "2"}, schedulerName="mine")
        lab.writer.bind(ResourcePath(PODS, "default", "first"), "n1")
        lab.pod("second", {"mock/gpu": "1"})
        assert "1 Insufficient mock/gpu" in await lab.refused("second")


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
