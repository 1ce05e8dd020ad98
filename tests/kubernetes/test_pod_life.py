"""The same pods on a real node and on an emulated one that runs them as processes: how they live and end is the same.

Compared are phases, states, restart counts, conditions, events and logs; times, ids and addresses are not.
"""

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.cluster.embedding import Lab, embedded
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.components import NODE
from tests.kubernetes.pods import Pods
from tests.kubernetes.test_embedded_words import container, pod
from tests.kubernetes.waiting import until

from plugwright.apiserver.kinds import CONFIG_MAPS, EVENTS, PODS
from plugwright.apiserver.registry import ResourcePath
from plugwright.apiserver.store import Object

Seen = dict[str, Any]
NEVER, ON_FAILURE = {"restartPolicy": "Never"}, {"restartPolicy": "OnFailure"}
SETTINGS = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "life-settings"}, "data": {"model": "x1"}}
ENV: list[Object] = [
    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    {"name": "SPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
    {"name": "ACCOUNT", "valueFrom": {"fieldRef": {"fieldPath": "spec.serviceAccountName"}}},
    {"name": "MODEL", "valueFrom": {"configMapKeyRef": {"name": "life-settings", "key": "model"}}},
    {"name": "NONE", "valueFrom": {"configMapKeyRef": {"name": "life-none", "key": "x", "optional": True}}},
    {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1m"}}},
    {"name": "BOTH", "value": "$(NODE)-$(MODEL) $$(NODE) $(LATER) $(A_model)"},
    {"name": "LATER", "value": "later"},
]
ENV_SCRIPT = "echo $NODE $NAME $SPACE $ACCOUNT $MODEL ${NONE-unset} $CPUS; echo $BOTH; echo $0; cat /settings/model"


def script(text: str, name: str = "main", **more: object) -> Object:
    return {**container(name, ["sh", "-c", text]), **more}


def with_env() -> Object:
    main = script(ENV_SCRIPT, env=ENV, envFrom=[{"prefix": "A_", "configMapRef": {"name": "life-settings"}}])
    resources = {"requests": {"cpu": "50m"}}
    return {**main, "args": ["$(MODEL)"], "resources": resources, "volumeMounts": [mount("settings", "/settings")]}


def mount(name: str, path: str) -> Object:
    return {"name": name, "mountPath": path}


def config_volume(name: str) -> Object:
    return {"volumes": [{"name": "settings", "configMap": {"name": name}}]}


MOUNTING = {**container(), "volumeMounts": [mount("settings", "/settings")]}
NO_KEY = {"name": "X", "valueFrom": {"configMapKeyRef": {"name": "life-settings", "key": "no"}}}
TWICE = "test -e /shared/x && exit 0; touch /shared/x; exit 1"
SHARED = {"volumes": [{"name": "shared", "emptyDir": {}}]}
BESIDE = {**container("beside"), "restartPolicy": "Always"}
PLAYED = {  # with the reason or phase that each comes to
    "life-crash": (pod("life-crash", script("exit 3")), "CrashLoopBackOff"),
    "life-twice": (
        pod("life-twice", script(TWICE, volumeMounts=[mount("shared", "/shared")]), **SHARED, **ON_FAILURE),
        "Succeeded",
    ),
    "life-init": (pod("life-init", container(), initContainers=[script("exit 1", "first")]), "CrashLoopBackOff"),
    "life-init-never": (
        pod("life-init-never", container(), initContainers=[script("exit 7", "first")], **NEVER),
        "Failed",
    ),
    "life-sidecar": (pod("life-sidecar", script("exit 0"), initContainers=[BESIDE], **NEVER), "Succeeded"),
    "life-env": (pod("life-env", with_env(), **config_volume("life-settings"), **NEVER), "Succeeded"),
    "life-no-config": (
        pod("life-no-config", {**container(), "envFrom": [{"configMapRef": {"name": "life-none"}}]}),
        "CreateContainerConfigError",
    ),
    "life-no-key": (pod("life-no-key", {**container(), "env": [NO_KEY]}), "CreateContainerConfigError"),
    "life-no-volume": (pod("life-no-volume", MOUNTING, **config_volume("life-none")), "FailedMount"),
    "life-unused": (pod("life-unused", container(), **config_volume("life-none")), "Running"),
    "life-deadline": (pod("life-deadline", container(), activeDeadlineSeconds=3), "Failed"),
    "life-message": (
        pod("life-message", script("echo -n no tape > /dev/termination-log; exit 1"), **NEVER),
        "Failed",
    ),
    "life-words": (
        pod("life-words", script("echo words; exit 1", terminationMessagePolicy="FallbackToLogsOnError"), **NEVER),
        "Failed",
    ),
}


def seen(found: Object, events: list[Object]) -> Seen:
    status, uid = found["status"], found["metadata"]["uid"]
    own = [event for event in events if event["involvedObject"].get("uid") == uid]
    text = json.dumps(
        {
            "phase": status["phase"],
            "why": (status.get("reason"), status.get("message")),
            "conditions": sorted(_condition(each) for each in status.get("conditions") or ()),
            "containers": [_container(each) for each in status.get("containerStatuses") or ()],
            "inits": [_container(each) for each in status.get("initContainerStatuses") or ()],
            "events": sorted({(each["reason"], each["type"], each["message"]) for each in own}),
        }
    )
    return dict(json.loads(text.replace(uid, "UID").replace("node-1", "NODE").replace(f"to {NODE}", "to NODE")))


def _condition(condition: Object) -> tuple[str, ...]:
    """1.37 gives a reason why there is no sandbox, 1.36 does not."""
    if condition["type"] == "PodReadyToStartContainers":
        return condition["type"], condition["status"], "", ""
    return condition["type"], condition["status"], condition.get("reason", ""), condition.get("message", "")


def _container(status: Object) -> Seen:
    kept = {key: status.get(key) for key in ("name", "ready", "started", "restartCount")}
    return {**kept, "state": _state(status["state"]), "last": _state(status.get("lastState") or {})}


def _state(state: Object) -> list[object]:
    return [
        (kind, {key: of[key] for key in ("exitCode", "reason", "message") if of.get(key) not in (None, "")})
        for kind, of in state.items()
    ]


def _settled(found: Seen, comes_to: str) -> bool:
    """A pod's sandbox is taken down a moment after its end."""
    match comes_to:
        case "Succeeded" | "Failed":
            is_down = ["PodReadyToStartContainers", "False", "", ""] in found["conditions"]
            return bool(found["phase"] == comes_to and is_down)
        case "Running":
            return bool(found["containers"] and found["containers"][0]["ready"])
        case "CrashLoopBackOff":
            is_recorded = any(reason == "BackOff" for reason, _, _ in found["events"])
            return is_recorded and comes_to in json.dumps(found)
    return comes_to in json.dumps(found)


def play_to_the_real_one(cluster: Cluster) -> tuple[dict[str, Seen], str]:
    def look() -> dict[str, Seen]:
        return {each["metadata"]["name"]: seen(each, _events(cluster)) for each in cluster.kubectl.every("pods")}

    def rest() -> dict[str, Seen]:
        shown = look()
        return {
            name: shown[name]
            for name, (_, comes_to) in PLAYED.items()
            if name not in crashing and not _settled(shown[name], comes_to)
        }

    crashing = [name for name, (_, comes_to) in PLAYED.items() if comes_to == "CrashLoopBackOff"]
    cluster.kubectl.create(SETTINGS, *(played for played, _ in PLAYED.values()))
    with ThreadPoolExecutor() as threads:
        crashed = list(threads.map(lambda name: _crashed(cluster, name), crashing))
    until("all pods have come to their end", lambda: not rest(), last=rest)
    shown, log = look(), cluster.kubectl("logs", "life-env")
    cluster.kubectl("delete", "configmap", "life-settings")
    shown |= {pod["metadata"]["name"]: seen(pod, _events(cluster)) for pod in crashed}
    return shown, log.replace(NODE, "NODE")


def _events(cluster: Cluster) -> list[Object]:
    return [event for event in cluster.kubectl.every("events") if event["reason"] != "MissingClusterDNS"]


def _crashed(cluster: Cluster, name: str) -> Object:
    """The pod as it is first shown in its back-off: for a moment, behind the end that this kubelet shows until then."""
    part = "initContainerStatuses" if name == "life-init" else "containerStatuses"
    fact = f"--for=jsonpath={{.status.{part}[0].state.waiting.reason}}=CrashLoopBackOff"
    return dict(json.loads(cluster.kubectl("wait", f"pod/{name}", fact, "--timeout=60s", "--output=json")))


async def play_to_ours() -> tuple[dict[str, Seen], str]:
    def look(lab: Lab) -> dict[str, Seen]:
        events = list(lab.store.objects(EVENTS.qualified))
        return {each["metadata"]["name"]: seen(each, events) for each in lab.store.objects(PODS.qualified)}

    async with embedded(processes=True, back_off=10.0) as lab:
        lab.writer.create(ResourcePath(CONFIG_MAPS, "default", "life-settings"), SETTINGS, "test")
        for name, (played, _) in PLAYED.items():
            lab.writer.create(ResourcePath(PODS, "default", name), played, "test")
        for name, (_, comes_to) in PLAYED.items():
            await lab.cluster.until(lambda: _settled(look(lab)[name], comes_to))  # noqa: B023
        log = b"".join([part async for part in lab.read_log("life-env")]).decode()
        return look(lab), re.sub("node-1", "NODE", log)


def test_pods_live_and_end_as_on_a_real_node(cluster: Cluster, pods: Pods) -> None:
    real, real_log = play_to_the_real_one(cluster)
    ours, our_log = asyncio.run(play_to_ours())
    differing = [
        (name, part, real[name][part], ours[name][part])
        for name in PLAYED
        for part in real[name]
        if real[name][part] != ours[name][part]
    ]
    assert not differing, "\n".join(map(str, differing))
    assert our_log == real_log
