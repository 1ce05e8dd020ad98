"""The Deployment controller: a ReplicaSet for each template, and the rollout from the old to the new ReplicaSet.

Old ReplicaSets keep their revision in an annotation, by which `kubectl rollout history` and `undo` find them.
"""

from datetime import datetime, timedelta

from plugwright.apiserver import clock
from plugwright.apiserver.kinds import DEPLOYMENTS, REPLICA_SETS
from plugwright.apiserver.registry import ResourcePath
from plugwright.apiserver.store import Object, ObjectKey
from plugwright.cluster.controllers.owned_objects import MANAGER, OwnedObjects, condition, pod_hash
from plugwright.cluster.controllers.rolling_update import amount, step
from plugwright.cluster.controllers.workload_controller import WorkloadController
from plugwright.cluster.events import ClusterClient, EventRecord

__all__ = ["DeploymentController"]

_REVISION = "deployment.kubernetes.io/revision"
_HASH = "pod-template-hash"
_TIMED_OUT = "ProgressDeadlineExceeded"
_NOT_COPIED = ("kubectl.kubernetes.io/last-applied-configuration", _REVISION)


class DeploymentController(WorkloadController):
    def __init__(self, client: ClusterClient) -> None:
        self._replica_sets = OwnedObjects(client, DEPLOYMENTS, "deployment-controller", REPLICA_SETS)
        super().__init__(client, DEPLOYMENTS, self._replica_sets)

    def sync(self, key: ObjectKey, owner: Object) -> datetime | None:
        found = self._replica_sets.of(owner)
        digest = pod_hash(owner["spec"]["template"])
        new = next((one for one in found if one["metadata"]["labels"].get(_HASH) == digest), None)
        old = [one for one in found if one is not new]
        if not owner["spec"].get("paused"):
            if new is None:
                new = self._create(owner, digest, old)
                if new is None:
                    return self._client.now() + timedelta(seconds=10)
            self._keep_revision(owner, new, old)
            self._roll(owner, new, old)
            self._delete_old(owner, old)
        elif new is not None:  # a paused one can be scaled
            self._scale(owner, new, owner["spec"]["replicas"] - sum(one["spec"]["replicas"] for one in old))
        status, due = self._status(owner, digest, self._replica_sets.of(owner))
        self._replica_sets.write_status(owner, status)
        return due

    def _create(self, owner: Object, digest: str, old: list[Object]) -> Object | None:
        spec, metadata = owner["spec"], owner["metadata"]
        template = spec["template"]
        labels = {**((template.get("metadata") or {}).get("labels") or {}), _HASH: digest}
        selector = {**spec["selector"], "matchLabels": {**(spec["selector"].get("matchLabels") or {}), _HASH: digest}}
        annotations = {
            name: text for name, text in (metadata.get("annotations") or {}).items() if name not in _NOT_COPIED
        }
        revision = max((_revision(one) for one in old), default=0) + 1
        content = {
            "metadata": {"labels": labels, "annotations": {**annotations, _REVISION: str(revision)}},
            "spec": {
                "replicas": 0,
                "selector": selector,
                "template": {**template, "metadata": {**(template.get("metadata") or {}), "labels": labels}},
                **({"minReadySeconds": spec["minReadySeconds"]} if spec.get("minReadySeconds") else {}),
            },
        }
        return self._replica_sets.create(owner, content, f"{metadata['name']}-{digest}")

    def _keep_revision(self, owner: Object, new: Object, old: list[Object]) -> None:
        """Makes a returning template the newest revision again."""
        revision = max(_revision(new), max((_revision(one) for one in old), default=0) + bool(old))
        for kind, content in ((REPLICA_SETS, new), (DEPLOYMENTS, owner)):
            if _revision(content) != revision:
                self._annotate(
                    ResourcePath(kind, owner["metadata"]["namespace"], content["metadata"]["name"]), revision
                )

    def _annotate(self, path: ResourcePath, revision: int) -> None:
        def annotated(content: Object) -> Object:
            annotations = {**(content["metadata"].get("annotations") or {}), _REVISION: str(revision)}
            return {**content, "metadata": {**content["metadata"], "annotations": annotations}}

        self._client.writer.change(path, annotated, MANAGER)

    def _roll(self, owner: Object, new: Object, old: list[Object]) -> None:
        spec = owner["spec"]
        wanted, rolling = spec["replicas"], spec["strategy"].get("rollingUpdate")
        if rolling is None:  # Recreate
            for one in old:
                self._scale(owner, one, 0)
            if not any((one.get("status") or {}).get("replicas") for one in old):
                self._scale(owner, new, wanted)
            return
        surge = amount(rolling["maxSurge"], wanted, rounds_up=True)
        unavailable = amount(rolling["maxUnavailable"], wanted, rounds_up=False)
        sizes = step(wanted, surge, max(unavailable, int(not surge)), new, old)
        for one, replicas in zip((new, *old), sizes, strict=True):
            self._scale(owner, one, replicas)

    def _scale(self, owner: Object, replica_set: Object, replicas: int) -> None:
        before, name = replica_set["spec"]["replicas"], replica_set["metadata"]["name"]
        replicas = max(0, replicas)
        if before == replicas:
            return
        path = ResourcePath(REPLICA_SETS, replica_set["metadata"]["namespace"], name)
        self._client.writer.change(
            path, lambda content: {**content, "spec": {**content["spec"], "replicas": replicas}}, MANAGER
        )
        direction = "up" if replicas > before else "down"
        text = f"Scaled {direction} replica set {name} from {before} to {replicas}"
        self._replica_sets.record(owner, EventRecord("ScalingReplicaSet", text))

    def _delete_old(self, owner: Object, old: list[Object]) -> None:
        idle = [one for one in old if not one["spec"]["replicas"] and not (one.get("status") or {}).get("replicas")]
        limit = int(owner["spec"]["revisionHistoryLimit"])
        for one in sorted(idle, key=_revision)[: max(0, len(idle) - limit)]:
            self._replica_sets.delete(owner, one)

    def _status(self, owner: Object, digest: str, found: list[Object]) -> tuple[Object, datetime | None]:
        """The status, and when its progress deadline is exceeded."""
        before, wanted = owner.get("status") or {}, owner["spec"]["replicas"]
        new = next((one for one in found if one["metadata"]["labels"].get(_HASH) == digest), None)
        total, ready, available = (_sum(found, name) for name in ("replicas", "readyReplicas", "availableReplicas"))
        updated = _sum([new] if new else [], "replicas")
        counts = {"replicas": total, "updatedReplicas": updated, "readyReplicas": ready, "availableReplicas": available}
        unavailable = max(0, max(total, wanted) - available)
        status: Object = {
            "observedGeneration": owner["metadata"]["generation"],
            **{name: count for name, count in counts.items() if count},
            **({"unavailableReplicas": unavailable} if unavailable else {}),
        }
        rolling = owner["spec"]["strategy"].get("rollingUpdate") or {"maxUnavailable": 0}
        least = wanted - amount(rolling["maxUnavailable"], wanted, rounds_up=False)
        conditions = condition(before, _availability(available >= least), self._client.stamp())
        is_complete = new is not None and updated == total == wanted == available
        has_moved = {name: before.get(name) for name in counts} != {name: status.get(name) for name in counts}
        progress, due = self._progress(owner, new, is_complete, has_moved)
        status["conditions"] = condition({"conditions": conditions}, progress, self._client.stamp())
        return status, due

    def _progress(
        self, owner: Object, new: Object | None, is_complete: bool, has_moved: bool
    ) -> tuple[Object, datetime | None]:
        limit = timedelta(seconds=int(owner["spec"]["progressDeadlineSeconds"]))
        name, now = (new or owner)["metadata"]["name"], self._client.now()
        conditions = (owner.get("status") or {}).get("conditions") or ()
        before = next((one for one in conditions if one["type"] == "Progressing"), None)
        since = clock.parse(before["lastUpdateTime"]) if before and not has_moved else now
        reason, text, status = "ReplicaSetUpdated", f'ReplicaSet "{name}" is progressing.', "True"
        if is_complete:
            reason, text = "NewReplicaSetAvailable", f'ReplicaSet "{name}" has successfully progressed.'
        elif now >= since + limit or (before and before["reason"] == _TIMED_OUT and not has_moved):
            reason, text, status = (
                _TIMED_OUT,
                f'ReplicaSet "{name}" has timed out progressing.',
                "False",
            )
        updated = before["lastUpdateTime"] if before and before.get("reason") == reason and not has_moved else None
        progress = {"type": "Progressing", "status": status, "reason": reason, "message": text}
        progress["lastUpdateTime"] = updated or self._client.stamp()
        return progress, None if is_complete or status == "False" else since + limit


def _revision(content: Object) -> int:
    text = str((content["metadata"].get("annotations") or {}).get(_REVISION) or "0")
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _sum(replica_sets: list[Object], name: str) -> int:
    return sum(int((one.get("status") or {}).get(name) or 0) for one in replica_sets)


def _availability(is_available: bool) -> Object:
    if is_available:
        reason, text = "MinimumReplicasAvailable", "Deployment has minimum availability."
    else:
        reason, text = "MinimumReplicasUnavailable", "Deployment does not have minimum availability."
    return {"type": "Available", "status": str(is_available), "reason": reason, "message": text}
