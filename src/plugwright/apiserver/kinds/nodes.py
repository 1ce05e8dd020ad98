"""Nodes: the defaults of their status, and the columns of `kubectl get nodes`; `node_validation` has their rules."""

from datetime import datetime

from plugwright import quantity
from plugwright.apiserver.kinds import node_validation
from plugwright.apiserver.kinds.kind import Kind
from plugwright.apiserver.printers import AGE, NAME, Column
from plugwright.apiserver.store import Object

__all__ = ["NODES"]

_NODE_INFO = (
    "architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "kubeletVersion",
    "machineID", "operatingSystem", "osImage", "systemUUID",
)  # fmt: skip
_STATUS_DEFAULTS = {"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}, "nodeInfo": dict.fromkeys(_NODE_INFO, "")}
_ROLE_LABEL = "node-role.kubernetes.io/"


def _prepare_status(node: Object) -> Object:
    """Defaults allocatable to the capacity, and stores quantities in their canonical form."""
    status = {**_STATUS_DEFAULTS, **(node.get("status") or {})}
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = status["capacity"]
    if status.get("conditions"):
        times: Object = {"lastHeartbeatTime": None, "lastTransitionTime": None}
        status["conditions"] = [{**times, **condition} for condition in status["conditions"]]
    for part in ("capacity", "allocatable"):
        if part in status:
            status[part] = {resource: quantity.canonical(amount) for resource, amount in status[part].items()}
    return {**node, "status": status}


def _status(node: Object, _now: datetime) -> str:
    conditions = node.get("status", {}).get("conditions", [])
    ready = next((condition["status"] for condition in conditions if condition["type"] == "Ready"), None)
    words = ["Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"]
    return ",".join([*words, "SchedulingDisabled"] if node.get("spec", {}).get("unschedulable") else words)


def _roles(node: Object, _now: datetime) -> str:
    labels = node["metadata"].get("labels") or {}
    return ",".join(sorted(key.removeprefix(_ROLE_LABEL) for key in labels if key.startswith(_ROLE_LABEL))) or "<none>"


def _address(node: Object, address_type: str) -> object:
    addresses = {address["type"]: address["address"] for address in node.get("status", {}).get("addresses", [])}
    return addresses.get(address_type, "<none>")


def _info(node: Object, name: str) -> str:
    return node.get("status", {}).get("nodeInfo", {}).get(name) or "<unknown>"


def _kernel(node: Object, _now: datetime) -> str:
    architecture = node.get("status", {}).get("nodeInfo", {}).get("architecture")
    return f"{_info(node, 'kernelVersion')} ({architecture})" if architecture else _info(node, "kernelVersion")


NODES = Kind(
    plural="nodes",
    name="Node",
    short_names=("no",),
    namespaced=False,
    has_status=True,
    prepare_for_create=lambda node: _prepare_status({"spec": {}, **node}),
    prepare_for_update=lambda _, after: {**after, "spec": after.get("spec") or {}},
    prepare_status=_prepare_status,
    validate=node_validation.validate,
    validate_update=node_validation.validate_update,
    validate_status=node_validation.validate,
    columns=(
        NAME,
        Column("Status", _status),
        Column("Roles", _roles),
        AGE,
        Column("Version", lambda node, _: node.get("status", {}).get("nodeInfo", {}).get("kubeletVersion", "")),
        Column("Internal-IP", lambda node, _: _address(node, "InternalIP"), wide=True),
        Column("External-IP", lambda node, _: _address(node, "ExternalIP"), wide=True),
        Column("OS-Image", lambda node, _: _info(node, "osImage"), wide=True),
        Column("Kernel-Version", _kernel, wide=True),
        Column("Container-Runtime", lambda node, _: _info(node, "containerRuntimeVersion"), wide=True),
    ),
    computed_fields={"spec.unschedulable": lambda node: bool(node.get("spec", {}).get("unschedulable"))},
)
