"""The node lifecycle controller: nodes without a renewed lease, and returning nodes.

Such a node becomes NotReady and is tainted; `taint_eviction` evicts its pods, which stay until the node returns to end
them.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from plugwright.apiserver import clock
from plugwright.apiserver.kinds import LEASES, NODES, PODS
from plugwright.apiserver.registry import ResourcePath
from plugwright.apiserver.store import Object, ObjectKey
from plugwright.cluster.events import MALFORMED, ClusterClient, EventRecord, EventRecorder, EventSource
from plugwright.errors import ClusterError, StatusError

__all__ = ["NodeLifecycleController", "NodeLifecycleSettings"]

_MANAGER = "kube-controller-manager"
_UNREACHABLE = "node.kubernetes.io/unreachable"
_CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
_LEASES_NAMESPACE = "kube-node-lease"


@dataclass(frozen=True, slots=True)
class NodeLifecycleSettings:
    """`grace`: seconds without a renewed lease until a node is NotReady."""

    grace: float = 50.0

    @property
    def period(self) -> float:
        return min(5.0, self.grace / 4)


class NodeLifecycleController:
    def __init__(self, client: ClusterClient, settings: NodeLifecycleSettings) -> None:
        self._client = client
        self._settings = settings
        self._node_events = EventRecorder(client, EventSource("node-controller", manager=_MANAGER))
        self._registered: dict[str, Object] = {}  # references to the known nodes, by name
        self._last_round = client.now()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(self._settings.period)
            self.run_round()

    def run_round(self) -> None:
        """Checks the nodes, unless the last round was too long ago.

        The nodes run in this process: when it was stopped, suspended or very busy, they could not renew their leases
        either. They can do so until the next round.
        """
        before, self._last_round = self._last_round, self._client.now()
        if (self._last_round - before).total_seconds() <= self._settings.grace / 2:
            self.check_nodes()

    def check_nodes(self) -> None:
        """Marks and taints silent nodes."""
        now, store = self._client.now(), self._client.store
        nodes = {key.name: key for key in store.keys(NODES.qualified)}
        silent = [key for key in nodes.values() if self._is_silent(key, now)]
        # While every node is silent, the controller itself could be disconnected: it evicts no pods then.
        effects = ("NoSchedule",) if len(silent) == len(nodes) else ("NoSchedule", "NoExecute")
        for name in sorted(nodes.keys() - self._registered.keys()):
            self._record_registration(store.require(nodes[name]))
        for name in sorted(self._registered.keys() - nodes.keys()):
            self._record_removal(self._registered.pop(name))
        for key in silent:
            with suppress(ClusterError, StatusError, *MALFORMED):
                self._handle_silent(store.require(key), now, effects)

    def node_changed(self, node: Object) -> None:
        """Immediately adds and removes the taints for a node's conditions and `unschedulable`."""
        with suppress(ClusterError, StatusError, *MALFORMED):
            self._record_registration(node)
            before = list(node["spec"].get("taints") or ())
            cordoned = node["spec"].get("unschedulable")
            taints = [taint for taint in before if not (taint["key"] == _UNREACHABLE and _ready(node) == "True")]
            taints = [taint for taint in taints if taint["key"] != _CORDONED["key"] or cordoned]
            if cordoned and not any(taint["key"] == _CORDONED["key"] for taint in taints):
                taints.append({**_CORDONED, "timeAdded": self._client.stamp()})
            if taints != before:
                self._set_taints(node, taints)

    def _handle_silent(self, node: Object, now: datetime, effects: tuple[str, ...]) -> None:
        if _ready(node) != "Unknown":
            self._mark_not_ready(node, now)
        taints = node["spec"].get("taints") or []
        known = {taint["effect"]: taint for taint in taints if taint["key"] == _UNREACHABLE}
        if tuple(known) != effects:
            new = {"key": _UNREACHABLE, "timeAdded": clock.timestamp(now)}
            others = [taint for taint in taints if taint["key"] != _UNREACHABLE]
            ours = [known.get(effect) or {**new, "effect": effect} for effect in effects]
            self._set_taints(node, [*others, *ours])

    def _is_silent(self, node: ObjectKey, now: datetime) -> bool:
        store = self._client.store
        try:
            lease = store.get(ObjectKey(LEASES.qualified, _LEASES_NAMESPACE, node.name)) or {}
            renewed = (lease.get("spec") or {}).get("renewTime") or store.require(node)["metadata"]["creationTimestamp"]
            return (now - clock.parse(renewed)).total_seconds() > self._settings.grace
        except MALFORMED:
            return False

    def _record_registration(self, node: Object) -> None:
        uid, name = node["metadata"]["uid"], node["metadata"]["name"]
        known = self._registered.get(name)
        if known is not None and known["metadata"]["uid"] == uid:
            return
        if known is not None:
            self._record_removal(known)
        self._registered[name] = _reference(node)
        text = f"Node {name} event: Registered Node {name} in Controller"
        self._node_events.record(node, EventRecord("RegisteredNode", text))

    def _record_removal(self, node: Object) -> None:
        name = node["metadata"]["name"]
        text = f"Node {name} event: Removing Node {name} from Controller"
        self._node_events.record(node, EventRecord("RemovingNode", text))

    def _mark_not_ready(self, node: Object, now: datetime) -> None:
        name, stamp = node["metadata"]["name"], clock.timestamp(now)
        path = ResourcePath(NODES, "", name, "status")
        self._client.writer.change(path, lambda stored: _with_unknown_conditions(stored, stamp), _MANAGER)
        self._node_events.record(node, EventRecord("NodeNotReady", f"Node {name} status is now: NodeNotReady"))
        for pod in self._pods_on(name):
            self._node_events.record(pod, EventRecord("NodeNotReady", "Node is not ready", "Warning"))
            self._client.writer.change(
                _resource_path(pod, "status"), lambda stored: _with_unready(stored, stamp), _MANAGER
            )

    def _pods_on(self, name: str) -> Iterable[Object]:
        """The pods of a node, without those being deleted."""
        for pod in self._client.store.bound_pods(name):
            if not pod["metadata"].get("deletionTimestamp"):
                yield pod

    def _set_taints(self, node: Object, taints: list[Object]) -> Object:
        def with_taints(stored: Object) -> Object:
            spec = {key: value for key, value in stored["spec"].items() if key != "taints"}
            return {**stored, "spec": {**spec, "taints": taints} if taints else spec}

        return self._client.writer.change(ResourcePath(NODES, "", node["metadata"]["name"]), with_taints, _MANAGER)


