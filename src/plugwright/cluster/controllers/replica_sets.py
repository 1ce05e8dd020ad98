"""The ReplicaSet controller: keeps the required number of pods. Pods of other origin are not adopted."""

from datetime import datetime, timedelta

from plugwright.apiserver.kinds import REPLICA_SETS
from plugwright.apiserver.store import Object, ObjectKey
from plugwright.cluster.controllers.owned_objects import OwnedObjects, available_since, condition, is_active, is_ready
from plugwright.cluster.controllers.workload_controller import WorkloadController
from plugwright.cluster.events import ClusterClient

__all__ = ["ReplicaSetController"]

_RETRY = timedelta(seconds=10)  # until refused pods are created again


class ReplicaSetController(WorkloadController):
    def __init__(self, client: ClusterClient) -> None:
        self._pods = OwnedObjects(client, REPLICA_SETS, "replicaset-controller")
        super().__init__(client, REPLICA_SETS, self._pods)

    def sync(self, key: ObjectKey, owner: Object) -> datetime | None:
        spec, now = owner["spec"], self._client.now()
        active = [pod for pod in self._pods.of(owner) if is_active(pod)]
        missing, is_refused = spec["replicas"] - len(active), False
        for _ in range(missing):
            created = self._pods.create(owner, spec["template"])
            is_refused = created is None
            if created is None:
                break
            active.append(created)
        for pod in sorted(active, key=_worth_keeping)[:-missing] if missing < 0 else ():
            self._pods.delete(owner, pod)
            active.remove(pod)
        times = [available_since(pod, int(spec.get("minReadySeconds") or 0)) for pod in active]
        self._pods.write_status(owner, self._status(owner, active, times, is_refused))
        later = [moment for moment in times if moment and moment > now]
        return min([*later, *([now + _RETRY] if is_refused else [])], default=None)

    def _status(self, owner: Object, active: list[Object], times: list[datetime | None], is_refused: bool) -> Object:
        before, now = owner.get("status") or {}, self._client.now()
        labels = (owner["spec"]["template"].get("metadata") or {}).get("labels") or {}
        counts = {
            "fullyLabeledReplicas": sum(
                labels.items() <= (pod["metadata"].get("labels") or {}).items() for pod in active
            ),
            "readyReplicas": sum(map(is_ready, active)),
            "availableReplicas": sum(moment is not None and moment <= now for moment in times),
        }
        failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "pods are refused"}
        conditions = condition(before, failure, self._client.stamp()) if is_refused else []
        return {
            "replicas": len(active),
            **{name: count for name, count in counts.items() if count},
            "observedGeneration": owner["metadata"]["generation"],
            **({"conditions": conditions} if conditions else {}),
        }


def _worth_keeping(pod: Object) -> tuple[bool, bool, bool]:
    """Pods without a node are deleted first, then those that are not ready; of the rest the newest."""
    return bool(pod["spec"].get("nodeName")), (pod.get("status") or {}).get("phase") == "Running", is_ready(pod)
