"""The `DisruptionTarget` condition, set by controllers on a pod before they delete it."""

from dataclasses import dataclass

from plugwright.apiserver.registry import ResourcePath
from plugwright.apiserver.store import Object
from plugwright.cluster.events import ClusterClient

__all__ = ["DisruptionReason", "add_condition"]

_MANAGER = "kube-controller-manager"
_TYPE = "DisruptionTarget"


@dataclass(frozen=True, slots=True)
class DisruptionReason:
    reason: str
    message: str


def add_condition(client: ClusterClient, path: ResourcePath, reason: DisruptionReason, phase: str = "") -> None:
    """Adds the condition, and sets the phase unless it is empty."""
    now = client.stamp()

    def disrupted(pod: Object) -> Object:
        status = pod.get("status") or {}
        others = [condition for condition in status.get("conditions") or () if condition["type"] != _TYPE]
        condition = {
            "type": _TYPE,
            "observedGeneration": pod["metadata"].get("generation", 1),
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": now,
            "reason": reason.reason,
            "message": reason.message,
        }
        changed = {"conditions": [*others, condition], **({"phase": phase} if phase else {})}
        return {**pod, "status": {**status, **changed}}

    client.writer.change(ResourcePath(path.kind, path.namespace, path.name, "status"), disrupted, _MANAGER)
