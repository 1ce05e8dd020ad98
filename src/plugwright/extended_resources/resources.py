"""Values about the extended resources of a node: counts, owners of the counts, pods that hold devices.

Reading them is left to `client` (the API server) and `kubelet_dir` (the kubelet's own directory), judging them to
`backing`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from plugwright import quantity
from plugwright.grammars import CLASS_PREFIX
from plugwright.model import natural_order

__all__ = [
    "GRACE_MINUTES",
    "GRACE_PERIOD",
    "Assessment",
    "Backing",
    "BoundPod",
    "CapacityOwner",
    "ClusterContext",
    "ContainerRequests",
    "Holder",
    "KeyState",
    "KubeletDirectory",
    "ManagedFieldsEntry",
    "NodeResource",
    "NodeSnapshot",
    "capacity_owners",
    "is_extended",
    "pod_requests",
]

# The kubelet keeps a resource for five minutes after its plugin stopped, then sets capacity to 0 once and forgets the
# resource, without ever removing the key from the node (2.18).
GRACE_PERIOD = 300.0
GRACE_MINUTES = f"{GRACE_PERIOD / 60:g} minutes"

_KUBELET = "kubelet"
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


class Backing(StrEnum):
    """The component that serves a resource."""

    PLUGIN = "plugin"
    DRA = "dra"
    MANUAL = "manual"
    STALE = "stale"
    UNKNOWN = "unknown"


class KeyState(StrEnum):
    """The kubelet's reaction when the key of a resource is removed from the node's status."""

    ABSENT = "absent"
    SERVED = "served"  # a live plugin: the key is back at the next status update
    GRACE_PERIOD = "grace period"  # the key is back until the kubelet's grace period is over
    FREE = "free"  # as far as can be seen, the key stays away
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class ManagedFieldsEntry:
    """One entry of `metadata.managedFields`; `fields` is its fieldsV1."""

    manager: str
    time: datetime | None
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class CapacityOwner:
    """The field manager that set a capacity; `settled` means that the kubelet has written the status since."""

    manager: str
    time: datetime | None
    kubelet: bool
    settled: bool = True


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """A node as the API server reports it; counts are those of extended resources only.

    `silence` is why the kubelet's numbers are outdated; empty while it reports. `without_capacity` means that
    `status.capacity` itself is missing.
    """

    name: str
    resource_version: str
    capacity: Mapping[str, int]
    allocatable: Mapping[str, int]
    owners: Mapping[str, CapacityOwner] = field(default_factory=dict)
    silence: str = ""
    boot_id: str = ""
    without_capacity: bool = False


@dataclass(frozen=True, slots=True)
class BoundPod:
    """A pod that is bound to a node and has not ended; `claimed` are the resources that it gets through DRA."""

    namespace: str
    name: str
    node: str
    requests: Mapping[str, int]
    claimed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """A pod with devices of a resource; those from a DRA `claim` are not counted by the node's key."""

    namespace: str
    pod: str
    count: int
    claim: bool = False

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}:{self.count}"


@dataclass(frozen=True, slots=True)
class KubeletDirectory:
    """The state of the kubelet's directory on one machine.

    `registered` are the resources in the checkpoint, `listening` is the number of plugin sockets with a live server,
    `announced` are the resources that live sockets in plugins_registry name in their answer.
    """

    boot_id: str
    registered: frozenset[str]
    listening: int
    announced: frozenset[str]


@dataclass(frozen=True, slots=True)
class ClusterContext:
    """Facts beside the node itself: DeviceClass names by the resource they serve, and this machine's kubelet."""

    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kubelet_dir: KubeletDirectory | None = None

    def kubelet_dir_of(self, node: NodeSnapshot) -> KubeletDirectory | None:
        return self.kubelet_dir if self.kubelet_dir and self.kubelet_dir.boot_id == node.boot_id else None


class Assessment(NamedTuple):
    backing: Backing
    key: KeyState
    evidence: str


@dataclass(frozen=True, slots=True)
class NodeResource:
    """One extended resource of one node; a count of None means that the node has no such key."""

    node: str
    resource: str
    capacity: int | None
    allocatable: int | None
    holders: tuple[Holder, ...]
    assessment: Assessment

    @property
    def requested(self) -> int:
        return sum(holder.count for holder in self.holders if not holder.claim)

    @property
    def held_by(self) -> str:
        """The pods that request the node's key, as text."""
        return ", ".join(str(holder) for holder in self.holders if not holder.claim)


class ContainerRequests(NamedTuple):
    requests: Mapping[str, int]
    sidecar: bool = False


def is_extended(name: str) -> bool:
    return "/" in name and ("kubernetes.io/" not in name or name.startswith(CLASS_PREFIX))


def pod_requests(init: Iterable[ContainerRequests], main: Iterable[ContainerRequests]) -> dict[str, int]:
    """The pod's requests as the scheduler counts them: its running containers, or the peak of any init container."""
    kinds = [("sidecar" if container.sidecar else "init", container.requests) for container in init]
    kinds += [("main", container.requests) for container in main]
    total = quantity.effective_requests(kinds)
    return {name: total[name] for name in sorted(total, key=natural_order)}


def capacity_owners(entries: Iterable[ManagedFieldsEntry]) -> dict[str, CapacityOwner]:
    """The owner of each capacity key, by the node's `managedFields`.

    A manager owns what it changes: the kubelet the resources that it counts, other managers those set by hand. If
    several managers share a key, the kubelet is its owner, otherwise the manager that wrote last.
    """
    entries = sorted(entries, key=lambda entry: entry.time or _LONG_AGO)
    kubelet = _kubelet_manager(entries)
    last_update = max((entry.time or _LONG_AGO for entry in entries if entry.manager == kubelet), default=_LONG_AGO)
    owners: dict[str, CapacityOwner] = {}
    for entry in entries:
        settled = last_update > (entry.time or _LONG_AGO)
        owner = CapacityOwner(entry.manager, entry.time, entry.manager == kubelet, settled)
        for key in _nested(entry.fields, "f:status", "f:capacity"):
            name = key.removeprefix("f:")
            if key.startswith("f:") and (name not in owners or not owners[name].kubelet):
                owners[name] = owner
    return owners


def _kubelet_manager(entries: Iterable[ManagedFieldsEntry]) -> str:
    """The manager that sends the heartbeats: some distributions build the kubelet into a program of another name."""
    for entry in entries:
        conditions = _nested(entry.fields, "f:status", "f:conditions")
        if "f:lastHeartbeatTime" in _nested(conditions, 'k:{"type":"Ready"}'):
            return entry.manager
    return _KUBELET


def _nested(fields: Mapping[str, object], *path: str) -> Mapping[str, object]:
    for step in path:
        inner = fields.get(step)
        fields = inner if isinstance(inner, Mapping) else {}
    return fields
