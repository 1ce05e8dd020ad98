"""Malformed objects: a stored one harms no other object."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cluster.embedding import embedded
from tests.cluster.pods_and_nodes import node_object, pod_object

from plugwright.apiserver.kinds import NAMESPACES, NODES, PODS
from plugwright.apiserver.registry import ResourcePath, Writer
from plugwright.apiserver.store import Object, ObjectKey, Store
from plugwright.cluster.events import ClusterClient
from plugwright.cluster.scheduling.scheduler import Scheduler

LIMIT = 60.0
json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.sampled_from(["", "x", "-1", "1e99999", "In", "Gt", "NoExecute"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["key", "effect", "operator", "values", "matchExpressions", "requests", "name"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
halves = st.lists(
    st.fixed_dictionaries({}, optional={"key": st.just("k"), "effect": st.just("NoSchedule"), "operator": json}),
    max_size=2,
)  # of taints, tolerations and expressions
expressions = st.fixed_dictionaries({"matchExpressions": halves, "matchFields": json | halves})
affinity = st.fixed_dictionaries(
    {
        "nodeAffinity": st.fixed_dictionaries(
            {
                "requiredDuringSchedulingIgnoredDuringExecution": json
                | st.fixed_dictionaries({"nodeSelectorTerms": json | st.lists(expressions, max_size=2)}),
                "preferredDuringSchedulingIgnoredDuringExecution": json,
            }
        )
    }
)
pod_specs = st.fixed_dictionaries(
    {},
    optional={
        "affinity": json | affinity,
        "containers": json,
        "initContainers": json,
        "nodeSelector": json,
        "overhead": json,
        "schedulerName": json,
        "tolerations": json | halves,
    },
)
node_parts = st.fixed_dictionaries(
    {"spec": st.fixed_dictionaries({}, optional={"taints": json | halves, "unschedulable": json}) | json},
    optional={"status": st.fixed_dictionaries({}, optional={"allocatable": json, "conditions": json}) | json},
)


@given(pods=st.lists(pod_specs, max_size=3), nodes=st.lists(node_parts, max_size=3))
@settings(deadline=None, max_examples=150)
def test_the_scheduler_goes_on_whatever_objects_are_stored(pods: list[Any], nodes: list[Any]) -> None:
    store = Store()
    for number, parts in enumerate(nodes):
        name = f"a-bad-{number}"
        made = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name, "uid": name}, **parts}
        store.create(ObjectKey(NODES.qualified, "", name), made)
    for number, spec in enumerate(pods):
        name = f"a-bad-{number}"
        metadata = {"name": name, "namespace": "default", "uid": name, "creationTimestamp": ""}
        made = {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec, "status": {}}
        store.create(ObjectKey(PODS.qualified, "default", name), made)
    assert asyncio.run(_scheduled(store)) == "z-good"


async def _scheduled(store: Store) -> str:
    """The node of a pod that only one node can take."""
    writer = Writer(store)
    writer.create(ResourcePath(NAMESPACES, "", "default"), {"metadata": {"name": "default"}}, "test")
    good = node_object("z-good", {"cpu": "1", "memory": "1Gi", "pods": "9", "good/thing": "1"})
    writer.create(ResourcePath(NODES, "", "z-good"), good, "test")
    writer.create(ResourcePath(PODS, "default", "p"), pod_object("p", {"good/thing": "1"}), "test")
    key = ObjectKey(PODS.qualified, "default", "p")
    async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(Scheduler(ClusterClient(store, writer)).run())
        while not (node := store.require(key)["spec"].get("nodeName")):
            await store.changes(store.revision)
        running.cancel()
    return str(node)


async def test_a_node_rejects_a_malformed_pod_and_goes_on() -> None:
    bad: list[Object] = [
        {"containers": [{"name": "main", "resources": {"limits": {"mock/gpu": "many"}}}]},
        {"containers": [{"name": "main", "resources": {"limits": 3}}]},
        {"containers": []},
        {"containers": "main"},
    ]
    async with embedded() as lab:
        await lab.offered()
        for number, spec in enumerate(bad):
            name = f"bad-{number}"
            metadata = {"name": name, "namespace": "default", "uid": name, "creationTimestamp": "2026-11-15T12:00:00Z"}
            made = {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": {**spec, "nodeName": "node-1"}}
            lab.store.create(ObjectKey(PODS.qualified, "default", name), made)
        for number in range(len(bad)):
            await lab.phase(f"bad-{number}", "Failed")
        lab.create("good", {"mock/gpu": "1"})
        await lab.phase("good")
