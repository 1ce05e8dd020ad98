"""ResourceSlices as the allocator reads them: each slice once, its devices when a node needs them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Any

from plugwright.allocator.cel import CelDevice, CompiledSelector, SelectorError, compile_selector, version
from plugwright.allocator.consumable_capacity import DeviceCapacity, amount, capacities
from plugwright.allocator.node_selector import NodeSelector
from plugwright.errors import AllocationAborted

__all__ = [
    "DeviceId",
    "PublishedSlice",
    "SliceDevice",
    "SliceIndex",
    "compiled",
    "device_name",
    "rule_selects",
    "unknown_field",
    "with_rule_taints",
]

DeviceId = tuple[str, str, str]  # driver, pool, device

_DEVICE_FIELDS = {
    "name", "attributes", "capacity", "consumesCounters", "nodeName", "nodeSelector", "allNodes", "taints",
    "bindsToNode", "bindingConditions", "bindingFailureConditions", "allowMultipleAllocations",
}  # fmt: skip
_SLICE_FIELDS = {
    "driver", "pool", "nodeName", "nodeSelector", "allNodes", "devices", "perDeviceNodeSelection", "sharedCounters",
    "skipNodeOperations",
}  # fmt: skip
_TAINT_FIELDS = {"key", "value", "effect", "timeAdded"}
_CONSUMPTION_FIELDS = {"counterSet", "counters", "compatibilityGroups"}
_BLOCKING = ("NoSchedule", "NoExecute")
_REMEMBERED = 64  # expressions per device


def device_name(device: DeviceId) -> str:
    return "/".join(device)


def unknown_field(value: Mapping[str, Any], known: Iterable[str]) -> str:
    """The first field that the allocator does not support, empty if there is none. A null counts as absent."""
    return next((name for name in sorted(value.keys() - set(known)) if value[name] is not None), "")


@lru_cache(1024)
def _compiled(expression: str) -> CompiledSelector | SelectorError:
    try:
        return compile_selector(expression, stored=True)
    except SelectorError as error:
        return error


def compiled(expression: str) -> CompiledSelector:
    """The selector of an expression, compiled once. Raises `SelectorError`."""
    selector = _compiled(expression)
    if isinstance(selector, SelectorError):
        raise selector
    return selector


class SliceDevice:
    """A device of a slice. Expensive fields are read when a request needs them, and cached with the slice."""

    def __init__(self, slice_: "PublishedSlice", published: Mapping[str, Any]) -> None:
        self.slice = slice_
        self.published = published
        self.name: str = published["name"]
        self.id: DeviceId = (slice_.driver, slice_.pool, self.name)
        self.allows_multiple = bool(published.get("allowMultipleAllocations"))
        self.taints = [taint for taint in published.get("taints") or () if taint.get("effect") in _BLOCKING]
        self.has_binding_conditions = bool(published.get("bindingConditions"))
        self.node_name: str | None = published.get("nodeName")
        self.all_nodes = bool(published.get("allNodes"))
        self._matches: dict[str, bool] = {}

    @cached_property
    def counters(self) -> Mapping[str, Mapping[str, Decimal]]:
        """Its consumption, by counter set and counter."""
        consumed = self.published.get("consumesCounters") or ()
        return {entry["counterSet"]: _counters(entry.get("counters")) for entry in consumed}

    @cached_property
    def capacity(self) -> Mapping[str, DeviceCapacity]:
        return capacities(self.published.get("capacity") or {})

    @cached_property
    def node_selector(self) -> NodeSelector | None:
        selector = self.published.get("nodeSelector")
        return None if selector is None else NodeSelector.of(selector)

    @cached_property
    def unknown(self) -> str:
        """A field of the device or its slice that the allocator does not know, as a path."""
        return self.slice.unknown or next(_unknown_fields(self.published), "")

    @cached_property
    def _seen_by_cel(self) -> CelDevice:
        attributes: dict[str, dict[str, object]] = {}
        for name, value in (self.published.get("attributes") or {}).items():
            domain, _, identifier = name.rpartition("/")
            attributes.setdefault(domain or self.slice.driver, {})[identifier] = _attribute(name, value)
        capacity: dict[str, dict[str, str]] = {}
        for name, value in (self.published.get("capacity") or {}).items():
            domain, _, identifier = name.rpartition("/")
            capacity.setdefault(domain or self.slice.driver, {})[identifier] = str(value.get("value", "0"))
        return CelDevice(self.slice.driver, attributes, capacity, self.allows_multiple)

    def matches(self, expression: str) -> bool:
        """Whether the selector is true for the device. Raises `SelectorError`."""
        known = self._matches.get(expression)
        if known is None:
            known = compiled(expression).matches(self._seen_by_cel)
            if len(self._matches) >= _REMEMBERED:
                self._matches.clear()
            self._matches[expression] = known
        return known

    def matched(self, expression: str) -> bool | None:
        """As `matches`; None if the selector fails on the device."""
        try:
            return self.matches(expression)
        except SelectorError:
            return None

    def attribute(self, qualified: str) -> Mapping[str, Any] | None:
        """An attribute by its full name. A name without a domain belongs to the driver's domain."""
        attributes: Mapping[str, Mapping[str, Any]] = self.published.get("attributes") or {}
        if qualified in attributes:
            return attributes[qualified]
        domain, _, identifier = qualified.partition("/")
        return attributes.get(identifier) if identifier and domain == self.slice.driver else None


