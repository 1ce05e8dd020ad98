"""A Node object as written by its kubelet: created once, its status updated in rounds. Pure.

`node` decides when a round is due.
"""

import functools
import ipaddress
import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from plugwright import quantity
from plugwright.apiserver import KUBERNETES_VERSION
from plugwright.apiserver.store import Object
from plugwright.kubelet.devicemanager.devices import DeviceCount
from plugwright.system.boot import boot_id
from plugwright.version import __version__

__all__ = [
    "HostInfo",
    "NodeIdentity",
    "NodeNetwork",
    "NodeShape",
    "PluginResources",
    "differs_only_in_heartbeats",
    "new_node",
    "updated_status",
]

_POD_NETWORK = ipaddress.ip_address("10.244.0.0")
_NODE_NETWORK = ipaddress.ip_address("172.18.0.2")
_CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
    """The size and labels of an emulated node."""

    cpu: str = "16"
    memory: str = "64Gi"
    pods: int = 110
    storage: str = "100Gi"
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()  # set when the node registers

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
class HostInfo:
    """The machine on which the nodes are emulated, as described in `nodeInfo`."""

    id: str = ""
    boot_id: str = ""
    kernel: str = ""
    architecture: str = "amd64"

    @classmethod
    def here(cls) -> "HostInfo":
        name = platform.machine()
        architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(name, name)
        return cls(_read_line(Path("/etc/machine-id")), boot_id(), platform.release(), architecture)


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """The addresses of a node in another cluster; `port` is its kubelet API's."""

    address: str
    pods: ipaddress.IPv4Network
    port: int = 10250


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """A node's name and its number among the emulated nodes, which determines its addresses without a `network`."""

    name: str
    index: int = 0
    shape: NodeShape = field(default_factory=NodeShape)
    host: HostInfo = field(default_factory=HostInfo)
    version: str = KUBERNETES_VERSION
    network: NodeNetwork | None = None

    @property
    def address(self) -> str:
        return self.network.address if self.network else str(_NODE_NETWORK + self.index)

    @property
    def pod_cidr(self) -> str:
        return f"{_POD_NETWORK + 256 * self.index}/24"

    def pod_address(self, taken: Collection[str]) -> str:
        """The first free address; the first of the network is the bridge's."""
        first = self.network.pods.network_address if self.network else _POD_NETWORK + 256 * self.index
        return next(address for number in count(2) if (address := str(first + number)) not in taken)


@dataclass(frozen=True, slots=True)
class PluginResources:
    """The devices of the node's plugins, and the resources whose plugin was removed since the last round."""

    served: Mapping[str, DeviceCount]
    removed: Collection[str] = ()


def new_node(identity: NodeIdentity, resources: PluginResources, now: str) -> Object:
    architecture = identity.host.architecture
    labels = {
        "beta.kubernetes.io/arch": architecture,
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": architecture,
        "kubernetes.io/hostname": identity.name,
        "kubernetes.io/os": "linux",
        **identity.shape.labels,
    }
    # Another cluster's controller manager manages the network of pods.
    spec: Object = {} if identity.network else {"podCIDR": identity.pod_cidr, "podCIDRs": [identity.pod_cidr]}
    if identity.shape.taints:
        spec["taints"] = [dict(taint) for taint in identity.shape.taints]
    return {
        "metadata": {
            "name": identity.name,
            "labels": labels,
            "annotations": {
                "node.alpha.kubernetes.io/ttl": "0",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
        },
        "spec": spec,
        "status": updated_status({}, identity, resources, now),
    }


def updated_status(status: Object, identity: NodeIdentity, resources: PluginResources, now: str) -> Object:
    """The status after one round.

    Capacity set by hand survives and is copied to allocatable (10.11, 10.13). A plugin's numbers overwrite both values
    (10.14); the capacity of a resource whose plugin was removed becomes 0 (10.15).
    """
    capacity = {**(status.get("capacity") or {}), **identity.shape.capacity}
    capacity |= {resource: "0" for resource in resources.removed if resource in capacity}
    capacity |= {resource: str(count.capacity) for resource, count in resources.served.items()}
    allocatable = {**capacity, **{resource: str(count.allocatable) for resource, count in resources.served.items()}}
    return {
        **status,
        "capacity": _canonical(capacity),
        "allocatable": _canonical(allocatable),
        "conditions": _conditions(status.get("conditions") or [], now),
        "addresses": _addresses(identity),
        "daemonEndpoints": {"kubeletEndpoint": {"Port": identity.network.port if identity.network else 10250}},
        "nodeInfo": _node_info(identity),
    }


def _canonical(amounts: Mapping[str, str]) -> dict[str, str]:
    """Amounts as stored by the API server: 1000 is 1k there, and would otherwise differ in every round."""
    return {resource: _canonical_quantity(amount) for resource, amount in sorted(amounts.items())}


_canonical_quantity = functools.lru_cache(maxsize=4096)(quantity.canonical)


def differs_only_in_heartbeats(before: Object, after: Object) -> bool:
    """Whether the kubelet delays writing it: only changes beyond heartbeat times are patched immediately (7.12)."""
    return _without_heartbeats(before) == _without_heartbeats(after)


def _without_heartbeats(status: Object) -> Object:
    conditions = [{**condition, "lastHeartbeatTime": None} for condition in status.get("conditions") or []]
    return {**status, "conditions": conditions}


def _conditions(before: list[Object], now: str) -> list[Object]:
    """The kubelet's four conditions, after those set by other components."""
    known = {condition["type"]: condition for condition in before}
    ours = []
    for kind, status, reason, message in _CONDITIONS:
        previous = known.pop(kind, {})
        changed = previous.get("status") != status
        ours.append(
            {
                "type": kind,
                "status": status,
                "lastHeartbeatTime": now,
                "lastTransitionTime": now if changed else previous["lastTransitionTime"],
                "reason": reason,
                "message": message,
            }
        )
    return [*known.values(), *ours]


def _addresses(identity: NodeIdentity) -> list[Object]:
    addresses = [{"type": "InternalIP", "address": identity.address}]
    if identity.network is None:
        # An API server prefers a host name, which other resolvers do not know for an emulated node.
        addresses.append({"type": "Hostname", "address": identity.name})
    return addresses


def _node_info(identity: NodeIdentity) -> Object:
    host = identity.host
    return {
        "machineID": host.id,
        "systemUUID": host.id,
        "bootID": host.boot_id,
        "kernelVersion": host.kernel,
        "osImage": "plugwright (emulated)",
        "containerRuntimeVersion": f"plugwright://{__version__}",
        "kubeletVersion": f"v{identity.version}",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": host.architecture,
    }


def _read_line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
