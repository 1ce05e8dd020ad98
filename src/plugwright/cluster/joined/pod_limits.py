"""Emits an event for pod fields not emulated by joined nodes.

The pod runs anyway: such nodes are for rehearsals of scheduling and devices, which an indefinite wait for a volume
would prevent. Only with processes an unavailable volume blocks its containers.
"""

from plugwright.apiserver.pod_fields import POD_FIELDS, Treatment
from plugwright.apiserver.store import Object
from plugwright.cluster.events import EventRecord, EventRecorder, EventSource, NodeClient

__all__ = ["PodLimits", "not_emulated_here"]

# Done here not by the kubelet, but by the cluster's own scheduler and controllers.
_OF_THE_CLUSTER = ("evictionResponders", "schedulingGroup")
# A pod can refer to objects which exist only on a real API server.
_OF_REAL_CLUSTERS = (
    "containers.volumeDevices",
    "ephemeralContainers",
    "runtimeClassName",
    "volumes.persistentVolumeClaim",
)
_FIELDS = tuple(
    field
    for field in POD_FIELDS
    if (field.treatment is Treatment.NOT_EMULATED and field.path not in _OF_THE_CLUSTER)
    or field.path in _OF_REAL_CLUSTERS
)


def not_emulated_here(spec: Object) -> list[str]:
    """The ignored fields of a pod's spec."""
    return [field.path for field in _FIELDS if field.is_asked_for(spec)]


class PodLimits:
    """Records the event once for each pod, and again when its spec has gained such fields."""

    def __init__(self, client: NodeClient) -> None:
        self._client = client
        self._examined: dict[str, tuple[int, list[str]]] = {}  # generation and fields, by uid

    def examine(self, pod: Object) -> None:
        uid, generation = pod["metadata"]["uid"], int(pod["metadata"].get("generation") or 0)
        before, known = self._examined.get(uid, (None, []))
        if before == generation:
            return
        fields = not_emulated_here(pod["spec"])
        self._examined[uid] = generation, fields
        if fields != known and fields:
            recorder = EventRecorder(self._client, EventSource("kubelet", pod["spec"]["nodeName"]))
            text = f"plugwright does not emulate {', '.join(fields)} on this node"
            recorder.record(pod, EventRecord("NotEmulated", text, "Warning"))

    def forget(self, uid: str) -> None:
        self._examined.pop(uid, None)
