"""Objects as rows: the columns that `kubectl get` prints. Pure.

A pod's status in one word, as `kubectl get pods` shows it. Pure.
"""

from collections.abc import Callable, Sequence
from datetime import datetime

from plugwright.cluster import clock
from plugwright.cluster.api.kinds import EVENTS, LEASES, NAMESPACES, NODES, PODS, Kind
from plugwright.cluster.store import Object

__all__ = ["age", "pod_cells", "table"]


def pod_cells(pod: Object, age: Callable[[object], str]) -> tuple[str, str, str, str, str]:
    """Ready, status, restarts, address and node."""
    status, spec = pod.get("status") or {}, pod["spec"]
    containers = status.get("containerStatuses") or []
    inits = status.get("initContainerStatuses") or []
    ready = sum(bool(each.get("ready")) and "running" in each.get("state", {}) for each in containers)
    restarts = sum(int(each.get("restartCount", 0)) for each in containers)
    word = status.get("reason") or status.get("phase") or "Unknown"
    word = _initialising(spec, inits) or _waiting(containers) or word
    if pod["metadata"].get("deletionTimestamp"):
        word = "Terminating"
    return (
        f"{ready}/{len(spec.get('containers') or [])}",
        word,
        _restarts(restarts, containers, age),
        status.get("podIP") or "<none>",
        spec.get("nodeName") or "<none>",
    )


def _initialising(spec: Object, inits: list[Object]) -> str:
    sidecars = {each["name"] for each in spec.get("initContainers") or [] if each.get("restartPolicy") == "Always"}
    for index, each in enumerate(inits):
        state = each.get("state", {})
        if state.get("terminated", {}).get("exitCode") == 0 and "terminated" in state:
            continue
        if each["name"] in sidecars and each.get("started"):
            continue
        reason = state.get("waiting", {}).get("reason") or state.get("terminated", {}).get("reason")
        if reason and reason != "PodInitializing":
            return f"Init:{reason}"
        return f"Init:{index}/{len(spec.get('initContainers') or [])}"
    return ""


def _waiting(containers: list[Object]) -> str:
    for each in reversed(containers):
        state = each.get("state", {})
        reason = state.get("waiting", {}).get("reason") or state.get("terminated", {}).get("reason")
        if reason:
            return str(reason)
    return ""


def _restarts(count: int, containers: list[Object], age: Callable[[object], str]) -> str:
    ends = [each.get("lastState", {}).get("terminated", {}).get("finishedAt") for each in containers]
    last = max((each for each in ends if each), default=None)
    return f"{count} ({age(last)} ago)" if count and last else str(count)


_Cells = Callable[[Object, datetime], list[object]]
_WIDE = 1  # a column's priority: shown with --output=wide


def table(kind: Kind, items: Sequence[Object], now: datetime, include: str = "Metadata") -> Object:
    """`include` says what of each object goes along: `None`, `Metadata` or `Object`."""
    columns, cells = _COLUMNS.get(kind.plural, _DEFAULT)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "columnDefinitions": [_column(name) for name in columns],
        "rows": [{"cells": cells(item, now), **_included(item, include)} for item in items],
    }


def _column(name: str) -> Object:
    wide = name.startswith("+")
    title = name.removeprefix("+")
    return {
        "name": title,
        "type": "integer" if title == "Data" else "string",
        "format": "name" if title == "Name" else "",
        "description": "",
        "priority": _WIDE if wide else 0,
    }


def _included(item: Object, include: str) -> Object:
    if include == "None":
        return {}
    if include == "Object":
        return {"object": item}
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": item["metadata"]}
    return {"object": partial}


