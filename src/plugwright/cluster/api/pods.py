"""What a server makes of a pod that is written: its defaults, and what it refuses, in the real words."""

from collections.abc import Iterator, Mapping
from typing import Any

from plugwright.cluster import quantities
from plugwright.cluster.api import amounts
from plugwright.cluster.api.errors import Cause
from plugwright.cluster.api.names import LABEL_RULE, is_dns_label
from plugwright.cluster.store import Object

__all__ = ["defaulted", "qos_class", "violations", "violations_of_change"]

_RESTARTS = ("Always", "OnFailure", "Never")
_MUTABLE = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds")
_UNREACHABLE = [
    {"key": f"node.kubernetes.io/{trouble}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for trouble in ("not-ready", "unreachable")
]


def defaulted(pod: Object) -> Object:
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
        **pod["spec"],
    }
    for part in ("initContainers", "containers"):
        if spec.get(part):
            spec[part] = [_defaulted(container) for container in spec[part]]
    spec["tolerations"] = _tolerations(spec.get("tolerations") or [])
    made = {**pod, "spec": spec}
    return {**made, "status": {"phase": "Pending", "qosClass": qos_class(made)}}


def _defaulted(container: Object) -> Object:
    image = str(container.get("image", ""))
    untagged = ":" not in image.rpartition("/")[2] and "@" not in image
    always = untagged or image.endswith(":latest")
    resources = dict(container.get("resources") or {})
    if resources.get("limits"):
        requests = {**resources["limits"], **(resources.get("requests") or {})}
        resources["requests"] = dict(sorted(requests.items()))
    return {
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always" if always else "IfNotPresent",
        **container,
        "resources": {part: _plain(given) for part, given in resources.items()},
    }


def _plain(given: Any) -> Any:  # type: ignore[explicit-any,unused-ignore]
    """Quantities written in one way: `2000m` is stored as `2`."""
    if not isinstance(given, Mapping):
        return given
    return {name: quantities.canonical(value) for name, value in given.items()}


def _tolerations(given: list[Object]) -> list[Object]:
    keys = {(each.get("key"), each.get("effect")) for each in given}
    return [*given, *(each for each in _UNREACHABLE if (each["key"], each["effect"]) not in keys)]


def qos_class(pod: Object) -> str:
    containers = [*(pod["spec"].get("initContainers") or []), *(pod["spec"].get("containers") or [])]
    asked = [(each.get("resources") or {}) for each in containers]
    named = [
        {*(part or {})} & {"cpu", "memory"} for each in asked for part in (each.get("limits"), each.get("requests"))
    ]
    if not any(named):
        return "BestEffort"
    if all(_is_guaranteed(each) for each in asked):
        return "Guaranteed"
    return "Burstable"


def _is_guaranteed(resources: Object) -> bool:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    return all(
        name in limits and quantities.parse(limits[name]) == quantities.parse(requests.get(name, limits[name]))
        for name in ("cpu", "memory")
    )


def violations(pod: Object) -> Iterator[Cause]:
    spec = pod.get("spec") or {}
    containers = spec.get("containers") or []
    if not containers:
        yield Cause("spec.containers", "Required value", "FieldValueRequired")
    if spec.get("restartPolicy", "Always") not in _RESTARTS:
        supported = ", ".join(f'"{each}"' for each in _RESTARTS)
        text = f'Unsupported value: "{spec["restartPolicy"]}": supported values: {supported}'
        yield Cause("spec.restartPolicy", text, "FieldValueNotSupported")
    seen: set[str] = set()
    for part in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(part) or []):
            yield from _container(f"spec.{part}[{index}]", container, seen)


def _container(place: str, container: Object, seen: set[str]) -> Iterator[Cause]:
    name = container.get("name") or ""
    if not name:
        yield Cause(f"{place}.name", "Required value", "FieldValueRequired")
    elif not is_dns_label(name):
        yield Cause(f"{place}.name", f'Invalid value: "{name}": {LABEL_RULE}')
    elif name in seen:
        yield Cause(f"{place}.name", f'Duplicate value: "{name}"', "FieldValueDuplicate")
    seen.add(name)
    if not container.get("image"):
        yield Cause(f"{place}.image", "Required value", "FieldValueRequired")
    yield from amounts.violations(f"{place}.resources", container.get("resources") or {})


def violations_of_change(before: Object, after: Object) -> Iterator[Cause]:
    """A pod's spec stays as it is, but for a few members."""
    if _fixed(before["spec"]) != _fixed(after.get("spec") or {}):
        yield Cause(
            "spec",
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to "
            "existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
            "previously negative)",
            "FieldValueForbidden",
        )


def _fixed(spec: Object) -> Object:
    fixed = {name: value for name, value in spec.items() if name not in _MUTABLE}
    for part in ("initContainers", "containers"):
        if part in fixed:
            fixed[part] = [{**container, "image": ""} for container in fixed[part]]
    return fixed
