"""The extended resources of a node: their counts, the pods that hold them, and who backs them.

All of it is decided from values; reading them is left to `node` (the API) and `local` (the kubelet's directory).

Who set a capacity key of a node, as the node's own `managedFields` record it.

Only what changes a value becomes its owner there: the kubelet of what it counts, anybody else of what was set by hand.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from plugwright import quantity
from plugwright.model import natural_order

__all__ = [
    "Backing",
    "Container",
    "Entry",
    "Holder",
    "Key",
    "Local",
    "Node",
    "Pod",
    "Row",
    "Setter",
    "Verdict",
    "World",
    "is_extended",
    "pod_requests",
    "setters",
]

_KUBELET = "kubelet"
_EVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of `managedFields`; `fields` is its fieldsV1."""

    manager: str
    time: datetime | None
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Setter:
    """`settled`: the kubelet has written the node's status since, so it has seen the value."""

    manager: str
    time: datetime | None
    kubelet: bool
    settled: bool = True


def setters(entries: Iterable[Entry]) -> dict[str, Setter]:
    """The owner of each capacity key. Where several share one, the kubelet counts, else who came last."""
    found: dict[str, Setter] = {}
    entries = sorted(entries, key=lambda entry: entry.time or _EVER)
    kubelet = _kubelet(entries)
    written = max((entry.time or _EVER for entry in entries if entry.manager == kubelet), default=_EVER)
    for entry in entries:
        setter = Setter(entry.manager, entry.time, entry.manager == kubelet, written > (entry.time or _EVER))
        for name in _names(_under(entry.fields, "f:status", "f:capacity")):
            if name not in found or not found[name].kubelet:
                found[name] = setter
    return found


def _kubelet(entries: Iterable[Entry]) -> str:
    """The manager that sends the heartbeats: some distributions build the kubelet into a program of another name."""
    for entry in entries:
        conditions = _under(entry.fields, "f:status", "f:conditions")
        if "f:lastHeartbeatTime" in _under(conditions, 'k:{"type":"Ready"}'):
            return entry.manager
    return _KUBELET


def _under(fields: Mapping[str, object], *path: str) -> Mapping[str, object]:
    for step in path:
        inner = fields.get(step)
        fields = inner if isinstance(inner, Mapping) else {}
    return fields


def _names(fields: Mapping[str, object]) -> Iterable[str]:
    return (field.removeprefix("f:") for field in fields if field.startswith("f:"))


_CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"


class Backing(StrEnum):
    PLUGIN = "plugin"
    DRA = "dra"
    MANUAL = "manual"
    STALE = "stale"
    UNKNOWN = "unknown"


class Key(StrEnum):
    """What happens to a node's key when it is removed."""

    ABSENT = "absent"
    SERVED = "served"  # a live plugin: back at the next status round
    FADING = "fading"  # back until the kubelet's five minutes are over
    FREE = "free"  # stays away, as far as can be told
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Node:
    """What the API says of one node; counts are those of extended resources alone.

    `silence` says why the kubelet's numbers are old, and is empty while it reports. `bare`: it has no capacity at all.
    """

    name: str
    version: str
    capacity: Mapping[str, int]
    allocatable: Mapping[str, int]
    setters: Mapping[str, Setter] = field(default_factory=dict)
    silence: str = ""
    boot_id: str = ""
    bare: bool = False


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that is bound to a node and has not ended; what it asks for, and what of that DRA has given it."""

    namespace: str
    name: str
    node: str
    requests: Mapping[str, int]
    claimed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Local:
    """What the kubelet's directory tells. `registered`: named by the checkpoint; `listening`: plugin sockets with
    somebody behind them; `announced`: resources that such a socket in plugins_registry says it serves."""

    boot_id: str
    registered: frozenset[str]
    listening: int
    announced: frozenset[str]
    holders: Mapping[str, tuple["Holder", ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """`claim`: the devices come from a DRA claim, and are not counted by the node's key."""

    namespace: str
    pod: str
    count: int
    claim: bool = False

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}:{self.count}"


class Verdict(NamedTuple):
    backing: Backing
    key: Key
    evidence: str


@dataclass(frozen=True, slots=True)
class Row:
    """One extended resource of one node. None means that there is no such key."""

    node: str
    resource: str
    capacity: int | None
    allocatable: int | None
    holders: tuple[Holder, ...]
    verdict: Verdict

    @property
    def requested(self) -> int:
        return sum(holder.count for holder in self.holders if not holder.claim)

    @property
    def held_by(self) -> str:
        """The pods that the node's key is counted for, in words."""
        return ", ".join(str(holder) for holder in self.holders if not holder.claim)


class Container(NamedTuple):
    requests: Mapping[str, int]
    sidecar: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """What is the same for all nodes: resources by the device classes that name them, and what this machine tells."""

    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    local: Local | None = None

    def of(self, node: Node) -> Local | None:
        return self.local if self.local and self.local.boot_id == node.boot_id else None


def is_extended(name: str) -> bool:
    return "/" in name and ("kubernetes.io/" not in name or name.startswith(_CLASS_PREFIX))


def pod_requests(init: Iterable[Container], main: Iterable[Container]) -> dict[str, int]:
    kinds = [*(("sidecar" if container.sidecar else "init", container) for container in init)]
    kinds += [("main", container) for container in main]
    total = quantity.effective_requests((kind, container.requests) for kind, container in kinds)
    return {name: total[name] for name in sorted(total, key=natural_order)}