def age(since: object, now: datetime) -> str:
    """As kubectl tells it: `45s`, `4m5s`, `3h`."""
    if not isinstance(since, str):
        return "<unknown>"
    seconds = max(0, int((now - clock.read(since)).total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    return f"{days}d" if days < 730 else _two(days // 365, "y", days % 365, "d")


def _two(much: int, unit: str, rest: int, smaller: str) -> str:
    return f"{much}{unit}{rest}{smaller}" if rest else f"{much}{unit}"


def _age(item: Object, now: datetime) -> str:
    return age(item["metadata"].get("creationTimestamp"), now)


def _pod(item: Object, now: datetime) -> list[object]:
    ready, status, restarts, address, node = pod_cells(item, lambda since: age(since, now))
    return [item["metadata"]["name"], ready, status, restarts, _age(item, now), address, node, "<none>", "<none>"]


def _node(item: Object, now: datetime) -> list[object]:
    info = item.get("status", {}).get("nodeInfo", {})
    addresses = {each["type"]: each["address"] for each in item.get("status", {}).get("addresses", [])}
    return [
        item["metadata"]["name"],
        _node_status(item),
        _roles(item),
        _age(item, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", "<none>"),
        addresses.get("ExternalIP", "<none>"),
        info.get("osImage") or "<unknown>",
        _kernel(info),
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def _kernel(info: Object) -> str:
    kernel, architecture = info.get("kernelVersion") or "<unknown>", info.get("architecture")
    return f"{kernel} ({architecture})" if architecture else str(kernel)


def _node_status(item: Object) -> str:
    conditions = item.get("status", {}).get("conditions", [])
    ready = next((each["status"] for each in conditions if each["type"] == "Ready"), None)
    words = ["Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"]
    return ",".join([*words, "SchedulingDisabled"] if item.get("spec", {}).get("unschedulable") else words)


def _roles(item: Object) -> str:
    prefix = "node-role.kubernetes.io/"
    roles = [each.removeprefix(prefix) for each in item["metadata"].get("labels") or {} if each.startswith(prefix)]
    return ",".join(sorted(roles)) or "<none>"


def _namespace(item: Object, now: datetime) -> list[object]:
    return [item["metadata"]["name"], item.get("status", {}).get("phase", ""), _age(item, now)]


def _event(item: Object, now: datetime) -> list[object]:
    involved, source = item.get("involvedObject", {}), item.get("source", {})
    last = item.get("lastTimestamp") or item.get("eventTime") or item["metadata"].get("creationTimestamp")
    first = item.get("firstTimestamp") or item.get("eventTime") or last
    return [
        age(last, now),
        item.get("type", ""),
        item.get("reason", ""),
        f"{involved.get('kind', '').lower()}/{involved.get('name', '')}",
        involved.get("fieldPath", ""),
        ", ".join(each for each in (source.get("component"), source.get("host")) if each),
        str(item.get("message", "")).strip(),
        age(first, now),
        item.get("count", 1),
        item["metadata"]["name"],
    ]


def _lease(item: Object, now: datetime) -> list[object]:
    return [item["metadata"]["name"], item.get("spec", {}).get("holderIdentity", ""), _age(item, now)]


def _config_map(item: Object, now: datetime) -> list[object]:
    count = len(item.get("data") or {}) + len(item.get("binaryData") or {})
    return [item["metadata"]["name"], count, _age(item, now)]


def _plain(item: Object, now: datetime) -> list[object]:
    return [item["metadata"]["name"], _age(item, now)]


_DEFAULT: tuple[tuple[str, ...], _Cells] = (("Name", "Age"), _plain)
_COLUMNS: dict[str, tuple[tuple[str, ...], _Cells]] = {
    PODS.plural: (
        ("Name", "Ready", "Status", "Restarts", "Age", "+IP", "+Node", "+Nominated Node", "+Readiness Gates"),
        _pod,
    ),
    NODES.plural: (
        (
            "Name", "Status", "Roles", "Age", "Version", "+Internal-IP", "+External-IP", "+OS-Image",
            "+Kernel-Version", "+Container-Runtime",
        ),
        _node,
    ),
    NAMESPACES.plural: (("Name", "Status", "Age"), _namespace),
    EVENTS.plural: (
        (
            "Last Seen", "Type", "Reason", "Object", "+Subobject", "+Source", "Message", "+First Seen", "+Count",
            "+Name",
        ),
        _event,
    ),
    LEASES.plural: (("Name", "Holder", "Age"), _lease),
    "configmaps": (("Name", "Data", "Age"), _config_map),
}  # fmt: skip
