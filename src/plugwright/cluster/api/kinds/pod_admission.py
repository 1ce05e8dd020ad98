"""What the admission plugins of a real API server do with a new pod: service account, priority class, runtime class.

Texts are theirs. Priority classes and runtime classes are no kinds here, so that only the two classes exist that every
cluster has.
"""

from collections.abc import Callable, Iterator

from plugwright.cluster.store import Object, ObjectKey

__all__ = ["PRIORITY_CLASSES", "admit_pod"]

PRIORITY_CLASSES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def admit_pod(pod: Object, find: Callable[[ObjectKey], Object | None]) -> tuple[Object, str]:
    """The pod with its priority, and why it is refused; empty if it is not."""
    spec = pod.get("spec") or {}
    priority = PRIORITY_CLASSES.get(str(spec.get("priorityClassName") or ""), 0)
    refusal = next(_refusals(pod, priority, find), "")
    return {**pod, "spec": {**spec, "priority": priority}}, refusal


def _refusals(pod: Object, priority: int, find: Callable[[ObjectKey], Object | None]) -> Iterator[str]:
    spec, namespace = pod.get("spec") or {}, str(pod["metadata"]["namespace"])
    account = str(spec.get("serviceAccountName") or spec.get("serviceAccount") or "default")
    if find(ObjectKey("serviceaccounts", namespace, account)) is None:
        yield f'error looking up service account {namespace}/{account}: serviceaccount "{account}" not found'
    name = spec.get("priorityClassName")
    if name and name not in PRIORITY_CLASSES:
        yield f"no PriorityClass with name {name} was found"
    given = spec.get("priority")
    if given is not None and given != priority:
        yield (
            f"the integer value of priority ({given}) must not be provided in pod spec; priority admission controller "
            f"computed {priority} from the given PriorityClass name"
        )
    if runtime_class := spec.get("runtimeClassName"):
        yield f'pod rejected: RuntimeClass "{runtime_class}" not found'
    if spec.get("overhead"):
        yield "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
