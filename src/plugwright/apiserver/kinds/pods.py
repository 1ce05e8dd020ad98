"""Pods: grace periods, and the columns of `kubectl get pods`.

`pod_defaults` defines defaults, `pod_validation` rules.
"""

from datetime import datetime

from plugwright.apiserver import pod_fields
from plugwright.apiserver.kinds import pod_defaults, pod_validation
from plugwright.apiserver.kinds.kind import Kind
from plugwright.apiserver.kinds.pod_validation import pod_updates
from plugwright.apiserver.kinds.priority_classes import admit_priority
from plugwright.apiserver.printers import AGE, NAME, Column, age, none_if_empty
from plugwright.apiserver.store import Object, ObjectKey, ObjectLookup

__all__ = ["PODS"]

_GATED = "SchedulingGated"
_LONGEST_GRACE_PERIOD = 10 * 365 * 86_400  # seconds; a later end can be out of the range of dates


def _grace_period(pod: Object, requested: int | None) -> int:
    """The grace period; zero for a pod without a node or a finished one, for which no kubelet must be awaited."""
    if not pod["spec"].get("nodeName") or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    seconds = pod["spec"].get("terminationGracePeriodSeconds", 30) if requested is None else requested
    return min(max(0, int(seconds)), _LONGEST_GRACE_PERIOD)


def _prepare_status(pod: Object) -> Object:
    """Sets the pod's address to the first of its addresses, whichever of the two a writer gives."""
    status = {**(pod.get("status") or {})}
    addresses = [address.get("ip") for address in status.get("podIPs") or []]
    if status.get("podIP") and addresses[:1] != [status["podIP"]]:
        status["podIPs"] = [{"ip": status["podIP"]}]
    elif addresses:
        status["podIP"] = addresses[0]
    return {**pod, "status": status}


def _ready(pod: Object, _now: datetime) -> str:
    ready = sum(bool(status.get("ready")) and "running" in status.get("state", {}) for status in _statuses(pod))
    return f"{ready}/{len(pod['spec'].get('containers') or [])}"


def _status(pod: Object, _now: datetime) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    status = pod.get("status") or {}
    reasons = (_reason(container) for container in reversed(_statuses(pod)))
    reason = _init_status(pod) or next((reason for reason in reasons if reason), "")
    if any(condition.get("reason") == _GATED for condition in status.get("conditions") or ()):
        return _GATED
    return reason or status.get("reason") or status.get("phase") or "Unknown"


def _init_status(pod: Object) -> str:
    """`Init:1/2` or `Init:Error` while init containers run, otherwise empty."""
    init_containers = pod["spec"].get("initContainers") or []
    sidecars = {container["name"] for container in init_containers if container.get("restartPolicy") == "Always"}
    for index, status in enumerate((pod.get("status") or {}).get("initContainerStatuses") or []):
        has_succeeded = status.get("state", {}).get("terminated", {}).get("exitCode") == 0
        if has_succeeded or (status["name"] in sidecars and status.get("started")):
            continue
        reason = _reason(status)
        if reason and reason != "PodInitializing":
            return f"Init:{reason}"
        return f"Init:{index}/{len(init_containers)}"
    return ""


def _restarts(pod: Object, now: datetime) -> str:
    count = sum(int(status.get("restartCount", 0)) for status in _statuses(pod))
    ends = [status.get("lastState", {}).get("terminated", {}).get("finishedAt") for status in _statuses(pod)]
    last = max((end for end in ends if end), default=None)
    return f"{count} ({age(last, now)} ago)" if count and last else str(count)


def _statuses(pod: Object) -> list[Object]:
    return (pod.get("status") or {}).get("containerStatuses") or []


def _reason(container_status: Object) -> str:
    state = container_status.get("state", {})
    return str(state.get("waiting", {}).get("reason") or state.get("terminated", {}).get("reason") or "")


def _admit(pod: Object, objects: ObjectLookup) -> str | None:
    """Fills in the priority of a pod with its defaults; returns why the pod is forbidden, or None.

    A pod with its own nodeName is also forbidden if it needs something that is not emulated, because no scheduler keeps
    it Pending.
    """
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
    if spec.get("nodeName"):  # the scheduler keeps others waiting
        return pod_fields.not_emulated(spec) or None
    return None


PODS = Kind(
    plural="pods",
    name="Pod",
    short_names=("po",),
    categories=("all",),
    has_status=True,
    subresources=("attach", "binding", "eviction", "exec", "log", "portforward"),
    prepare_for_create=pod_defaults.prepare_for_create,
    prepare_for_update=pod_defaults.prepare_for_update,
    admit=_admit,
    validate=pod_validation.validate,
    validate_create=pod_validation.validate_create,
    validate_update=pod_updates.validate_update,
    prepare_status=_prepare_status,
    admitted_fields=frozenset(
        {"preemptionPolicy", "priority", "priorityClassName", "serviceAccount", "serviceAccountName", "tolerations"}
    ),
    validate_status=pod_validation.validate_status,
    grace_period=_grace_period,
    returns_deleted_object=True,
    columns=(
        NAME,
        Column("Ready", _ready),
        Column("Status", _status),
        Column("Restarts", _restarts),
        AGE,
        Column("IP", lambda pod, _: none_if_empty((pod.get("status") or {}).get("podIP")), wide=True),
        Column("Node", lambda pod, _: none_if_empty(pod["spec"].get("nodeName")), wide=True),
        Column("Nominated Node", lambda _pod, _now: "<none>", wide=True),
        Column("Readiness Gates", lambda _pod, _now: "<none>", wide=True),
    ),
    selectable_fields=frozenset(
        {
            "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
            "status.phase", "status.podIP", "status.nominatedNodeName",
        }
    ),
    computed_fields={
        "spec.hostNetwork": lambda pod: bool(pod["spec"].get("hostNetwork")),
        "status.podIPs": lambda _pod: "",  # kube-apiserver accepts it, but compares it with nothing
    },
)  # fmt: skip
