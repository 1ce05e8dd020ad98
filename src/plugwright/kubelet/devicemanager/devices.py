"""The devices of each resource as its plugin last listed them.

Pure: a device list goes in, sets, counts and problems come out. The plugins themselves are `endpoints`; which container
holds a device is `pod_devices`.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from plugwright.model import Health, natural_order, some
from plugwright.protocol.messages import ListedDevice

__all__ = [
    "DeviceCount",
    "DeviceStore",
    "ListProblem",
    "ResourceDevices",
    "dropped_device_problems",
    "list_problems",
]


@dataclass(frozen=True, slots=True)
class DeviceCount:
    """A resource in the node status: capacity counts every device, allocatable the healthy devices."""

    capacity: int
    allocatable: int


@dataclass(slots=True)
class ResourceDevices:
    """The devices of one resource; `known` stays after the plugin is gone, for topology hints and health."""

    healthy: frozenset[str] = frozenset()
    unhealthy: frozenset[str] = frozenset()
    known: dict[str, ListedDevice] = field(default_factory=dict)
    registered: tuple[str, ...] = ()  # the healthy ones, sorted: the same object until a list changes them
    _ordered: tuple[str, ...] | None = None

    @property
    def count(self) -> DeviceCount:
        # An id listed as healthy and unhealthy counts twice in capacity (2.8).
        return DeviceCount(len(self.healthy) + len(self.unhealthy), len(self.healthy))

    def nodes(self, device_id: str) -> tuple[int, ...]:
        device = self.known.get(device_id)
        return (device.nodes or ()) if device else ()

    @property
    def ordered(self) -> tuple[str, ...]:
        """Every known id in natural order; computed once for as long as the ids stay the same."""
        if self._ordered is None:
            self._ordered = tuple(sorted(self.known, key=natural_order))
        return self._ordered

    def first(self, count: int, among: Collection[str]) -> list[str]:
        """The first `count` ids of `among` in natural order."""
        if count <= 0 or not among:
            return []
        listed = list(islice((device_id for device_id in self.ordered if device_id in among), count))
        missing = count - len(listed)
        return listed + sorted(set(among) - self.known.keys(), key=natural_order)[:missing] if missing else listed

    @property
    def has_topology(self) -> bool:
        return any(device.nodes for device in self.known.values())


class DeviceStore:
    """Every resource listed by a plugin or registered in the checkpoint."""

    def __init__(self) -> None:
        self._resources: dict[str, ResourceDevices] = {}
        # The known devices of a resource survive its removal (2.20).
        self._known_of_removed: dict[str, dict[str, ListedDevice]] = {}

    def __contains__(self, resource: object) -> bool:
        return resource in self._resources

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._resources))

    def of(self, resource: str) -> ResourceDevices:
        """The devices of a resource; none for an unknown resource."""
        return self._resources.get(resource) or ResourceDevices(known=self._known_of_removed.get(resource, {}))

    def restore(self, resources: Sequence[str]) -> None:
        """Adds the resources of the checkpoint, which have no devices until their plugins are back (1.20)."""
        for resource in resources:
            self._resources[resource] = ResourceDevices()

    def update(self, resource: str, devices: Sequence[ListedDevice]) -> list[str]:
        """Replaces the list of a resource; returns the removed ids."""
        # Only the exact string `Healthy` is healthy (2.6); of a repeated id the last occurrence counts (2.8).
        healthy = frozenset(device.id for device in devices if device.health == Health.HEALTHY)
        unhealthy = frozenset(device.id for device in devices if device.health != Health.HEALTHY)
        known = {device.id: device for device in devices}
        before = self.of(resource)
        registered = before.registered if before.healthy == healthy else tuple(sorted(healthy))
        ordered = before.ordered if before.known.keys() == known.keys() else None
        self._resources[resource] = ResourceDevices(healthy, unhealthy, known, registered, ordered)
        return sorted(before.known.keys() - known.keys())

    def mark_unhealthy(self, resource: str) -> None:
        """Moves every healthy device to the unhealthy devices, because its plugin's stream has ended (2.15)."""
        devices = self.of(resource)
        self._resources[resource] = ResourceDevices(frozenset(), devices.unhealthy | devices.healthy, devices.known)

    def remove(self, resource: str) -> None:
        """Removes a resource whose plugin has been gone for longer than the grace period (2.18)."""
        self._known_of_removed[resource] = self._resources.pop(resource).known


ListProblem = tuple[str, str, str]  # the fact, what happened, what a real kubelet does


def list_problems(devices: Sequence[ListedDevice]) -> Iterator[ListProblem]:
    """The problems of a device list by itself."""
    healthy = {device.id for device in devices if device.health == Health.HEALTHY}
    both = healthy & {device.id for device in devices if device.health != Health.HEALTHY}
    if both:
        yield "2.8", f"listed both healthy and unhealthy: {_quoted(both)}", "counts such a device twice"
    unknown_health = {device.health for device in devices} - set(Health)
    if unknown_health:
        yield "2.6", f"health is {_quoted(unknown_health)}", "takes everything but Healthy for unhealthy"
    without_nodes = {device.id for device in devices if device.nodes == ()}
    if without_nodes:
        yield (
            "6.11",
            f"a topology without NUMA nodes: {_quoted(without_nodes)}",
            "leaves such a device out of GetAllocatableResources",
        )


def dropped_device_problems(
    dropped: Collection[str], before: ResourceDevices, in_use: Collection[str], allocating: Collection[str]
) -> Iterator[ListProblem]:
    """The problems of ids missing in a new list, for kubelets from 1.34 on."""
    mid_call = set(dropped) & set(allocating)
    if mid_call:
        yield (
            "2.25",
            f"dropped from the list while Allocate is asked for it: {_quoted(mid_call)}",
            "crashes when the response arrives",
        )
    held = {device_id for device_id in dropped if device_id in in_use and before.nodes(device_id)} - mid_call
    if held:
        yield (
            "2.25",
            f"dropped from the list while a pod holds it: {_quoted(held)}",
            "crashes when that pod is admitted again with a topology policy",
        )


def _quoted(texts: Collection[str]) -> str:
    return some([repr(text) for text in sorted(texts, key=natural_order)])
