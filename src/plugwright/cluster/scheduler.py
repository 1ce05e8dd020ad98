"""The scheduler: follows the store, keeps an account of what each node has left, and binds one pod after the other.

What fits where is decided in `scheduling`. A pod that fits nowhere waits until a node changes so that it fits; the
account is kept up change by change, never worked out anew.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from plugwright.cluster import clock, fit
from plugwright.cluster.api.errors import StatusError
from plugwright.cluster.api.kinds import NODES, PODS
from plugwright.cluster.api.registry import ResourcePath, Writer
from plugwright.cluster.clock import Clock
from plugwright.cluster.events import MALFORMED, Happening, Recorder, Teller
from plugwright.cluster.fit import Room, Wish
from plugwright.cluster.store import Change, Expired, Object, ObjectKey, Store
from plugwright.errors import ClusterError

__all__ = ["Scheduler"]

logger = logging.getLogger(__name__)

_NAME = "default-scheduler"
_MANAGER = "kube-scheduler"
_OVER = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class _Bound:
    node: str
    asked: Wish


class Scheduler:
    def __init__(self, store: Store, writer: Writer, now: Clock = clock.now) -> None:
        self._store = store
        self._writer = writer
        self._now = now
        self._recorder = Recorder(writer, Teller(_NAME, series=True, manager=_MANAGER), now)
        self._rooms: dict[str, Room] = {}
        self._bound: dict[ObjectKey, _Bound] = {}
        self._pending: dict[ObjectKey, Wish] = {}  # in the order they came
        self._waiting: dict[ObjectKey, Wish] = {}  # fits nowhere as things are
        self._since = 0

    async def run(self) -> None:
        """For ever. Between two pods others have their turn."""
        self._list()
        while True:
            if self._store.revision > self._since or not self._pending:
                await self._catch_up()
            if self._pending:
                key = next(iter(self._pending))
                self._place(key, self._pending.pop(key))
            await asyncio.sleep(0)

    def _list(self) -> None:
        """Everything as it is now; what was known before is forgotten."""
        self._since = self._store.revision
        for known in (self._rooms, self._bound, self._pending, self._waiting):
            known.clear()
        for node in self._store.objects(NODES.qualified):
            self._note_node(node["metadata"]["name"], node)
        for pod in sorted(self._store.objects(PODS.qualified), key=_age):
            self._note_pod(_key(pod), pod)

    async def _catch_up(self) -> None:
        try:
            changes = await self._store.changes(self._since)
        except Expired:
            self._list()
            return
        for change in changes:
            self._note(change)
        self._since = changes[-1].revision

    def _note(self, change: Change) -> None:
        gone = change.type == "DELETED"
        if change.key.kind == NODES.qualified:
            self._note_node(change.key.name, None if gone else change.object)
        elif change.key.kind == PODS.qualified:
            if gone:
                self._drop(change.key)
            else:
                self._note_pod(change.key, change.object)

    def _note_node(self, name: str, node: Object | None) -> None:
        before = self._rooms.pop(name, None)
        if node is None:
            self._again(list(self._waiting))  # the count of nodes is part of why they wait
            return
        try:
            room = Room.of(node)
        except MALFORMED:
            logger.warning("a node that cannot be read gets no pods", extra={"node": name})
            return
        if before is not None:
            room.used, room.pods, room.weight = before.used, before.pods, before.weight
        else:
            for bound in self._bound.values():
                if bound.node == name:
                    room.take(bound.asked)
        self._rooms[name] = room
        if before is None or (before.labels, before.taints) != (room.labels, room.taints):
            self._again(list(self._waiting))  # why they wait may be another reason now
        elif before.allocatable != room.allocatable:
            self._again(self._fitting(room))

    def _note_pod(self, key: ObjectKey, pod: Object) -> None:
        try:
            self._account(key, pod)
        except MALFORMED:
            logger.warning("a pod that cannot be read is not scheduled", extra={"pod": f"{key.namespace}/{key.name}"})

    def _account(self, key: ObjectKey, pod: Object) -> None:
        if pod.get("status", {}).get("phase") in _OVER:
            self._drop(key)
        elif node := pod["spec"].get("nodeName"):
            self._pending.pop(key, None)
            self._waiting.pop(key, None)
            if key not in self._bound:
                self._take(key, node, fit.wish(pod))
        elif key not in self._pending and key not in self._waiting and _is_ours(pod):
            self._pending[key] = fit.wish(pod)

    def _drop(self, key: ObjectKey) -> None:
        self._pending.pop(key, None)
        self._waiting.pop(key, None)
        bound = self._bound.pop(key, None)
        room = self._rooms.get(bound.node) if bound else None
        if bound and room:
            room.take(bound.asked, -1)
            self._again(self._fitting(room))

    def _fitting(self, room: Room) -> list[ObjectKey]:
        """Of those that wait, whom this node would take now."""
        return [key for key, asked in self._waiting.items() if fit.refusal(asked, room) is None]

    def _again(self, keys: Iterable[ObjectKey]) -> None:
        for key in keys:
            self._pending[key] = self._waiting.pop(key)

    def _take(self, key: ObjectKey, node: str, asked: Wish) -> None:
        self._bound[key] = _Bound(node, asked)
        if node in self._rooms:
            self._rooms[node].take(asked)

    def _place(self, key: ObjectKey, asked: Wish) -> None:
        pod = self._store.get(key)
        if pod is None or pod["spec"].get("nodeName"):
            return
        try:
            room, refused = fit.best(asked, self._rooms.values())
            if room is None:
                self._waiting[key] = asked
                self._refuse(key, pod, fit.unschedulable(refused))
            else:
                self._writer.bind(ResourcePath(PODS, key.namespace, key.name), room.name)
                self._take(key, room.name, asked)
                text = f"Successfully assigned {key.namespace}/{key.name} to {room.name}"
                self._recorder.tell(pod, Happening("Scheduled", text, action="Binding"))
        except (ClusterError, StatusError):  # somebody else was faster: the store tells what became of it
            self._waiting.pop(key, None)
        except MALFORMED:
            logger.warning("a pod that cannot be read is not scheduled", extra={"pod": f"{key.namespace}/{key.name}"})

    def _refuse(self, key: ObjectKey, pod: Object, message: str) -> None:
        self._recorder.tell(pod, Happening("FailedScheduling", message, "Warning", action="Scheduling"))
        found = {each["type"]: each for each in (pod.get("status") or {}).get("conditions") or ()}
        before = found.get("PodScheduled") or {}
        if before.get("status") == "False" and before.get("message") == message:
            return
        since = before["lastTransitionTime"] if before.get("status") == "False" else clock.timestamp(self._now())
        found["PodScheduled"] = {
            "type": "PodScheduled",
            "observedGeneration": 1,
            "status": "False",
            "lastProbeTime": None,
            "lastTransitionTime": since,
            "reason": "Unschedulable",
            "message": message,
        }

        def changed(stored: Object) -> Object:
            return {**stored, "status": {**(stored.get("status") or {}), "conditions": list(found.values())}}

        self._writer.change(ResourcePath(PODS, key.namespace, key.name, "status"), changed, _MANAGER)


def _key(pod: Object) -> ObjectKey:
    return ObjectKey(PODS.qualified, pod["metadata"]["namespace"], pod["metadata"]["name"])


def _age(pod: Object) -> tuple[str, str, str]:
    metadata = pod["metadata"]
    return metadata.get("creationTimestamp", ""), metadata["namespace"], metadata["name"]


def _is_ours(pod: Object) -> bool:
    spec = pod["spec"]
    gone = pod["metadata"].get("deletionTimestamp")
    return spec.get("schedulerName", _NAME) == _NAME and not spec.get("schedulingGates") and not gone