def _with_unknown_conditions(node: Object, stamp: str) -> Object:
    """The node as the real controller shows it after its kubelet has stopped reporting."""
    status = node.get("status") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    for kind in _CONDITIONS:
        before = conditions.get(kind)
        conditions[kind] = {
            "type": kind,
            "status": "Unknown",
            "lastHeartbeatTime": (before or {}).get("lastHeartbeatTime", node["metadata"]["creationTimestamp"]),
            "lastTransitionTime": stamp,
            "reason": "NodeStatusUnknown" if before else "NodeStatusNeverUpdated",
            "message": "Kubelet stopped posting node status." if before else "Kubelet never posted node status.",
        }
    return {**node, "status": {**status, "conditions": list(conditions.values())}}


def _with_unready(pod: Object, stamp: str) -> Object:
    """The pod with its Ready condition set to False."""
    unready = {"status": "False", "lastTransitionTime": stamp}
    status = pod.get("status") or {}
    conditions = [
        {**condition, **unready} if (condition["type"], condition["status"]) == ("Ready", "True") else condition
        for condition in status.get("conditions") or ()
    ]
    return {**pod, "status": {**status, "conditions": conditions}}


def _reference(node: Object) -> Object:
    """A reference to the node for an event."""
    metadata = {name: node["metadata"][name] for name in ("name", "uid", "resourceVersion")}
    return {"apiVersion": node["apiVersion"], "kind": node["kind"], "metadata": metadata}


def _ready(node: Object) -> str:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return next((str(condition["status"]) for condition in conditions if condition["type"] == "Ready"), "")


def _resource_path(stored: Object, subresource: str = "") -> ResourcePath:
    return ResourcePath(PODS, stored["metadata"]["namespace"], stored["metadata"]["name"], subresource)
