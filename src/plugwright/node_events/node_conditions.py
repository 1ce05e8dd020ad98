"""The Node condition of each resource: computed from a report (pure), and written by server-side apply.

A condition is True if there is a problem, as for those of the kubelet and of node-problem-detector: devices have failed
or are missing. A cordon is not a problem. The condition is Unknown if the daemon does not respond.

The conditions of one release have their own field manager. Each write applies all of them, so the API server removes
those of resources that are no longer served, and other releases on the node keep theirs.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec

from plugwright.kube.api_client import ApiClient, Document, segment
from plugwright.model import natural_order, some
from plugwright.node_events.device_changes import described_device, is_failed, is_gone
from plugwright.sdk.node_report import NodeReport, ResourceReport
from plugwright.text import clean

__all__ = [
    "PREFIX",
    "NodeCondition",
    "NodeConditions",
    "condition_type",
    "conditions",
    "field_manager",
    "managed",
    "unknown",
]

PREFIX = "plugwright.dev/"  # of the condition types
_NAMED = 4  # devices named in a message


class NodeCondition(msgspec.Struct, frozen=True):
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


def condition_type(resource: str) -> str:
    """`plugwright.dev/nvidia.com_gpu`; no domain contains an underscore, so types of resources never collide."""
    return PREFIX + resource.replace("/", "_", 1)


def field_manager(release: str) -> str:
    return f"plugwright-node-events {release}".strip()[:128]


def conditions(report: NodeReport) -> dict[str, NodeCondition]:
    """Conditions by type. A resource served by another daemon of the node gets its condition from that daemon."""
    if report.daemon.stalled:
        reason = f"the daemon is blocked: {clean(report.daemon.stalled)}"
        return unknown(map(condition_type, (each.name for each in report.resources if not each.owner)), reason)
    return {condition_type(each.name): _condition(each) for each in report.resources if not each.owner}


def unknown(types: Iterable[str], reason: str) -> dict[str, NodeCondition]:
    return {each: NodeCondition("Unknown", "DaemonNotAnswering", reason[:512]) for each in types}


def _condition(resource: ResourceReport) -> NodeCondition:
    devices = resource.devices
    failed = [described_device(device) for device in devices if is_failed(device)]
    gone = [device.id for device in devices if is_gone(device)]
    cordoned = [f"{device.id}: {device.cordoned}" for device in devices if device.cordoned]
    texts = [clean(resource.shortfall)] if resource.shortfall else []
    texts += [_listed(gone, len(devices), "are gone")] if gone else []
    texts += [_listed(failed, len(devices), "have failed")] if failed else []
    problem = bool(texts)
    texts += [_listed(cordoned, len(devices), "are cordoned")] if cordoned else []
    message = "; ".join(texts)[:1024]
    if problem:
        is_other = resource.shortfall_code in ("unexpected", "other-model") and not gone
        reason = (
            "DevicesUnexpected" if is_other else "DevicesMissing" if resource.shortfall or gone else "DevicesFailed"
        )
        return NodeCondition("True", "DevicesFailed" if failed and is_other else reason, message)
    if resource.state == "idle":
        return NodeCondition("False", "Idle", clean(resource.reason)[:512])
    if not devices and (why := resource.discovery or resource.reason or resource.fault):
        return NodeCondition("Unknown", "NoDeviceList", clean(why)[:512])
    if cordoned:
        return NodeCondition("False", "DevicesCordoned", message)
    return NodeCondition("False", "DevicesHealthy", f"no device of {clean(resource.name)} has failed or is missing")


def _listed(texts: Iterable[str], count: int, what: str) -> str:
    texts = sorted(map(clean, texts), key=natural_order)
    return f"{len(texts)} of {count} devices {what}: {some(texts, _NAMED)}"


def managed(node: Document, manager: str) -> dict[str, NodeCondition]:
    """The conditions of a Node written by this field manager, by type."""
    owned: set[str] = set()
    for entry in node["metadata"].get("managedFields") or ():
        if entry.get("manager") == manager and entry.get("operation") == "Apply":
            fields = ((entry.get("fieldsV1") or {}).get("f:status") or {}).get("f:conditions") or {}
            owned |= {json.loads(key[2:])["type"] for key in fields if key.startswith("k:")}
    found = (node.get("status") or {}).get("conditions") or ()
    return {
        each["type"]: NodeCondition(each["status"], each.get("reason", ""), each.get("message", ""))
        for each in found
        if each["type"] in owned and each["type"].startswith(PREFIX)
    }


def applied(node: str, entries: Sequence[Mapping[str, str]]) -> Document:
    status = {"conditions": entries} if entries else {}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "status": status}


class NodeConditions:
    """Writes the conditions of one release to one Node; callers handle errors of the API server."""

    def __init__(self, client: ApiClient, node: str, release: str) -> None:
        self._client, self._node, self._manager = client, node, field_manager(release)
        self._path = f"/api/v1/nodes/{segment(node)}"
        self._since: dict[str, str] = {}  # by type, when the status last changed
        self.written: dict[str, NodeCondition] = {}

    async def read(self) -> str:
        """Loads the conditions written by an earlier run; returns the Node's uid."""
        node = await self._client.get(self._path)
        self.written = managed(node, self._manager)
        found = (node.get("status") or {}).get("conditions") or ()
        self._since = {each["type"]: each.get("lastTransitionTime") or _now() for each in found}
        return str(node["metadata"].get("uid") or "")

    async def write(self, wanted: Mapping[str, NodeCondition]) -> None:
        """Applies all conditions; others of this field manager are removed."""
        now, entries = _now(), []
        for kind, condition in sorted(wanted.items()):
            before = self.written.get(kind)
            since = self._since.get(kind, now) if before is not None and before.status == condition.status else now
            times = {"lastHeartbeatTime": now, "lastTransitionTime": since}
            entries.append({"type": kind, **msgspec.structs.asdict(condition), **times})
        path, manager = f"{self._path}/status", self._manager
        body = applied(self._node, entries)
        await self._client.patch(path, body, "apply-patch", fieldManager=manager, force="true")
        self.written = dict(wanted)
        self._since = {entry["type"]: entry["lastTransitionTime"] for entry in entries}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
