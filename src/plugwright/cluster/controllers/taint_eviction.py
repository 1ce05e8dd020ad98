"""The taint eviction controller: pods leave a node with a NoExecute taint, immediately or after their toleration.

Times count from when the controller sees the taint, as in a real cluster, so they restart with the controller.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from plugwright.apiserver.kinds import NODES, PODS
from plugwright.apiserver.registry import DeleteOptions, ResourcePath
from plugwright.apiserver.store import Change, Object, ObjectKey
from plugwright.cluster.controllers import disruption
from plugwright.cluster.controllers.disruption import DisruptionReason
from plugwright.cluster.events import ClusterClient, EventRecord, EventRecorder, EventSource
from plugwright.cluster.scheduling import affinity

__all__ = ["TaintEvictionController"]

_MANAGER = "kube-controller-manager"
_REASON = DisruptionReason("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
_EVENT = "TaintManagerEviction"


@dataclass(frozen=True, slots=True)
class _Eviction:
    uid: str
    due: datetime


class TaintEvictionController:
    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._recorder = EventRecorder(client, EventSource("taint-eviction-controller", manager=_MANAGER))
        self._evictions: dict[ObjectKey, _Eviction] = {}
        self._tainted: dict[str, list[Object]] = {}  # the NoExecute taints of the nodes that have some

    def resync(self) -> None:
        self._tainted.clear()
        for node in self._client.store.objects(NODES.qualified):
            self._node_changed(node["metadata"]["name"], _no_execute(node))

    def handle(self, change: Change) -> None:
        deleted = change.type == "DELETED"
        if change.key.kind == NODES.qualified and deleted:
            self._tainted.pop(change.key.name, None)
        elif change.key.kind == NODES.qualified:
            self._node_changed(change.key.name, _no_execute(change.object))
        elif change.key.kind == PODS.qualified:
            self._pod_changed(change.key, change.object, deleted)

    def next_due(self) -> datetime | None:
        return min((eviction.due for eviction in self._evictions.values()), default=None)

    def run_due(self) -> None:
        """Evicts the pods whose toleration has ended."""
        now = self._client.now()
        for key, eviction in [entry for entry in self._evictions.items() if entry[1].due <= now]:
            pod = self._client.store.get(key)
            if pod is not None and pod["metadata"]["uid"] == eviction.uid:
                self._evict(key, pod)
            self._evictions.pop(key, None)

    def _node_changed(self, name: str, taints: list[Object]) -> None:
        before = self._tainted.pop(name, [])
        if taints:
            self._tainted[name] = taints
        if taints == before:
            return
        for pod in self._client.store.bound_pods(name):
            self._process(_key(pod), pod, taints)

    def _pod_changed(self, key: ObjectKey, pod: Object, deleted: bool) -> None:
        if deleted:
            self._cancel(key)
            return
        if taints := self._tainted.get(pod["spec"].get("nodeName") or ""):
            self._process(key, pod, taints)

    def _process(self, key: ObjectKey, pod: Object, taints: list[Object]) -> None:
        if pod["metadata"].get("deletionTimestamp"):
            return
        tolerations = pod["spec"].get("tolerations") or ()
        seconds = _toleration_seconds(tolerations, taints)
        if not taints or seconds is None:
            self._cancel(key)
        elif seconds <= 0:
            self._cancel(key)
            self._evict(key, pod)
        elif key not in self._evictions:
            due = self._client.now() + timedelta(seconds=seconds)
            self._evictions[key] = _Eviction(pod["metadata"]["uid"], due)

    def _cancel(self, key: ObjectKey) -> None:
        if self._evictions.pop(key, None):
            self._record(key, f"Cancelling deletion of Pod {key.namespace}/{key.name}")

    def _evict(self, key: ObjectKey, pod: Object) -> None:
        self._record(key, f"Marking for deletion Pod {key.namespace}/{key.name}")
        path = ResourcePath(PODS, key.namespace, key.name)
        disruption.add_condition(self._client, path, _REASON)
        self._client.writer.delete(path, DeleteOptions(uid=pod["metadata"]["uid"]))

    def _record(self, key: ObjectKey, text: str) -> None:
        """Records an event without the pod's uid, which the real controller does not look up."""
        metadata = {"namespace": key.namespace, "name": key.name}
        self._recorder.record({"apiVersion": "v1", "kind": PODS.name, "metadata": metadata}, EventRecord(_EVENT, text))


def _no_execute(node: Object) -> list[Object]:
    taints = (node.get("spec") or {}).get("taints") or ()
    return [taint for taint in taints if taint["effect"] == "NoExecute"]


def _toleration_seconds(tolerations: Iterable[Object], taints: list[Object]) -> float | None:
    """The shortest time a pod tolerates the taints: 0 if a taint is not tolerated, None if unlimited."""
    matching = [[entry for entry in tolerations if affinity.tolerates([entry], taint)] for taint in taints]
    if not all(matching):
        return 0
    limits = [entry["tolerationSeconds"] for entries in matching for entry in entries if "tolerationSeconds" in entry]
    return min(limits, default=None)


def _key(pod: Object) -> ObjectKey:
    return ObjectKey(PODS.qualified, pod["metadata"]["namespace"], pod["metadata"]["name"])
