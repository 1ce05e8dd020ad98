"""The content of a node's pool: its devices in ResourceSlices, with attributes, capacity, counters, taints.

`attributes` and `model` reject content that an API server would reject.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from plugwright.attributes import Capacity, Consumption, CounterSet, Version, is_published
from plugwright.dra.device_placement import MOVING
from plugwright.dra.resource_slices.slice_comparison import Document
from plugwright.dra.resource_slices.slices import PoolContent
from plugwright.errors import InvalidValue
from plugwright.model import Device
from plugwright.sdk import driver_names as names
from plugwright.sdk.inventory import Snapshot

__all__ = ["attributes", "counter_sets", "pool_content", "published_devices", "slice_device"]

Taint = Mapping[str, str]

_VALUES_LIMIT = 32  # attributes and capacities of one device together
_TEXT_LIMIT = 64  # bytes
_TAINTS_LIMIT = 16
_NUMA_NODE = "resource.kubernetes.io/numaNode"
_UNITS = [(f"{unit}i", 1024**power) for power, unit in reversed([*enumerate("KMGTPE", 1)]) if power > 1]


def pool_content(
    snapshot: Snapshot,
    offered: Collection[str],
    taints: Mapping[str, Sequence[Taint]],
    moving: Mapping[str, Taint],
) -> PoolContent:
    """The devices in `offered`, by id, in natural order: the scheduler takes the first that fits.

    `moving` have an additional taint. It is added here, so that a device offered to a single claim is never in the
    slices without it.
    """
    devices = [device for device_id, device in snapshot.devices.items() if device_id in offered]
    documents = (slice_device(device, _sorted(taints.get(device.id, ()), moving.get(device.id))) for device in devices)
    return PoolContent(tuple(documents), counter_sets(devices))


def _sorted(taints: Sequence[Taint], moving: Taint | None) -> list[dict[str, str]]:
    every = [*taints, *([moving] if moving is not None else [])]
    return [dict(taint) for taint in sorted(every, key=lambda taint: taint["key"])]


def published_devices(content: PoolContent) -> dict[str, bool]:
    """The names of the devices in the slices, and whether each has the taint of a move."""
    return {
        document["name"]: any(taint.get("key") == MOVING["key"] for taint in document.get("taints") or ())
        for document in content.devices
    }


def slice_device(device: Device, taints: Sequence[Document] = ()) -> Document:
    """The document of a device, without unused fields."""
    if len(taints) > _TAINTS_LIMIT:
        raise InvalidValue(f"{device.id!r} must have at most {_TAINTS_LIMIT} taints, got {len(taints)}")
    document: Document = {"name": names.device_name(device.id)}
    if named := attributes(device):
        document["attributes"] = named
    if device.capacity:
        capacity = sorted(device.capacity.items())
        document["capacity"] = {name: _capacity(value) for name, value in capacity}
    if device.allow_multiple:
        document["allowMultipleAllocations"] = True
    if device.consumes:
        consumed = sorted(device.consumes, key=lambda consumption: consumption.of.name)
        document["consumesCounters"] = [_consumption(consumption) for consumption in consumed]
    if taints:
        document["taints"] = [dict(taint) for taint in taints]
    return document


def counter_sets(devices: Iterable[Device]) -> tuple[Document, ...]:
    """The counter sets that the devices consume, by name."""
    found: dict[str, CounterSet] = {}
    for device in devices:
        for consumption in device.consumes:
            name = consumption.of.name
            if found.setdefault(name, consumption.of).counters != consumption.of.counters:
                raise InvalidValue(
                    f"the counter set {name} must be the same for every device, not so for {device.id!r}"
                )
    return tuple({"name": name, "counters": _counters(found[name].counters)} for name in sorted(found))


def attributes(device: Device) -> Document:
    """The attributes that claims can select by; if there is room, also the device's id and NUMA node."""
    made = {name: _attribute(value) for name, value in sorted(device.attributes.items()) if is_published(value)}
    more: list[tuple[str, object]] = [("id", device.id)] if len(device.id.encode()) <= _TEXT_LIMIT else []
    if len(device.numa) == 1:
        more.append((_NUMA_NODE, device.numa[0]))
    for name, value in more:
        if name not in made and len(made) + len(device.capacity) < _VALUES_LIMIT:
            made[name] = _attribute(value)
    return made


def _attribute(value: object) -> Document:
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": int(value)}
    return {"version" if isinstance(value, Version) else "string": str(value)}


def _capacity(capacity: Capacity) -> Document:
    made: Document = {"value": _amount(capacity.value)}
    if capacity.default is None:
        return made
    policy: Document = {"default": _amount(capacity.default)}
    if capacity.values:
        policy["validValues"] = [_amount(value) for value in capacity.values]
    elif capacity.minimum is not None:
        limits = {"min": capacity.minimum, "max": capacity.maximum, "step": capacity.step}
        policy["validRange"] = {name: _amount(value) for name, value in limits.items() if value is not None}
    return {**made, "requestPolicy": policy}


def _consumption(consumption: Consumption) -> Document:
    return {"counterSet": consumption.of.name, "counters": _counters(consumption.counters)}


def _counters(counters: Mapping[str, int]) -> Document:
    return {name: {"value": _amount(counters[name])} for name in sorted(counters)}


def _amount(number: int) -> str:
    """In the usual notation: `80Gi`."""
    unit, size = next((row for row in _UNITS if number and number % row[1] == 0), ("", 1))
    return f"{number // size}{unit}"
