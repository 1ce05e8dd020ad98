"""The same pods on the real cluster and on the embedded one: status and events say the same, word for word.

Ages, ids and addresses aside, and what a real runtime adds: its images, volumes and users.
"""

import asyncio
import json
import re
from collections.abc import Iterable
from typing import Any

import pytest
from tests.cluster.embedding import Lab, embedded
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.components import NODE
from tests.kubernetes.images import BUSYBOX
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pods
from tests.kubernetes.serving import Plugins
from tests.kubernetes.waiting import until

from plugwright.apiserver import KUBERNETES_VERSION
from plugwright.apiserver.kinds import EVENTS, PODS
from plugwright.apiserver.registry import ResourcePath
from plugwright.apiserver.store import Object

Seen = dict[str, Any]
STAY = ["sh", "-c", "trap exit TERM; sleep 1000000 & wait"]
_FOREIGN = ("MissingClusterDNS",)  # of a cluster without names


def container(name: str = "main", command: Iterable[str] = STAY, **limits: str) -> Object:
    resources = {"limits": {key.replace("_", "/"): count for key, count in limits.items()}}
    return {"name": name, "image": BUSYBOX, "imagePullPolicy": "Never", "command": [*command], "resources": resources}


def pod(name: str, *containers: Object, **spec: object) -> Object:
    rest = {"containers": list(containers), "terminationGracePeriodSeconds": 2, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": rest}


INITS = [container("first", ["true"]), {**container("beside"), "restartPolicy": "Always"}]
NEVER = {"restartPolicy": "Never"}
PLAYED = {  # with the phase that each comes to
    "two": (pod("two", container(mock_gpu="2")), "Running"),
    "init": (pod("init", container(mock_gpu="1"), initContainers=INITS), "Running"),
    "done": (pod("done", container(command=["true"]), **NEVER), "Succeeded"),
    "bad": (pod("bad", container(command=["sh", "-c", "exit 3"]), **NEVER), "Failed"),
    "many": (pod("many", container(mock_gpu="20")), "Pending"),
    "full": (pod("full", container(mock_gpu="9")), "Pending"),
    "crowded": (pod("crowded", container(mock_gpu="11"), nodeName="NODE"), "Failed"),
    "huge": (pod("huge", container(cpu="1000"), nodeName="NODE"), "Failed"),
    "unknown": (pod("unknown", container(nobody_has="1"), nodeName="NODE"), "Running"),
    "misplaced": (pod("misplaced", container(), nodeName="NODE", nodeSelector={"a": "b"}), "Failed"),
    "elsewhere": (pod("elsewhere", container(), nodeSelector={"a": "b"}), "Pending"),
}


def on(played: Object, node: str) -> Object:
    """The pod, with the node's name where it names one."""
    return dict(json.loads(json.dumps(played).replace("NODE", node)))


def seen(found: Object, events: Iterable[Object]) -> Seen:
    status = found["status"]
    return {
        "phase": status["phase"],
        "why": (status.get("reason"), re.sub(r"capacity: \d+$", "capacity: N", status.get("message", ""))),
        "conditions": [_condition(each) for each in status.get("conditions") or ()],
        "containers": [_container(each) for each in status.get("containerStatuses") or ()],
        "inits": [_container(each) for each in status.get("initContainerStatuses") or ()],
        "events": sorted(
            {_event(each) for each in events if each["involvedObject"].get("uid") == found["metadata"]["uid"]}
        ),
    }


def _condition(condition: Object) -> tuple[str, ...]:
    return tuple(str(condition.get(key)) for key in ("type", "status", "reason", "message", "observedGeneration"))


def _container(status: Object) -> Seen:
    ((kind, state),) = status["state"].items()
    kept = ("name", "image", "ready", "restartCount", "started", "resources", "allocatedResources", "lastState")
    devices = [
        (each["name"], sorted(device["health"] for device in each["resources"]))
        for each in status.get("allocatedResourcesStatus") or ()
    ]
    state = {key: state[key] for key in ("exitCode", "reason", "message") if key in state}
    return {**{key: status.get(key) for key in kept}, "state": (kind, state), "devices": devices}


def _event(event: Object) -> tuple[str, ...]:
    place = event["involvedObject"].get("fieldPath", "")
    message = re.sub(r"capacity: \d+$", "capacity: N", event["message"].replace("node-1", "node"))
    return event["reason"], event["type"], message, event["reportingComponent"], place


def _settled(found: Seen, phase: str) -> bool:
    if found["phase"] != phase:
        return False
    starts = sum(event[0] == "Started" for event in found["events"])
    told = found["conditions"] or (found["phase"] == "Failed" and found["events"])
    return bool(told) and starts == len(found["containers"]) + len(found["inits"])


def play_to_the_real_one(cluster: Cluster) -> dict[str, Seen]:
    def look() -> dict[str, Seen]:
        events = [each for each in cluster.kubectl.every("events") if each["reason"] not in _FOREIGN]
        return {each["metadata"]["name"]: seen(each, events) for each in cluster.kubectl.every("pods")}

    for played, phase in PLAYED.values():
        cluster.kubectl.create(on(played, NODE))
        name = played["metadata"]["name"]
        until(f"{name} is {phase}", lambda: _settled(look()[name], phase), last=lambda: look()[name])  # noqa: B023
    until("those that ended have given up their sandbox", lambda: _are_down(look()["done"], look()["bad"]))
    return look()


def _are_down(*found: Seen) -> bool:
    return all(each["conditions"][0][:2] == ("PodReadyToStartContainers", "False") for each in found)


async def play_to_ours() -> dict[str, Seen]:
    def look(lab: Lab) -> dict[str, Seen]:
        events = lab.store.objects(EVENTS.qualified)
        return {each["metadata"]["name"]: seen(each, events) for each in lab.store.objects(PODS.qualified)}

    async with embedded(processes=True) as lab:
        await lab.offered()
        for played, phase in PLAYED.values():
            name = played["metadata"]["name"]
            lab.writer.create(ResourcePath(PODS, "default", name), on(played, "node-1"), "test")
            await lab.cluster.until(lambda: _settled(look(lab)[name], phase))  # noqa: B023
        return look(lab)


def test_the_embedded_cluster_says_what_the_real_one_says(
    cluster: Cluster, plugins: Plugins, node: Node, pods: Pods
) -> None:
    if cluster.version != KUBERNETES_VERSION:
        pytest.skip(f"the embedded cluster answers as {KUBERNETES_VERSION} does")
    cluster.kubectl.end_clean_ups()
    plugins.run({"mock/gpu": {"count": 10}})
    node.shows("mock/gpu", capacity=10, allocatable=10)
    real, ours = play_to_the_real_one(cluster), asyncio.run(play_to_ours())
    assert ours == real
