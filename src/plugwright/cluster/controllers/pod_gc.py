"""The pod garbage collector: fails and deletes pods of nonexistent nodes.

A node has `quarantine` seconds to return, as in a real cluster. `garbage_collector` deletes its lease, whose owner is
the node.
"""

from datetime import datetime, timedelta

from plugwright.apiserver.kinds import NODES, PODS
from plugwright.apiserver.registry import DeleteOptions, ResourcePath
from plugwright.apiserver.store import Change, Object, ObjectKey
from plugwright.cluster.controllers import disruption
from plugwright.cluster.controllers.disruption import DisruptionReason
from plugwright.cluster.events import ClusterClient

__all__ = ["PodGarbageCollector"]

_REASON = DisruptionReason("DeletionByPodGC", "PodGC: node no longer exists")
_FINISHED = ("Succeeded", "Failed")


class PodGarbageCollector:
    def __init__(self, client: ClusterClient, quarantine: float = 40.0) -> None:
        self._client = client
        self._quarantine = timedelta(seconds=quarantine)
        self._missing: dict[str, datetime] = {}

    def resync(self) -> None:
        for pod in self._client.store.objects(PODS.qualified):
            self._check(pod)

    def handle(self, change: Change) -> None:
        if change.key.kind == PODS.qualified and change.type != "DELETED":
            self._check(change.object)
        elif change.key.kind == NODES.qualified and change.type == "DELETED":
            self._missing[change.key.name] = self._client.now() + self._quarantine

    def next_due(self) -> datetime | None:
        return min(self._missing.values(), default=None)

    def run_due(self) -> None:
        """Deletes the pods of nodes missing for too long."""
        now = self._client.now()
        for name in [name for name, due in self._missing.items() if due <= now]:
            if not self._exists(name):
                self._delete_pods(name)
            del self._missing[name]

    def _check(self, pod: Object) -> None:
        name = pod["spec"].get("nodeName")
        if name and name not in self._missing and not self._exists(name):
            self._missing[name] = self._client.now() + self._quarantine

    def _exists(self, name: str) -> bool:
        return ObjectKey(NODES.qualified, "", name) in self._client.store

    def _delete_pods(self, node: str) -> None:
        for pod in self._client.store.bound_pods(node):
            metadata = pod["metadata"]
            path = ResourcePath(PODS, metadata["namespace"], metadata["name"])
            phase = "" if (pod.get("status") or {}).get("phase") in _FINISHED else "Failed"
            disruption.add_condition(self._client, path, _REASON, phase)
            self._client.writer.delete(path, DeleteOptions(grace=0, uid=metadata["uid"]))
