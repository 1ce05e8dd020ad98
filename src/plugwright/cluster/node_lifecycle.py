"""Nodes that fall silent, and come back: what the node lifecycle controller does in a real cluster.

A node whose lease is not renewed in time becomes NotReady and is tainted; pods that do not stand that are deleted
when their time is up, and stay until their node is back to end them. Old events are cleared away here too.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from plugwright.cluster import affinity, clock
from plugwright.cluster.api.errors import StatusError
from plugwright.cluster.api.kinds import EVENTS, LEASES, NODES, PODS, Kind
from plugwright.cluster.api.registry import DeleteOptions, ResourcePath
from plugwright.cluster.events import MALFORMED, Access, Happening, Recorder, Teller
from plugwright.cluster.store import Object, ObjectKey
from plugwright.errors import ClusterError

__all__ = ["Monitor", "MonitorSettings"]

_MANAGER = "kube-controller-manager"
_UNREACHABLE = "node.kubernetes.io/unreachable"
_CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
_LEASES_NAMESPACE = "kube-node-lease"


@dataclass(frozen=True, slots=True)
class MonitorSettings:
    """Seconds: how long a node may be silent, and how long events are kept, if there are not too many."""

    grace: float = 50.0
    events: float = 3600.0
    most_events: int = 20_000

    @property
    def period(self) -> float:
        return min(5.0, self.grace / 4)


class Monitor:
    def __init__(self, access: Access, settings: MonitorSettings) -> None:
        self._access = access
        self._settings = settings
        self._nodes = Recorder(access.writer, Teller("node-controller", manager=_MANAGER), access.now)
        self._taints = Recorder(access.writer, Teller("taint-eviction-controller", manager=_MANAGER), access.now)
        self._registered: set[str] = set()

    async def run(self) -> None:
        """For ever."""
        looks = 0
        while True:
            await asyncio.sleep(self._settings.period)
            self.look()
            looks += 1
            if looks * self._settings.period >= 60:
                looks = 0
                self.tidy()

    def look(self) -> None:
        """Once over all nodes. While none at all is heard of, it may be us who are cut off: nobody is evicted then."""
        now = self._access.now()
        nodes = self._access.store.objects(NODES.qualified)
        silent = [node for node in nodes if self._is_silent(node, now)]
        effects = ("NoSchedule",) if len(silent) == len(nodes) else ("NoSchedule", "NoExecute")
        for node in nodes:
            self._welcome(node)
        for node in silent:
            with suppress(ClusterError, StatusError, *MALFORMED):
                self._look_at(node, now, effects)

    def see(self, node: Object) -> None:
        """A node was added or changed: taints that follow from what it says come and go at once."""
        with suppress(ClusterError, StatusError, *MALFORMED):
            self._welcome(node)
            taints = list(node["spec"].get("taints") or ())
            kept = [each for each in taints if not (each["key"] == _UNREACHABLE and _ready(node) == "True")]
            kept = [each for each in kept if each["key"] != _CORDONED["key"] or node["spec"].get("unschedulable")]
            if node["spec"].get("unschedulable") and not any(each["key"] == _CORDONED["key"] for each in kept):
                kept.append({**_CORDONED, "timeAdded": self._access.stamp()})
            if kept != taints:
                self._set_taints(node, kept)

    def _look_at(self, node: Object, now: datetime, effects: tuple[str, ...]) -> None:
        if _ready(node) != "Unknown":
            self._give_up(node, now)
        taints = node["spec"].get("taints") or []
        known = {each["effect"]: each for each in taints if each["key"] == _UNREACHABLE}
        if tuple(known) != effects:
            fresh = {"key": _UNREACHABLE, "timeAdded": clock.timestamp(now)}
            others = [each for each in taints if each["key"] != _UNREACHABLE]
            ours = [known.get(effect) or {**fresh, "effect": effect} for effect in effects]
            node = self._set_taints(node, [*others, *ours])
        self._evict(node, now)

    def _is_silent(self, node: Object, now: datetime) -> bool:
        try:
            return (now - self._heard(node)).total_seconds() > self._settings.grace
        except MALFORMED:
            return False

    def _welcome(self, node: Object) -> None:
        uid, name = node["metadata"]["uid"], node["metadata"]["name"]
        if uid not in self._registered:
            self._registered.add(uid)
            text = f"Node {name} event: Registered Node {name} in Controller"
            self._nodes.tell(node, Happening("RegisteredNode", text))

    def _heard(self, node: Object) -> datetime:
        lease = self._access.store.get(ObjectKey(LEASES.qualified, _LEASES_NAMESPACE, node["metadata"]["name"]))
        renewed = ((lease or {}).get("spec") or {}).get("renewTime")
        return clock.parse(renewed or node["metadata"]["creationTimestamp"])

    def _give_up(self, node: Object, now: datetime) -> None:
        name, stamp = node["metadata"]["name"], clock.timestamp(now)
        place = ResourcePath(NODES, "", name, "status")
        self._access.writer.change(place, lambda stored: _silent(stored, stamp), _MANAGER)
        self._nodes.tell(node, Happening("NodeNotReady", f"Node {name} status is now: NodeNotReady"))
        for pod in self._pods_on(name):
            self._mark(pod, stamp)

    def _mark(self, pod: Object, stamp: str) -> None:
        def unready(stored: Object) -> Object:
            status = stored.get("status") or {}
            conditions = [_unready(each, stamp) for each in status.get("conditions") or ()]
            return {**stored, "status": {**status, "conditions": conditions}}

        self._nodes.tell(pod, Happening("NodeNotReady", "Node is not ready", "Warning"))
        self._access.writer.change(_place(pod, "status"), unready, _MANAGER)

    def _evict(self, node: Object, now: datetime) -> None:
        taint = next((each for each in node["spec"].get("taints") or () if _is_eviction(each)), None)
        if taint is None:
            return
        tainted = clock.parse(taint["timeAdded"])
        for pod in self._pods_on(node["metadata"]["name"]):
            tolerated = affinity.toleration(pod["spec"].get("tolerations") or (), taint)
            seconds = (tolerated or {"tolerationSeconds": 0}).get("tolerationSeconds")
            if seconds is not None and now >= tainted + timedelta(seconds=seconds):
                self._delete(pod)

    def _delete(self, pod: Object) -> None:
        metadata = pod["metadata"]
        text = f"Marking for deletion Pod {metadata['namespace']}/{metadata['name']}"
        self._taints.tell(pod, Happening("TaintManagerEviction", text))
        self._access.writer.delete(_place(pod), DeleteOptions(uid=metadata["uid"]))

    def _pods_on(self, name: str) -> Iterable[Object]:
        """Those that are not on their way out already."""
        for pod in self._access.store.objects(PODS.qualified):
            if pod["spec"].get("nodeName") == name and not pod["metadata"].get("deletionTimestamp"):
                yield pod

    def _set_taints(self, node: Object, taints: list[Object]) -> Object:
        place = ResourcePath(NODES, "", node["metadata"]["name"])

        def tainted(stored: Object) -> Object:
            spec = {key: value for key, value in stored["spec"].items() if key != "taints"}
            return {**stored, "spec": {**spec, "taints": taints} if taints else spec}

        return self._access.writer.change(place, tainted, _MANAGER)

    def tidy(self) -> None:
        """Old events go; of very many the oldest, whatever their age."""
        events = sorted(self._access.store.objects(EVENTS.qualified), key=_last)
        oldest = self._access.now() - timedelta(seconds=self._settings.events)
        surplus = len(events) - self._settings.most_events
        for number, event in enumerate(events):
            with suppress(*MALFORMED):
                if number < surplus or clock.parse(_last(event)) < oldest:
                    self._access.store.delete(_place(event, kind=EVENTS).key)


def _silent(node: Object, stamp: str) -> Object:
    """As it is shown when its kubelet is not heard any more."""
    status = node.get("status") or {}
    known = {each["type"]: each for each in status.get("conditions") or ()}
    for kind in _CONDITIONS:
        before = known.get(kind)
        known[kind] = {
            "type": kind,
            "status": "Unknown",
            "lastHeartbeatTime": (before or {}).get("lastHeartbeatTime", node["metadata"]["creationTimestamp"]),
            "lastTransitionTime": stamp,
            "reason": "NodeStatusUnknown" if before else "NodeStatusNeverUpdated",
            "message": "Kubelet stopped posting node status." if before else "Kubelet never posted node status.",
        }
    return {**node, "status": {**status, "conditions": list(known.values())}}


def _unready(condition: Object, stamp: str) -> Object:
    if condition["type"] != "Ready" or condition["status"] != "True":
        return condition
    return {**condition, "status": "False", "lastTransitionTime": stamp}


def _last(event: Object) -> str:
    """When it happened last."""
    times = (event.get("lastTimestamp"), (event.get("series") or {}).get("lastObservedTime"), event.get("eventTime"))
    return str(next(filter(None, times), event["metadata"]["creationTimestamp"]))


def _ready(node: Object) -> str:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return next((str(each["status"]) for each in conditions if each["type"] == "Ready"), "")


def _is_eviction(taint: Object) -> bool:
    return bool(taint["key"] == _UNREACHABLE and taint["effect"] == "NoExecute")


def _place(found: Object, subresource: str = "", kind: Kind = PODS) -> ResourcePath:
    return ResourcePath(kind, found["metadata"]["namespace"], found["metadata"]["name"], subresource)
