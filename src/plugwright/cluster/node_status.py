"""A node's object as its kubelet writes it: made once, and brought up to date round by round. Pure.

Capacity that somebody has set by hand stays and flows to allocatable; what a plugin backs is put back; what a plugin
left becomes 0, once. When a round is due is `agent`'s to know.
"""

import ipaddress
import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from plugwright.cluster.store import Object
from plugwright.kubelet.devicemanager.devices import DeviceCount
from plugwright.version import __version__

__all__ = ["Identity", "Machine", "Shape", "Supply", "created", "is_same", "round_of"]

_PODS_NETWORK = ipaddress.ip_address("10.244.0.0")
_NODES_NETWORK = ipaddress.ip_address("172.18.0.2")
_PRESSURES = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How big an emulated node is."""

    cpu: str = "16"
    memory: str = "64Gi"
    pods: int = 110
    storage: str = "100Gi"
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def capacity(self) -> dict[str, str]:
        return {
            "cpu": self.cpu,
            "ephemeral-storage": self.storage,
            "hugepages-1Gi": "0",
            "hugepages-2Mi": "0",
            "memory": self.memory,
            "pods": str(self.pods),
        }


@dataclass(frozen=True, slots=True)
class Machine:
    """What every emulated node has of the machine that it is emulated on."""

    id: str = ""
    boot_id: str = ""
    kernel: str = ""
    architecture: str = "amd64"

    @classmethod
    def here(cls) -> "Machine":
        name = platform.machine()
        architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(name, name)
        boot_id = _line(Path("/proc/sys/kernel/random/boot_id"))
        return cls(_line(Path("/etc/machine-id")), boot_id, platform.release(), architecture)


@dataclass(frozen=True, slots=True)
class Identity:
    """Which of the emulated nodes: its number gives it addresses of its own."""

    name: str
    index: int = 0
    shape: Shape = field(default_factory=Shape)
    machine: Machine = field(default_factory=Machine)
    version: str = "1.36.4"

    @property
    def address(self) -> str:
        return str(_NODES_NETWORK + self.index)

    @property
    def pods_network(self) -> str:
        return f"{_PODS_NETWORK + 256 * self.index}/24"

    def pod_address(self, taken: Collection[str]) -> str:
        """The first that is free; the very first is the bridge's."""
        first = _PODS_NETWORK + 256 * self.index
        return next(address for number in count(2) if (address := str(first + number)) not in taken)


@dataclass(frozen=True, slots=True)
class Supply:
    """What the plugins of a node offer, and which of them have just been given up."""

    served: Mapping[str, DeviceCount]
    removed: Collection[str] = ()


def created(identity: Identity, supply: Supply, now: str) -> Object:
    arch = identity.machine.architecture
    labels = {
        "beta.kubernetes.io/arch": arch,
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": arch,
        "kubernetes.io/hostname": identity.name,
        "kubernetes.io/os": "linux",
        **identity.shape.labels,
    }
    return {
        "metadata": {
            "name": identity.name,
            "labels": labels,
            "annotations": {
                "node.alpha.kubernetes.io/ttl": "0",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
        },
        "spec": {"podCIDR": identity.pods_network, "podCIDRs": [identity.pods_network]},
        "status": round_of({}, identity, supply, now),
    }


def round_of(status: Object, identity: Identity, supply: Supply, now: str) -> Object:
    """The status after one round (10.11 to 10.15)."""
    capacity = {**(status.get("capacity") or {}), **identity.shape.capacity}
    capacity |= {resource: "0" for resource in supply.removed if resource in capacity}
    capacity |= {resource: str(count.capacity) for resource, count in supply.served.items()}
    allocatable = {**capacity, **{resource: str(count.allocatable) for resource, count in supply.served.items()}}
    return {
        **status,
        "capacity": dict(sorted(capacity.items())),
        "allocatable": dict(sorted(allocatable.items())),
        "conditions": _conditions(status.get("conditions") or [], now),
        "addresses": [
            {"type": "InternalIP", "address": identity.address},
            {"type": "Hostname", "address": identity.name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": _info(identity),
    }


def is_same(before: Object, after: Object) -> bool:
    """Whether only the heartbeats differ: such a status is not written every round (7.12)."""
    return _without_heartbeats(before) == _without_heartbeats(after)


def _without_heartbeats(status: Object) -> Object:
    conditions = [{**each, "lastHeartbeatTime": None} for each in status.get("conditions") or []]
    return {**status, "conditions": conditions}


def _conditions(before: list[Object], now: str) -> list[Object]:
    known = {each["type"]: each for each in before}
    ours = [_condition(known.pop(each[0], {}), each, now) for each in _PRESSURES]
    return [*known.values(), *ours]


def _condition(before: Object, wanted: tuple[str, str, str, str], now: str) -> Object:
    kind, status, reason, message = wanted
    changed = before.get("status") != status
    return {
        "type": kind,
        "status": status,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now if changed else before["lastTransitionTime"],
        "reason": reason,
        "message": message,
    }


def _info(identity: Identity) -> Object:
    machine = identity.machine
    return {
        "machineID": machine.id,
        "systemUUID": machine.id,
        "bootID": machine.boot_id,
        "kernelVersion": machine.kernel,
        "osImage": "plugwright (emulated)",
        "containerRuntimeVersion": f"plugwright://{__version__}",
        "kubeletVersion": f"v{identity.version}",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": machine.architecture,
    }


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