class PublishedSlice:
    """A ResourceSlice."""

    def __init__(self, published: Mapping[str, Any], serial: int = 0) -> None:
        spec = published["spec"]
        self.published, self.spec, self.serial = published, spec, serial
        self.name: str = (published.get("metadata") or {}).get("name", "")
        self.driver: str = spec["driver"]
        self.pool: str = spec["pool"]["name"]
        self.generation: int = spec["pool"].get("generation") or 0
        self.count: int = spec["pool"].get("resourceSliceCount") or 0
        self.node_name: str | None = spec.get("nodeName")
        self.all_nodes = bool(spec.get("allNodes"))
        self.per_device: bool | None = spec.get("perDeviceNodeSelection")
        self.has_counter_sets = bool(spec.get("sharedCounters"))
        self.skips_node_operations = bool(spec.get("skipNodeOperations"))

    @cached_property
    def devices(self) -> list[SliceDevice]:
        return [SliceDevice(self, device) for device in self.spec.get("devices") or ()]

    @cached_property
    def counter_sets(self) -> list[tuple[str, Mapping[str, Decimal]]]:
        return [(entry["name"], _counters(entry.get("counters"))) for entry in self.spec.get("sharedCounters") or ()]

    @cached_property
    def node_selector(self) -> NodeSelector | None:
        selector = self.spec.get("nodeSelector")
        return None if selector is None else NodeSelector.of(selector)

    @cached_property
    def has_compatibility_groups(self) -> bool:
        return any(
            entry.get("compatibilityGroups")
            for device in self.spec.get("devices") or ()
            for entry in device.get("consumesCounters") or ()
        )

    @cached_property
    def unknown(self) -> str:
        field = unknown_field(self.spec, _SLICE_FIELDS)
        return f"spec.{field}" if field else ""


