"""Names and labels: what may be one, in the real server's words where it may not. Pure.

What containers may ask for: names of resources, and how much of them; in the real server's words. Pure.

What a server makes of a pod that is written: its defaults, and what it refuses, in the real words.

What a server refuses in a node's status: quantities of extended resources that are no whole numbers (10.6).
"""

import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from plugwright import quantity
from plugwright.cluster.api.errors import Cause
from plugwright.cluster.api.kinds import NAMESPACES, Kind
from plugwright.cluster.store import Object
from plugwright.model import DNS_LABEL, DNS_SUBDOMAIN

__all__ = [
    "LABEL_RULE",
    "defaulted_node",
    "defaulted_pod",
    "generated",
    "is_dns_label",
    "is_extended",
    "metadata_violations",
    "node_violations",
    "pod_violations",
    "qos_class",
    "resource_violations",
    "unqualified",
    "violations_of_change",
]

_PART = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LONGEST_NAME, _LONGEST_LABEL, _LONGEST_PREFIX = 253, 63, 58
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: no words
LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_PART_RULE = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    "(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def is_dns_label(name: str) -> bool:
    return bool(DNS_LABEL.fullmatch(name))


def generated(prefix: str) -> str:
    return prefix[:_LONGEST_PREFIX] + "".join(secrets.choice(_ALPHABET) for _ in range(5))


def unqualified(name: str) -> Iterator[str]:
    """Why this is no qualified name like `example.com/tape`."""
    prefix, slash, part = name.rpartition("/")
    if "/" in prefix:
        optional = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        yield f"a valid label key {_PART_RULE} {optional}"
        return
    if slash and not prefix:
        yield "prefix part must be non-empty"
    elif slash and not DNS_SUBDOMAIN.fullmatch(prefix):
        yield f"prefix part {_SUBDOMAIN_RULE}"
    if slash and len(prefix) > _LONGEST_NAME:
        yield f"prefix part must be no more than {_LONGEST_NAME} bytes"
    if not part:
        yield "name part must be non-empty"
    elif len(part) > _LONGEST_LABEL:
        yield f"name part must be no more than {_LONGEST_LABEL} bytes"
    if not _PART.fullmatch(part):
        yield f"name part {_PART_RULE}"


def metadata_violations(kind: Kind, metadata: Object) -> Iterator[Cause]:
    yield from _name(kind, str(metadata.get("name") or ""))
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    yield from _keys("metadata.labels", labels)
    for _, value in sorted(labels.items()):
        yield from _value(value)
    yield from _keys("metadata.annotations", annotations)


def _name(kind: Kind, name: str) -> Iterator[Cause]:
    if not name:
        yield Cause("metadata.name", "Required value: name or generateName is required", "FieldValueRequired")
    elif len(name) > _LONGEST_NAME:
        yield Cause("metadata.name", f'Invalid value: "{name}": must be no more than {_LONGEST_NAME} characters')
    elif kind is NAMESPACES and not is_dns_label(name):
        yield Cause("metadata.name", f'Invalid value: "{name}": {LABEL_RULE}')
    elif not DNS_SUBDOMAIN.fullmatch(name):
        yield Cause("metadata.name", f'Invalid value: "{name}": {_SUBDOMAIN_RULE}')


def _keys(place: str, given: Mapping[str, str]) -> Iterator[Cause]:
    for key in sorted(given):
        for reason in unqualified(key.lower() if place.endswith("annotations") else key):
            yield Cause(place, f'Invalid value: "{key}": {reason}')


def _value(value: str) -> Iterator[Cause]:
    if len(value) > _LONGEST_LABEL:
        yield Cause("metadata.labels", f'Invalid value: "{value}": must be no more than {_LONGEST_LABEL} bytes')
    elif value and not _PART.fullmatch(value):
        yield Cause("metadata.labels", f'Invalid value: "{value}": {_VALUE_RULE}')


_OF_CONTAINERS = ("cpu", "memory", "ephemeral-storage")
_HUGE = "hugepages-"
_STANDARD = frozenset(
    {"configmaps", "persistentvolumeclaims", "pods", "replicationcontrollers", "resourcequotas", "secrets", "services",
     "storage"}
)  # fmt: skip


