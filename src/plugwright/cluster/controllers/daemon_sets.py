"""The DaemonSet controller: one pod on every suitable node, bound by the scheduler as on a real cluster.

The update strategy replaces the pods of older templates. There are no ControllerRevisions: a pod's label identifies its
template, and earlier templates are not kept.
"""

from datetime import datetime, timedelta

from plugwright.apiserver.kinds import DAEMON_SETS, NODES
from plugwright.apiserver.store import Change, Object, ObjectKey
from plugwright.cluster.controllers.owned_objects import FINISHED, OwnedObjects, available_since, is_ready, pod_hash
from plugwright.cluster.controllers.rolling_update import amount
from plugwright.cluster.controllers.workload_controller import WorkloadController
from plugwright.cluster.events import ClusterClient, EventRecord
from plugwright.cluster.scheduling.affinity import NodeAffinity, tolerates

__all__ = ["DaemonSetController"]

_HASH = "controller-revision-hash"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_RETRY = timedelta(seconds=10)
_FIRST_BACK_OFF, _LONGEST_BACK_OFF = 1.0, 900.0  # seconds until a failed pod is replaced
_TOLERATED = (
    ("not-ready", "NoExecute"), ("unreachable", "NoExecute"), ("disk-pressure", "NoSchedule"),
    ("memory-pressure", "NoSchedule"), ("pid-pressure", "NoSchedule"), ("unschedulable", "NoSchedule"),
)  # fmt: skip
_TOLERATIONS: list[Object] = [
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": effect} for name, effect in _TOLERATED
]


class DaemonSetController(WorkloadController):
    def __init__(self, client: ClusterClient) -> None:
        self._pods = OwnedObjects(client, DAEMON_SETS, "daemonset-controller")
        self._failures: dict[tuple[str, str], tuple[int, datetime]] = {}  # of an owner's uid on a node
        super().__init__(client, DAEMON_SETS, self._pods)

    def handle(self, change: Change) -> None:
        super().handle(change)
        if change.key.kind == DAEMON_SETS.qualified and change.type == "DELETED":
            uid = change.object["metadata"]["uid"]
            self._failures = {key: found for key, found in self._failures.items() if key[0] != uid}
        if change.key.kind == NODES.qualified and _placement(change.before) != _placement(
            None if change.type == "DELETED" else change.object
        ):
            for key in self._client.store.keys(DAEMON_SETS.qualified):
                self._sync(key)

    def sync(self, key: ObjectKey, owner: Object) -> datetime | None:
        nodes = {node["metadata"]["name"] for node in self._client.store.objects(NODES.qualified) if _fits(owner, node)}
        by_node: dict[str, list[Object]] = {}
        due: list[datetime] = []
        self._delete_failed(owner)
        for pod in self._pods.of(owner):
            if not pod["metadata"].get("deletionTimestamp"):
                by_node.setdefault(_target(pod), []).append(pod)
        for name in sorted(by_node.keys() - nodes):
            for pod in by_node.pop(name):
                self._pods.delete(owner, pod)
        digest = pod_hash(owner["spec"]["template"])
        removed = self._update(owner, by_node, digest, len(nodes))
        for name in sorted(nodes - by_node.keys() - removed - self._terminating(owner)):
            if wait := self._wait(owner, name):
                due.append(wait)
            elif self._pods.create(owner, _pod_for(owner, name, digest)) is None:
                due.append(self._client.now() + _RETRY)
                break
        times = self._write_status(owner, nodes, digest)
        return min([*due, *times], default=None)

    def _delete_failed(self, owner: Object) -> None:
        """Deletes a failed pod to be replaced on its node, with a delay growing with the failures there."""
        for pod in self._pods.of(owner):
            if (pod.get("status") or {}).get("phase") in FINISHED and not pod["metadata"].get("deletionTimestamp"):
                key = owner["metadata"]["uid"], _target(pod)
                count = self._failures.get(key, (0, self._client.now()))[0]
                seconds = min(_FIRST_BACK_OFF * 2 ** min(count, 10), _LONGEST_BACK_OFF)
                self._failures[key] = count + 1, self._client.now() + timedelta(seconds=seconds)
                text = f"Found failed daemon pod {pod['metadata']['namespace']}/{pod['metadata']['name']} on node"
                text = f"{text} {key[1]}, will try to kill it"
                self._pods.record(owner, EventRecord("FailedDaemonPod", text, "Warning"))
                self._pods.delete(owner, pod)

    def _wait(self, owner: Object, node: str) -> datetime | None:
        until = self._failures.get((owner["metadata"]["uid"], node), (0, self._client.now()))[1]
        return until if until > self._client.now() else None

    def _terminating(self, owner: Object) -> set[str]:
        """The nodes whose old pod is terminating, for which the new one waits."""
        return {_target(pod) for pod in self._pods.of(owner) if pod["metadata"].get("deletionTimestamp")}

    def _update(self, owner: Object, by_node: dict[str, list[Object]], digest: str, wanted: int) -> set[str]:
        """Replaces pods of older templates by the update strategy; returns the nodes whose pods are deleted now.

        With `maxSurge`, a node gets its new pod first, and loses the old pod when the new pod is ready.
        """
        strategy = owner["spec"]["updateStrategy"]
        rolling = strategy.get("rollingUpdate")
        if strategy["type"] != "RollingUpdate" or rolling is None:
            return set()
        self._delete_replaced(owner, by_node, digest)
        old = {name: pods for name, pods in by_node.items() if not any(_hash(pod) == digest for pod in pods)}
        if surge := amount(rolling["maxSurge"], wanted, rounds_up=True):
            for name in sorted(old)[:surge]:
                self._pods.create(owner, _pod_for(owner, name, digest))
            return set()
        available = sum(any(map(is_ready, pods)) for pods in by_node.values())
        allowed = max(1, amount(rolling["maxUnavailable"], wanted, rounds_up=True)) - (wanted - available)
        ready = sorted(name for name, pods in old.items() if any(map(is_ready, pods)))
        removed = {*(old.keys() - {*ready}), *ready[: max(0, allowed)]}
        for pod in (pod for name in sorted(removed) for pod in old[name]):
            self._pods.delete(owner, pod)
        return removed

    def _delete_replaced(self, owner: Object, by_node: dict[str, list[Object]], digest: str) -> None:
        """Deletes old pods whose replacement is ready."""
        for pods in by_node.values():
            if any(_hash(pod) == digest and is_ready(pod) for pod in pods):
                for pod in (one for one in pods if _hash(one) != digest):
                    self._pods.delete(owner, pod)

    def _write_status(self, owner: Object, nodes: set[str], digest: str) -> list[datetime]:
        now, seconds = self._client.now(), int(owner["spec"].get("minReadySeconds") or 0)
        pods = [pod for pod in self._pods.of(owner) if not pod["metadata"].get("deletionTimestamp")]
        times = {_target(pod): available_since(pod, seconds) for pod in pods}
        present = {_target(pod) for pod in pods}
        available = {name for name, moment in times.items() if moment and moment <= now} & nodes
        missing = len(nodes) - len(available)
        self._pods.write_status(
            owner,
            {
                "currentNumberScheduled": len(present & nodes),
                "numberMisscheduled": len(present - nodes),
                "desiredNumberScheduled": len(nodes),
                "numberReady": len({_target(pod) for pod in pods if is_ready(pod)} & nodes),
                "observedGeneration": owner["metadata"]["generation"],
                "updatedNumberScheduled": len({_target(pod) for pod in pods if _hash(pod) == digest} & nodes),
                **({"numberAvailable": len(available)} if available else {}),
                **({"numberUnavailable": missing} if missing else {}),
            },
        )
        return [moment for moment in times.values() if moment and moment > now]


