"""Pods: defaults, validation, grace periods, and the columns of `kubectl get pods`.

Error texts are kube-apiserver's own; rules about names and resources are `validation`'s.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from plugwright import quantity
from plugwright.cluster.api import validation
from plugwright.cluster.api.kinds.kind import Kind
from plugwright.cluster.api.printers import AGE, NAME, Column, age, none_if_empty
from plugwright.cluster.api.validation import FieldError
from plugwright.cluster.store import Object

__all__ = ["PODS"]

_RESTART_POLICIES = ("Always", "OnFailure", "Never")
_MUTABLE_FIELDS = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds")
_DEFAULT_TOLERATIONS = [
    {"key": f"node.kubernetes.io/{condition}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for condition in ("not-ready", "unreachable")
]
_LONGEST_GRACE_PERIOD = 10 * 365 * 86_400  # seconds; a later end may have no date
_CONTAINER_LISTS = ("initContainers", "containers")


def _prepare_for_create(pod: Object) -> Object:
    prepared = _with_defaults(pod)
    prepared["metadata"]["generation"] = 1
    return prepared


def _prepare_for_update(before: Object, after: Object) -> Object:
    """The generation counts the changes of the spec."""
    prepared = _with_defaults(after)
    is_changed = prepared["spec"] != before["spec"]
    prepared["metadata"]["generation"] = before["metadata"].get("generation", 1) + is_changed
    return prepared


def _with_defaults(pod: Object) -> Object:
    spec = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
        "enableServiceLinks": True,
        **(pod.get("spec") or {}),
    }
    for part in _CONTAINER_LISTS:
        if spec.get(part):
            spec[part] = [_container_with_defaults(container) for container in spec[part]]
    tolerations = spec.get("tolerations") or []
    tolerated = {(toleration.get("key"), toleration.get("effect")) for toleration in tolerations}
    spec["tolerations"] = [
        *tolerations,
        *(default for default in _DEFAULT_TOLERATIONS if (default["key"], default["effect"]) not in tolerated),
    ]
    return {**pod, "spec": spec, "status": {"phase": "Pending", "qosClass": _qos_class(spec)}}


def _container_with_defaults(container: Object) -> Object:
    image = str(container.get("image", ""))
    is_untagged = ":" not in image.rpartition("/")[2] and "@" not in image
    resources = dict(container.get("resources") or {})
    if resources.get("limits"):
        requests = {**resources["limits"], **(resources.get("requests") or {})}
        resources["requests"] = dict(sorted(requests.items()))
    return {
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always" if is_untagged or image.endswith(":latest") else "IfNotPresent",
        **container,
        "resources": {part: _canonical(amounts) for part, amounts in resources.items()},
    }


def _canonical(amounts: Any) -> Any:  # type: ignore[explicit-any,unused-ignore]
    """`2000m` is stored as `2`; resource claims, which are a list, stay as they are."""
    if not isinstance(amounts, Mapping):
        return amounts
    return {resource: quantity.canonical(amount) for resource, amount in amounts.items()}


def _qos_class(spec: Object) -> str:
    resources = [container.get("resources") or {} for part in _CONTAINER_LISTS for container in spec.get(part) or []]
    if not any(
        {*(amounts.get(part) or {})} & {"cpu", "memory"} for amounts in resources for part in ("limits", "requests")
    ):
        return "BestEffort"
    return "Guaranteed" if all(map(_is_guaranteed, resources)) else "Burstable"


def _is_guaranteed(resources: Object) -> bool:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    return all(
        resource in limits
        and quantity.zero_if_invalid(limits[resource])
        == quantity.zero_if_invalid(requests.get(resource, limits[resource]))
        for resource in ("cpu", "memory")
    )


def _validate(pod: Object) -> Iterator[FieldError]:
    spec = pod.get("spec") or {}
    if not spec.get("containers"):
        yield FieldError("spec.containers", "Required value", "FieldValueRequired")
    if spec.get("restartPolicy", "Always") not in _RESTART_POLICIES:
        supported = ", ".join(f'"{policy}"' for policy in _RESTART_POLICIES)
        text = f'Unsupported value: "{spec["restartPolicy"]}": supported values: {supported}'
        yield FieldError("spec.restartPolicy", text, "FieldValueNotSupported")
    names: set[str] = set()
    for part in _CONTAINER_LISTS:
        for index, container in enumerate(spec.get(part) or []):
            yield from _validate_container(f"spec.{part}[{index}]", container, names)


def _validate_container(field: str, container: Object, names: set[str]) -> Iterator[FieldError]:
    """`names` are those of the containers before it, to which its own is added."""
    name = container.get("name") or ""
    if not name:
        yield FieldError(f"{field}.name", "Required value", "FieldValueRequired")
    elif error := next(validation.dns_label_errors(name), None):
        yield FieldError(f"{field}.name", f'Invalid value: "{name}": {error}')
    elif name in names:
        yield FieldError(f"{field}.name", f'Duplicate value: "{name}"', "FieldValueDuplicate")
    names.add(name)
    if not container.get("image"):
        yield FieldError(f"{field}.image", "Required value", "FieldValueRequired")
    yield from validation.validate_resources(f"{field}.resources", container.get("resources") or {})


def _validate_update(before: Object, after: Object) -> Iterator[FieldError]:
    if _immutable_part(before["spec"]) != _immutable_part(after.get("spec") or {}):
        yield FieldError(
            "spec",
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to "
            "existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
            "previously negative)",
            "FieldValueForbidden",
        )


def _immutable_part(spec: Object) -> Object:
    immutable = {name: value for name, value in spec.items() if name not in _MUTABLE_FIELDS}
    for part in _CONTAINER_LISTS:
        if part in immutable:
            immutable[part] = [{**container, "image": ""} for container in immutable[part]]
    return immutable


def _grace_period(pod: Object, requested: int | None) -> int:
    """Zero for a pod that is on no node or has finished: there is no kubelet to wait for."""
    if not pod["spec"].get("nodeName") or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    seconds = pod["spec"].get("terminationGracePeriodSeconds", 30) if requested is None else requested
    return min(max(0, int(seconds)), _LONGEST_GRACE_PERIOD)


def _ready(pod: Object, _now: datetime) -> str:
    ready = sum(bool(status.get("ready")) and "running" in status.get("state", {}) for status in _statuses(pod))
    return f"{ready}/{len(pod['spec'].get('containers') or [])}"


def _status(pod: Object, _now: datetime) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    status = pod.get("status") or {}
    reasons = (_reason(container) for container in reversed(_statuses(pod)))
    reason = _init_status(pod) or next((reason for reason in reasons if reason), "")
    return reason or status.get("reason") or status.get("phase") or "Unknown"


def _init_status(pod: Object) -> str:
    """`Init:1/2` or `Init:Error` while init containers run, else empty."""
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


PODS = Kind(
    plural="pods",
    name="Pod",
    short_names=("po",),
    categories=("all",),
    has_status=True,
    subresources=("binding", "eviction", "log"),
    prepare_for_create=_prepare_for_create,
    prepare_for_update=_prepare_for_update,
    admitted_fields=frozenset({"preemptionPolicy", "priority", "serviceAccount", "serviceAccountName", "tolerations"}),
    validate=_validate,
    validate_update=_validate_update,
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
        "status.podIPs": lambda _pod: "",  # kube-apiserver takes it, and compares it with nothing
    },
)  # fmt: skip
