"""The pools whose devices a node can use: complete, of the newest generation, and consistent."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from plugwright.allocator.features import Features
from plugwright.allocator.node_selector import NodeSelector
from plugwright.allocator.published_slices import PublishedSlice, SliceDevice, SliceIndex
from plugwright.errors import AllocationAborted, InvalidValue

__all__ = ["NodeView", "SlicePool", "gather_pools", "slices_for_node"]

PoolId = tuple[str, str]  # driver, pool


class NodeView:
    """The name and labels by which slices select a node."""

    __slots__ = ("labels", "name")

    def __init__(self, node: Mapping[str, Any]) -> None:
        metadata = node.get("metadata") or {}
        self.name: str = metadata.get("name", "")
        self.labels: Mapping[str, str] = metadata.get("labels") or {}

    def has(self, device: SliceDevice) -> bool:
        """Whether the device is on this node, of a slice with `perDeviceNodeSelection`."""
        return self._matches(device.node_name, device.all_nodes, device)

    def reaches(self, slice_: PublishedSlice) -> bool:
        """Whether the node can use a device of the slice."""
        if slice_.node_name or slice_.all_nodes or slice_.spec.get("nodeSelector") is not None:
            return self._matches(slice_.node_name, slice_.all_nodes, slice_)
        return bool(slice_.per_device) and any(map(self.has, slice_.devices))

    def _matches(self, node_name: str | None, all_nodes: bool, selecting: PublishedSlice | SliceDevice) -> bool:
        if node_name:
            return node_name == self.name
        if all_nodes:
            return True
        try:
            selector: NodeSelector | None = selecting.node_selector
        except (InvalidValue, KeyError, TypeError) as error:
            raise AllocationAborted(f"failed to perform node selection for {selecting.name}: {error}") from None
        return selector is not None and selector.matches(self.name, self.labels)


class SlicePool:
    """A pool as one node sees it: `slices` have its devices, `others` only count for the shared counters."""

    __slots__ = ("counter_sets", "driver", "incomplete", "invalid", "name", "others", "slices")

    def __init__(self, pool: PoolId) -> None:
        self.driver, self.name = pool
        self.incomplete = False
        self.invalid = ""
        self.slices: list[PublishedSlice] = []
        self.others: list[PublishedSlice] = []
        self.counter_sets: dict[str, Mapping[str, Decimal]] = {}

    @property
    def usable(self) -> bool:
        return not self.incomplete and not self.invalid

    def __str__(self) -> str:
        return f"{self.driver}/{self.name}"


def slices_for_node(index: SliceIndex, node: NodeView, features: Features) -> Iterable[PublishedSlice]:
    """The slices that name the node, and those without a node name."""
    local = index.on_node.get(node.name, [])
    if not features.counters_on_every_node or not index.counter_sets_on_nodes:
        return [*local, *index.elsewhere]
    everywhere = sorted([*index.elsewhere, *index.counter_sets_on_nodes], key=lambda slice_: slice_.serial)
    return [*(slice_ for slice_ in local if not slice_.has_counter_sets), *everywhere]


def gather_pools(index: SliceIndex, node: NodeView, features: Features) -> list[SlicePool]:
    """The pools of a node by driver and name; those with binding conditions come last, as upstream has it."""
    newest: dict[PoolId, list[PublishedSlice]] = {}
    for slice_ in slices_for_node(index, node, features):
        if _is_relevant(slice_, node, features):
            _add_newest(newest, slice_)
    pools: list[SlicePool] = []
    last: list[SlicePool] = []
    for pool_id in sorted(newest):
        pool = _pool(pool_id, newest[pool_id], index, features)
        if pool is not None:
            (last if _has_binding_conditions(pool) else pools).append(pool)
    return pools + last


def _is_relevant(slice_: PublishedSlice, node: NodeView, features: Features) -> bool:
    if not features.partitionable_devices and (slice_.per_device is not None or slice_.has_counter_sets):
        return False
    if slice_.has_compatibility_groups:
        return False  # makes its pool incomplete: it is unknown which devices share counters
    if features.counters_on_every_node and slice_.has_counter_sets:
        return True
    return node.reaches(slice_)


def _add_newest(newest: dict[PoolId, list[PublishedSlice]], slice_: PublishedSlice) -> None:
    known = newest.setdefault((slice_.driver, slice_.pool), [])
    if known and slice_.generation > known[0].generation:
        known.clear()
    if not known or slice_.generation == known[0].generation:
        known.append(slice_)


def _pool(pool_id: PoolId, slices: list[PublishedSlice], index: SliceIndex, features: Features) -> SlicePool | None:
    """None if a newer generation exists on other nodes: the driver is replacing this one."""
    first = slices[0]
    others: list[PublishedSlice] = []
    pool = SlicePool(pool_id)
    if len(slices) != first.count:
        known = index.by_pool[pool_id]
        if any(slice_.generation > first.generation for slice_ in known):
            return None
        current = [slice_ for slice_ in known if slice_.generation == first.generation]
        current = [slice_ for slice_ in current if not slice_.has_compatibility_groups]
        if len(current) != first.count:
            pool.incomplete = True
            return pool
        names = {slice_.name for slice_ in slices}
        others = [slice_ for slice_ in current if slice_.name not in names] if len(slices) < len(current) else []
    try:
        _fill(pool, sorted(slices, key=lambda slice_: slice_.name), others, features)
    except InvalidValue as error:
        pool.invalid = str(error)
    return pool


def _fill(pool: SlicePool, slices: list[PublishedSlice], others: list[PublishedSlice], features: Features) -> None:
    """Raises `InvalidValue` for an inconsistent pool."""
    partitionable = features.partitionable_devices
    with_counters = [slice_ for slice_ in (*slices, *others) if partitionable and slice_.has_counter_sets]
    devices = [slice_ for slice_ in slices if slice_ not in with_counters]
    _check_device_names(devices)
    if partitionable:
        for slice_ in with_counters:
            for name, counters in slice_.counter_sets:
                if name in pool.counter_sets:
                    raise InvalidValue(f"duplicate counter set name {name}")
                pool.counter_sets[name] = counters
        pool.others = [slice_ for slice_ in others if slice_ not in with_counters]
        _check_counters(pool, devices)
        _check_counters(pool, pool.others)
    pool.slices = devices


def _check_device_names(slices: list[PublishedSlice]) -> None:
    names: set[str] = set()
    for slice_ in slices:
        for device in slice_.devices:
            if device.name in names:
                raise InvalidValue(f"duplicate device name {device.name}")
            names.add(device.name)


def _check_counters(pool: SlicePool, slices: list[PublishedSlice]) -> None:
    for slice_ in slices:
        for device in slice_.devices:
            for counter_set, counters in device.counters.items():
                if counter_set not in pool.counter_sets:
                    raise InvalidValue(f"counter set {counter_set} not found")
                missing = next((name for name in counters if name not in pool.counter_sets[counter_set]), None)
                if missing is not None:
                    raise InvalidValue(f"counter {missing} not found in counter set {counter_set}")


def _has_binding_conditions(pool: SlicePool) -> bool:
    return any(device.has_binding_conditions for slice_ in pool.slices for device in slice_.devices)
