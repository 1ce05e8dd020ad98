"""Admission of pods: what depends on other objects, such as a class that the pod names and that does not exist.

A pod that names its node is refused, too, if it asks for something that is not emulated: no scheduler keeps it Pending.
"""

from plugwright.apiserver import pod_fields
from plugwright.apiserver.kinds.priority_classes import admit_priority
from plugwright.apiserver.store import Object, ObjectKey, ObjectLookup

__all__ = ["admit"]


def admit(pod: Object, objects: ObjectLookup) -> str | None:
    """Fills in its priority; why the pod, which has its defaults, is forbidden, or None."""
    spec, namespace = pod["spec"], str(pod["metadata"].get("namespace") or "")
    account = str(spec["serviceAccountName"])
    if objects.get(ObjectKey("serviceaccounts", namespace, account)) is None:
        return f'error looking up service account {namespace}/{account}: serviceaccount "{account}" not found'
    if refusal := admit_priority(pod, objects):
        return refusal
    if spec.get("runtimeClassName"):
        return f'pod rejected: RuntimeClass "{spec["runtimeClassName"]}" not found'
    if spec.get("overhead"):
        return "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
    if spec.get("nodeName"):  # others wait in the scheduler
        return pod_fields.not_emulated(spec) or None
    return None
