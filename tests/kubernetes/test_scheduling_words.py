"""The same pods for the real scheduler and controllers and for ours: where they go, and what is said where they do not.

The nodes are objects without a kubelet, in both clusters, so that nothing has to start: a bound pod stays Pending.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.kubectl import Object
from tests.kubernetes.schedulers import (
    Ours,
    Real,
    Seen,
    condition,
    in_words_of,
    is_settled,
    node,
    nodes,
    ours,
    pod,
    seen,
)

TERM = {"topologyKey": "sched/zone", "labelSelector": {"matchLabels": {"app": "sched-a"}}}
EAST, WEST = {"sched/zone": "east"}, {"sched/zone": "west"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NODES = [node("sched-1", "east"), node("sched-2", "west")]
OTHER_NODE = node("sched-3", "south")


def port(number: int, address: str = "") -> list[Object]:
    return [{"containerPort": 80, "hostPort": number, **({"hostIP": address} if address else {})}]


def affinity(kind: str, **more: Any) -> Object:
    return {kind: {REQUIRED: [{**TERM, **more}]}}


def spread(**more: Any) -> list[Object]:
    return [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **TERM, **more}]


def volume(**source: Any) -> list[Object]:
    return [{"name": "data", **source}]


WAITING = [
    pod("gated", schedulingGates=[{"name": "example.com/a"}, {"name": "example.com/b"}]),
    pod("port", EAST, ports=port(8080)),
    pod("port-again", EAST, ports=port(8080, "10.0.0.1")),
    pod("port-elsewhere", WEST, ports=port(8080)),
    pod("near-nobody", affinity=affinity("podAffinity")),
    pod("first", EAST, app="sched-a"),
    pod("near", affinity=affinity("podAffinity")),
    pod("near-but-there", WEST, affinity=affinity("podAffinity")),
    pod("apart", EAST, affinity=affinity("podAntiAffinity")),
    pod("apart-there", WEST, affinity=affinity("podAntiAffinity", labelSelector={"matchLabels": {"app": "sched-b"}})),
    pod("kept-away", WEST, app="sched-b"),
    pod("no-topology", topologySpreadConstraints=spread(topologyKey="sched/rack")),
    pod("skewed", EAST, app="sched-a", topologySpreadConstraints=spread(nodeAffinityPolicy="Ignore")),
    pod("even", app="sched-a", topologySpreadConstraints=spread()),
    pod(
        "few-domains", EAST, app="sched-a", topologySpreadConstraints=spread(minDomains=3, nodeAffinityPolicy="Ignore")
    ),
    pod("no-volume", volumes=volume(persistentVolumeClaim={"claimName": "sched-none"})),
    pod("large", pod_resources={"limits": {"cpu": "1000"}}),
    pod("within", pod_resources={"requests": {"cpu": "3"}}, resources={"requests": {"cpu": "100m"}}),
    pod("critical", priorityClassName="system-node-critical", resources={"requests": {"cpu": "5"}}),
]
REFUSED = {
    "account": pod("account", serviceAccountName="sched-nobody"),
    "class": pod("class", priorityClassName="sched-high"),
    "priority": pod("priority", priority=7),
    "runtime": pod("runtime", runtimeClassName="sched-none"),
    "overhead": pod("overhead", overhead={"cpu": "1"}),
}


async def play_pods(lab: Ours | Real) -> tuple[dict[str, Seen], dict[str, str]]:
    for made in WAITING:
        assert lab.create(made) == ""
        name = made["metadata"]["name"]
        await lab.until(f"{name} is settled", lambda: is_settled(lab.get("Pod", name) or {}))  # noqa: B023  called at once
    refusals = {name: lab.create(made) for name, made in REFUSED.items()}
    names = [made["metadata"]["name"] for made in WAITING]
    found = {each["metadata"]["name"]: each for each in lab.objects("Pod")}
    return {name: seen(found[name]) for name in names}, refusals


def config_map(name: str, *owners: Object, namespace: str = "default", finalizers: tuple[str, ...] = ()) -> Object:
    references = [
        {"apiVersion": "v1", "kind": "ConfigMap", "blockOwnerDeletion": True}
        | {key: owner["metadata"][key] for key in ("name", "uid")}
        for owner in owners
    ]
    metadata = {"name": f"sched-{name}", "namespace": namespace, "ownerReferences": references}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**metadata, "finalizers": list(finalizers)}}


async def play_deletions(lab: Ours | Real) -> Seen:
    """What is left after each, and what is said."""

    def made(name: str, *owners: Object, **more: Any) -> Object:
        assert lab.create(config_map(name, *owners, **more)) == ""
        found = lab.get("ConfigMap", f"sched-{name}", more.get("namespace", "default"))
        assert found is not None
        return found

    def is_gone(name: str) -> Callable[[], bool]:
        return lambda: lab.get("ConfigMap", f"sched-{name}") is None

    result: Seen = {}
    made("child", made("parent"))
    lab.delete("ConfigMap", "sched-parent")
    await lab.until("the dependent is gone", is_gone("child"))

    made("blocking", made("awaiting"), finalizers=("example.com/wait",))
    lab.delete("ConfigMap", "sched-awaiting", "Foreground")
    await lab.until(
        "the dependent is being deleted",
        lambda: "deletionTimestamp" in (lab.get("ConfigMap", "sched-blocking") or {})["metadata"],
    )
    result["foreground"] = (lab.get("ConfigMap", "sched-awaiting") or {})["metadata"]["finalizers"]
    lab.change("ConfigMap", "sched-blocking", "default", metadata={"finalizers": []})
    await lab.until("the owner is gone", is_gone("awaiting"))

    made("orphan", made("leaving"))
    lab.delete("ConfigMap", "sched-leaving", "Orphan")
    await lab.until("the owner is gone", is_gone("leaving"))
    result["orphan"] = (lab.get("ConfigMap", "sched-orphan") or {})["metadata"].get("ownerReferences")
    lab.delete("ConfigMap", "sched-orphan")
    return result


async def play_a_namespace(lab: Ours | Real) -> Seen:
    name = "sched-space"
    lab.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    lab.create(config_map("kept", namespace=name, finalizers=("example.com/wait",)))
    elsewhere = lab.get("ConfigMap", "sched-kept", name)
    assert elsewhere is not None
    lab.create(config_map("lost", elsewhere))
    await lab.until("it is gone", lambda: lab.get("ConfigMap", "sched-lost") is None)
    lab.delete("Namespace", name)
    await lab.until("it says so", lambda: bool(((lab.get("Namespace", name) or {})["status"]).get("conditions")))
    namespace = lab.get("Namespace", name)
    assert namespace is not None
    said = {each["message"] for each in lab.objects("Event") if each["reason"] == "OwnerRefInvalidNamespace"}
    result = {
        "phase": namespace["status"]["phase"],
        "conditions": [condition(each) for each in namespace["status"]["conditions"]],
        "refusal": lab.create(pod("late") | {"metadata": {"name": "sched-late", "namespace": name}}),
        "events": {text.replace(elsewhere["metadata"]["uid"], "UID") for text in said},
    }
    lab.change("ConfigMap", "sched-kept", name, metadata={"finalizers": []})
    await lab.until("the namespace is gone", lambda: lab.get("Namespace", name) is None)
    return result


async def play_an_eviction(lab: Ours | Real) -> Seen:
    lab.create(pod("evicted", {"sched/zone": "south"}))
    await lab.until("it is bound", lambda: bool((lab.get("Pod", "sched-evicted") or {})["spec"].get("nodeName")))
    lab.change("Node", "sched-3", "", spec={"taints": [{"key": "sched/out", "effect": "NoExecute"}]})
    await lab.until("it is evicted", lambda: "deletionTimestamp" in (lab.get("Pod", "sched-evicted") or {})["metadata"])

    def events() -> list[tuple[str, ...]]:
        of_pod = [each for each in lab.objects("Event") if each["involvedObject"]["name"] == "sched-evicted"]
        return sorted((each["reason"], each["message"], each["type"]) for each in of_pod)

    await lab.until("it is said", lambda: len(events()) > 1)
    return {**seen(lab.get("Pod", "sched-evicted") or {}), "events": events()}


async def play_to_ours(play: Callable[[Ours], Awaitable[Any]]) -> Any:
    async with ours(*([OTHER_NODE] if play is play_an_eviction else NODES)) as lab:
        return await play(lab)


def test_pods_wait_and_are_refused_in_the_words_of_the_real_ones(cluster: Cluster) -> None:
    with nodes(cluster, *NODES):
        real, refusals = asyncio.run(play_pods(Real(cluster, *NODES)))
    ours, our_refusals = asyncio.run(play_to_ours(play_pods))
    ours, real = in_words_of(cluster.version, ours), json.loads(json.dumps(real))
    assert our_refusals == refusals
    assert {name: (ours[name], real[name]) for name in real if ours[name] != real[name]} == {}


def test_a_no_execute_taint_does_what_the_real_one_does(cluster: Cluster) -> None:
    with nodes(cluster, OTHER_NODE):
        real = asyncio.run(play_an_eviction(Real(cluster, OTHER_NODE)))
    assert asyncio.run(play_to_ours(play_an_eviction)) == real


@pytest.mark.parametrize("play", [play_deletions, play_a_namespace])
def test_controllers_do_what_the_real_ones_do(cluster: Cluster, play: Callable[..., Any]) -> None:
    assert asyncio.run(play_to_ours(play)) == asyncio.run(play(Real(cluster)))