def _placement(node: Object | None) -> object:
    """The properties of a node with an effect on its pods."""
    spec = (node or {}).get("spec") or {}
    return node and ((node["metadata"].get("labels") or {}), spec.get("taints") or [], bool(spec.get("unschedulable")))


def _fits(owner: Object, node: Object) -> bool:
    spec = owner["spec"]["template"]["spec"]
    metadata, taints = node["metadata"], (node.get("spec") or {}).get("taints") or ()
    tolerations = [*(spec.get("tolerations") or ()), *_TOLERATIONS]
    if spec.get("nodeName") not in (None, "", metadata["name"]):
        return False
    if not NodeAffinity.of(spec).matches(metadata["name"], metadata.get("labels") or {}):
        return False
    return all(tolerates(tolerations, taint) for taint in taints if taint["effect"] != "PreferNoSchedule")


def _pod_for(owner: Object, node: str, digest: str) -> Object:
    """The pod of one node, which the scheduler can bind to no other node."""
    template = owner["spec"]["template"]
    metadata, spec = template.get("metadata") or {}, template["spec"]
    affinity = spec.get("affinity") or {}
    node_affinity = affinity.get("nodeAffinity") or {}
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    return {
        "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), _HASH: digest}},
        "spec": {
            **spec,
            "affinity": {**affinity, "nodeAffinity": {**node_affinity, _REQUIRED: {"nodeSelectorTerms": terms}}},
            "tolerations": [*(spec.get("tolerations") or []), *_TOLERATIONS],
        },
    }


def _target(pod: Object) -> str:
    """The node of a pod, before and after it is bound."""
    if pod["spec"].get("nodeName"):
        return str(pod["spec"]["nodeName"])
    names = NodeAffinity.of(pod["spec"]).node_names or frozenset()
    return next(iter(names), "")


def _hash(pod: Object) -> str:
    return str((pod["metadata"].get("labels") or {}).get(_HASH) or "")
