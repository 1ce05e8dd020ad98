"""Admission of pods: what the API server's plugins refuse because of objects that a pod names and that do not exist.

A pod that names its node is refused, too, if it asks for something that is not emulated: no scheduler keeps it Pending.
"""

from collections.abc import Callable

from plugwright.cluster import pod_fields
from plugwright.cluster.api.kinds.pod_defaults import SYSTEM_PRIORITIES
from plugwright.cluster.store import Object, ObjectKey

__all__ = ["admission_error"]

_PRIORITY = "priority admission controller computed"


def admission_error(pod: Object, find: Callable[[ObjectKey], Object | None]) -> str | None:
    """Why the pod is forbidden; it has its defaults, `find` looks up objects."""
    spec, namespace = pod["spec"], str(pod["metadata"].get("namespace") or "")
    account, priority_class = str(spec["serviceAccountName"]), str(spec.get("priorityClassName") or "")
    computed = spec["priority"] if priority_class else 0
    if find(ObjectKey("serviceaccounts", namespace, account)) is None:
        return f'error looking up service account {namespace}/{account}: serviceaccount "{account}" not found'
    if priority_class and priority_class not in SYSTEM_PRIORITIES:
        return f"no PriorityClass with name {priority_class} was found"
    if spec["priority"] != computed:
        rule = f"the integer value of priority ({spec['priority']}) must not be provided in pod spec"
        return f"{rule}; {_PRIORITY} {computed} from the given PriorityClass name"
    if spec["preemptionPolicy"] != "PreemptLowerPriority":
        rule = f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be provided in pod spec"
        return f"{rule}; {_PRIORITY} PreemptLowerPriority from the given PriorityClass name"
    if spec.get("runtimeClassName"):
        return f'pod rejected: RuntimeClass "{spec["runtimeClassName"]}" not found'
    if spec.get("overhead"):
        return "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
    if spec.get("nodeName"):  # others wait in the scheduler
        return pod_fields.not_emulated(spec) or None
    return None