class SliceIndex:
    """All ResourceSlices of a cluster, by node and by pool. Keep it while slices stay, and `put` those that change."""

    def __init__(self, slices: Iterable[Mapping[str, Any]] = ()) -> None:
        self.on_node: dict[str, list[PublishedSlice]] = {}
        self.elsewhere: list[PublishedSlice] = []  # without a node name
        self.counter_sets_on_nodes: list[PublishedSlice] = []
        self.by_pool: dict[tuple[str, str], list[PublishedSlice]] = {}
        self._by_name: dict[str, PublishedSlice] = {}
        self._serial = 0
        for published in slices:
            self._add(published)

    def put(self, published: Mapping[str, Any]) -> None:
        """Adds a slice, or replaces the slice of the same name."""
        self.remove((published.get("metadata") or {}).get("name", ""))
        self._add(published)

    def remove(self, name: str) -> None:
        known = self._by_name.pop(name, None)
        if known is None:
            return
        for slices in self._lists_of(known):
            slices.remove(known)

    def _add(self, published: Mapping[str, Any]) -> None:
        self._serial += 1
        try:
            added = PublishedSlice(published, self._serial)
        except (KeyError, TypeError) as error:
            name = (published.get("metadata") or {}).get("name", "")
            raise AllocationAborted(f"ResourceSlice {name}: needs spec.driver and spec.pool.name ({error})") from None
        self._by_name[added.name] = added
        for slices in self._lists_of(added):
            slices.append(added)

    def _lists_of(self, known: PublishedSlice) -> list[list[PublishedSlice]]:
        lists = [self.by_pool.setdefault((known.driver, known.pool), [])]
        lists.append(self.on_node.setdefault(known.node_name, []) if known.node_name else self.elsewhere)
        return [*lists, self.counter_sets_on_nodes] if known.node_name and known.has_counter_sets else lists


def _counters(published: Mapping[str, Any] | None) -> Mapping[str, Decimal]:
    return {name: amount(str(counter["value"])).value for name, counter in (published or {}).items()}


def _unknown_fields(device: Mapping[str, Any]) -> Iterator[str]:
    """Paths of fields of a device that the allocator does not know."""
    path = "spec.devices[]"
    parts: list[tuple[str, Mapping[str, Any], set[str]]] = [(path, device, _DEVICE_FIELDS)]
    parts += [(f"{path}.taints[]", taint, _TAINT_FIELDS) for taint in device.get("taints") or ()]
    parts += [
        (f"{path}.consumesCounters[]", entry, _CONSUMPTION_FIELDS) for entry in device.get("consumesCounters") or ()
    ]
    for capacity in (device.get("capacity") or {}).values():
        policy = capacity.get("requestPolicy") or {}
        parts.append((f"{path}.capacity.*", capacity, {"value", "requestPolicy"}))
        parts.append((f"{path}.capacity.*.requestPolicy", policy, {"default", "validValues", "validRange"}))
        parts.append(
            (f"{path}.capacity.*.requestPolicy.validRange", policy.get("validRange") or {}, {"min", "max", "step"})
        )
    for where, value, known in parts:
        field = unknown_field(value, known)
        if field:
            yield f"{where}.{field}"


_SCALARS: Mapping[str, Callable[[Any], object]] = {"bool": bool, "int": int, "string": str, "version": version}


def _attribute(name: str, value: Mapping[str, Any]) -> object:
    for kind, convert in _SCALARS.items():
        if value.get(f"{kind}s") is not None:
            return [convert(entry) for entry in value[f"{kind}s"]]
    for kind, convert in _SCALARS.items():
        if value.get(kind) is not None:
            return convert(value[kind])
    raise SelectorError(f"attribute {name}: unsupported attribute value")


def rule_selects(rule: Mapping[str, Any], device: DeviceId) -> bool:
    """Whether the taint of a rule is on the device. A rule without a selector selects nothing, an empty one all."""
    selector = (rule.get("spec") or {}).get("deviceSelector")
    if selector is None:
        return False
    wanted = (selector.get(name) for name in ("driver", "pool", "device"))
    return all(text is None or text == part for text, part in zip(wanted, device, strict=True))


def with_rule_taints(slice_: Mapping[str, Any], rules: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The ResourceSlice as the scheduler sees it; the same object if no rule selects one of its devices."""
    rules, spec = list(rules), slice_["spec"]
    if not rules or not spec.get("devices"):
        return slice_
    driver, pool = spec["driver"], spec["pool"]["name"]
    added = [
        [rule["spec"]["taint"] for rule in rules if rule_selects(rule, (driver, pool, device["name"]))]
        for device in spec["devices"]
    ]
    if not any(added):
        return slice_
    devices = [
        {**device, "taints": [*(device.get("taints") or ()), *taints]} if taints else device
        for device, taints in zip(spec["devices"], added, strict=True)
    ]
    return {**slice_, "spec": {**spec, "devices": devices}}
