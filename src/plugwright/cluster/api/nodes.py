"""What a server refuses in a node's status: quantities of extended resources that are no whole numbers (10.6)."""

from collections.abc import Iterator

from plugwright.cluster import quantities
from plugwright.cluster.api.amounts import is_extended
from plugwright.cluster.api.errors import Cause
from plugwright.cluster.store import Object

__all__ = ["defaulted", "violations"]

_INFO = (
    "architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "kubeletVersion",
    "machineID", "operatingSystem", "osImage", "systemUUID",
)  # fmt: skip
_STATUS = {"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}, "nodeInfo": dict.fromkeys(_INFO, "")}


def defaulted(node: Object) -> Object:
    """What a node says of its capacity alone is taken to be allocatable; a quantity is written in one way."""
    status = {**_STATUS, **(node.get("status") or {})}
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = status["capacity"]
    for part in ("capacity", "allocatable"):
        if part in status:
            status[part] = {name: quantities.canonical(value) for name, value in status[part].items()}
    return {**node, "status": status}


def violations(node: Object) -> Iterator[Cause]:
    status = node.get("status") or {}
    for part in ("capacity", "allocatable"):
        for name, value in sorted((status.get(part) or {}).items()):
            yield from _amount(f"status.{part}.{name}", name, value)


def _amount(place: str, name: str, value: object) -> Iterator[Cause]:
    text = str(value)
    if quantities.parse(text) < 0:
        yield Cause(place, f'Invalid value: "{text}": must be greater than or equal to 0')
    elif is_extended(name) and quantities.parse(text) % 1:
        yield Cause(place, f'Invalid value: "{text}": must be an integer')