def is_extended(resource: str) -> bool:
    """Of a domain that is not Kubernetes' own, and fit to be limited by a quota."""
    foreign = "/" in resource and "kubernetes.io/" not in resource
    return foreign and not resource.startswith("requests.") and not any(unqualified(f"requests.{resource}"))


def resource_violations(place: str, resources: Object) -> Iterator[Cause]:
    """`place` is where the container's resources are."""
    for part in ("limits", "requests"):
        for resource, value in sorted((resources.get(part) or {}).items()):
            at = f"{place}.{part}[{resource}]"
            yield from (Cause(at, f'Invalid value: "{resource}": {why}') for why in _resource_name(resource))
            yield from (Cause(at, f'Invalid value: "{value}": {why}') for why in _amount(resource, str(value)))
    yield from _overcommitted(place, resources)


def _resource_name(resource: str) -> Iterator[str]:
    wrong = list(unqualified(resource))
    yield from wrong
    if "/" not in resource:
        if resource.startswith((*_OF_CONTAINERS, _HUGE)):
            return
        if not wrong and resource not in _STANDARD:
            yield "must be a standard resource type or fully qualified"
        yield "must be a standard resource for containers"
    elif "kubernetes.io/" not in resource and not is_extended(resource):
        yield "doesn't follow extended resource name standard"


def _amount(resource: str, text: str) -> Iterator[str]:
    if quantity.zero_if_invalid(text) < 0:
        yield "must be greater than or equal to 0"
    if is_extended(resource) and quantity.zero_if_invalid(text) % 1:
        yield "must be an integer"


def _overcommitted(place: str, resources: Object) -> Iterator[Cause]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for resource, value in sorted(requests.items()):
        whole = is_extended(resource) or resource.startswith(_HUGE)  # what cannot be promised twice
        if resource not in limits:
            if whole:
                text = "Required value: Limit must be set for non overcommitable resources"
                yield Cause(f"{place}.limits", text, "FieldValueRequired")
            continue
        request, limit = quantity.zero_if_invalid(value), quantity.zero_if_invalid(limits[resource])
        if whole and request != limit:
            text = f'Invalid value: "{value}": must be equal to {resource} limit of {limits[resource]}'
            yield Cause(f"{place}.requests", text)
        elif request > limit:
            text = f'Invalid value: "{value}": must be less than or equal to {resource} limit of {limits[resource]}'
            yield Cause(f"{place}.requests", text)


_RESTARTS = ("Always", "OnFailure", "Never")
_MUTABLE = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds")
_UNREACHABLE = [
    {"key": f"node.kubernetes.io/{trouble}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for trouble in ("not-ready", "unreachable")
]


def defaulted_pod(pod: Object) -> Object:
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
    return {name: quantity.canonical(value) for name, value in given.items()}


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
        name in limits
        and quantity.zero_if_invalid(limits[name]) == quantity.zero_if_invalid(requests.get(name, limits[name]))
        for name in ("cpu", "memory")
    )


def pod_violations(pod: Object) -> Iterator[Cause]:
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
    yield from resource_violations(f"{place}.resources", container.get("resources") or {})


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


_INFO = (
    "architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "kubeletVersion",
    "machineID", "operatingSystem", "osImage", "systemUUID",
)  # fmt: skip
_STATUS = {"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}, "nodeInfo": dict.fromkeys(_INFO, "")}


def defaulted_node(node: Object) -> Object:
    """What a node says of its capacity alone is taken to be allocatable; a quantity is written in one way."""
    status = {**_STATUS, **(node.get("status") or {})}
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = status["capacity"]
    for part in ("capacity", "allocatable"):
        if part in status:
            status[part] = {name: quantity.canonical(value) for name, value in status[part].items()}
    return {**node, "status": status}


def node_violations(node: Object) -> Iterator[Cause]:
    status = node.get("status") or {}
    for part in ("capacity", "allocatable"):
        for name, value in sorted((status.get(part) or {}).items()):
            yield from _capacity_amount(f"status.{part}.{name}", name, value)


def _capacity_amount(place: str, name: str, value: object) -> Iterator[Cause]:
    text = str(value)
    if quantity.zero_if_invalid(text) < 0:
        yield Cause(place, f'Invalid value: "{text}": must be greater than or equal to 0')
    elif is_extended(name) and quantity.zero_if_invalid(text) % 1:
        yield Cause(place, f'Invalid value: "{text}": must be an integer')
