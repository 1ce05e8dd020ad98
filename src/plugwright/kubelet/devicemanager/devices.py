"""The devices of each resource as its plugin last listed them.

Pure. What a list means is decided here; who holds a device is `ledger`'s, and the plugins themselves are
`endpoint`'s.

What a device list would do to a real kubelet that it should not.

Pure: values in, findings out.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from plugwright.model import Health, natural_order, some
from plugwright.protocol.messages import ListedDevice

__all__ = ["DeviceCount", "DeviceStore", "Quirk", "ResourceDevices", "of_dropped", "of_list"]


@dataclass(frozen=True, slots=True)
class DeviceCount:
    """What the node says of a resource: capacity is every device, allocatable the healthy ones."""

    capacity: int
    allocatable: int


@dataclass(slots=True)
class ResourceDevices:
    """One resource. `known` outlives the plugin: hints and health are read from it."""

    healthy: frozenset[str] = frozenset()
    unhealthy: frozenset[str] = frozenset()
    known: dict[str, ListedDevice] = field(default_factory=dict)
    registered: tuple[str, ...] = ()  # the healthy ones, sorted: the same object until a list changes it
    _ordered: tuple[str, ...] | None = None

    @property
    def count(self) -> DeviceCount:
        # An id listed both ways counts twice (2.8).
        return DeviceCount(len(self.healthy) + len(self.unhealthy), len(self.healthy))

    def nodes(self, device_id: str) -> tuple[int, ...]:
        listed = self.known.get(device_id)
        return (listed.nodes or ()) if listed else ()

    @property
    def ordered(self) -> tuple[str, ...]:
        """Every known id in natural order; worked out once for as long as the ids stay the same."""
        if self._ordered is None:
            self._ordered = tuple(sorted(self.known, key=natural_order))
        return self._ordered

    def first(self, count: int, among: Collection[str]) -> list[str]:
        """The first `count` of `among` in natural order."""
        if count <= 0 or not among:
            return []
        listed = list(islice((device_id for device_id in self.ordered if device_id in among), count))
        missing = count - len(listed)
        return listed + sorted(set(among) - self.known.keys(), key=natural_order)[:missing] if missing else listed

    @property
    def has_topology(self) -> bool:
        return any(listed.nodes for listed in self.known.values())


class DeviceStore:
    """Every resource that a plugin listed or that the checkpoint names."""

    def __init__(self) -> None:
        self._shelves: dict[str, ResourceDevices] = {}
        self._known: dict[str, dict[str, ListedDevice]] = {}  # of resources that were dropped (2.20)

    def __contains__(self, resource: object) -> bool:
        return resource in self._shelves

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._shelves))

    def shelf(self, resource: str) -> ResourceDevices:
        """An empty one where there is none."""
        return self._shelves.get(resource) or ResourceDevices(known=self._known.get(resource, {}))

    def restore(self, resources: Sequence[str]) -> None:
        """After a start: what the checkpoint names has no devices until its plugin is back (1.20)."""
        for resource in resources:
            self._shelves[resource] = ResourceDevices()

    def take(self, resource: str, devices: Sequence[ListedDevice]) -> list[str]:
        """A new list, which replaces the last; returns the ids that it leaves out."""
        healthy = frozenset(each.id for each in devices if each.health == Health.HEALTHY)  # 2.6
        unhealthy = frozenset(each.id for each in devices if each.health != Health.HEALTHY)
        known = {each.id: each for each in devices}  # of a repeated id the last counts (2.8)
        before = self.shelf(resource)
        registered = before.registered if before.healthy == healthy else tuple(sorted(healthy))
        ordered = before.ordered if before.known.keys() == known.keys() else None
        self._shelves[resource] = ResourceDevices(healthy, unhealthy, known, registered, ordered)
        return sorted(before.known.keys() - known.keys())

    def stop(self, resource: str) -> None:
        """The plugin is gone: its devices cannot be handed out (2.15)."""
        shelf = self.shelf(resource)
        self._shelves[resource] = ResourceDevices(frozenset(), shelf.unhealthy | shelf.healthy, shelf.known)

    def drop(self, resource: str) -> None:
        """The plugin was gone for too long (2.18); what is known of its devices stays (2.20)."""
        self._known[resource] = self._shelves.pop(resource).known


Quirk = tuple[str, str, str]  # the fact, what happened, what a real kubelet does


def of_list(devices: Sequence[ListedDevice]) -> Iterator[Quirk]:
    """What the list itself shows."""
    healthy = {each.id for each in devices if each.health == Health.HEALTHY}
    both = healthy & {each.id for each in devices if each.health != Health.HEALTHY}
    if both:
        yield "2.8", f"listed healthy and unhealthy at once: {_named(both)}", "counts such a device twice"
    odd = {each.health for each in devices} - set(Health)
    if odd:
        yield "2.6", f"health is {_named(odd)}", "takes everything but Healthy for unhealthy"
    hidden = {each.id for each in devices if each.nodes == ()}
    if hidden:
        yield (
            "6.11",
            f"a topology without NUMA nodes: {_named(hidden)}",
            "leaves such a device out of GetAllocatableResources",
        )


def of_dropped(
    dropped: Collection[str], before: ResourceDevices, in_use: Collection[str], asked: Collection[str]
) -> Iterator[Quirk]:
    """What the list leaves out, on kubelets from 1.34 on."""
    mid_call = set(dropped) & set(asked)
    if mid_call:
        yield (
            "2.25",
            f"dropped from the list while Allocate is asked for it: {_named(mid_call)}",
            "crashes when the answer comes",
        )
    held = {device_id for device_id in dropped if device_id in in_use and before.nodes(device_id)} - mid_call
    if held:
        yield (
            "2.25",
            f"dropped from the list while a pod holds it: {_named(held)}",
            "crashes when that pod is admitted again with a topology policy",
        )


def _named(ids: Collection[str]) -> str:
    return some([repr(each) for each in sorted(ids, key=natural_order)])
