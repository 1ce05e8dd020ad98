"""Sums over the devices of a fleet, and the selection of devices and holders by name."""

import re
from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec.structs import replace

from plugwright.explain.world import ApiObject, is_device_resource
from plugwright.fleet.counts import FreeCount, UnnamedDevices
from plugwright.fleet.fleet_devices import Fleet, FleetDevice
from plugwright.model import natural_order

__all__ = ["Grouping", "count_free", "devices_of", "select_devices", "wants_devices"]

Grouping = Literal["resource", "model", "node", "numa"]
_COUNTED = {"free": "free", "shared": "free", "held": "held", "unknown": "unknown"}


def count_free(fleet: Fleet, by: Grouping = "resource") -> list[FreeCount]:
    """A row per resource, and per node, model or NUMA node. A shared device counts as free, because parts of it are."""
    rows: dict[tuple[str, str], FreeCount] = {}
    for device in fleet.devices:
        if device.source != "pod-status":  # the Node counts those
            key = device.resource, _group(device, by)
            row = rows.get(key) or FreeCount(resource=key[0], by=key[1])
            field = _COUNTED.get(device.state, "unhealthy")
            rows[key] = replace(row, total=row.total + 1, **{field: getattr(row, field) + 1})
    for unnamed in fleet.unnamed:
        key = unnamed.resource, {"node": unnamed.node, "resource": ""}.get(by, "-")
        rows[key] = _added(rows.get(key) or FreeCount(resource=key[0], by=key[1]), unnamed)
    return [rows[key] for key in sorted(rows, key=lambda key: tuple(map(natural_order, key)))]


def _group(device: FleetDevice, by: Grouping) -> str:
    match by:
        case "model":
            return device.model or "-"
        case "node":
            return device.node
        case "numa":
            return f"{device.node} {','.join(map(str, device.numa))}" if device.numa else "-"
    return ""


def _added(row: FreeCount, unnamed: UnnamedDevices) -> FreeCount:
    """The row plus unnamed devices. Unhealthy ones can be held too: those requested beyond the allocatable number."""
    usable = min(unnamed.allocatable, unnamed.capacity)
    row = replace(row, total=row.total + unnamed.capacity, unhealthy=row.unhealthy + unnamed.capacity - usable)
    if unnamed.requested is None:
        return replace(row, unknown=row.unknown + usable)
    held = min(unnamed.requested, usable)
    return replace(row, held=row.held + held, free=row.free + usable - held)


def select_devices(
    devices: Iterable[FleetDevice], what: str, namespace: str = "", *, by_index: bool = False
) -> list[FleetDevice]:
    """The devices that `what` names: a resource's, one device, or those of a pod or claim; empty if there is none.

    A pod or claim is `NAMESPACE/NAME`, or a name in `namespace`. `mock-1` is `mock-1-3f` rather than `mock-10`; any
    other beginning means all ids with it. An index, if `by_index`, has precedence over beginnings.
    """
    every = list(devices) if what else []
    whole = re.compile(re.escape(what) + r"[-_.:/]")
    meanings = (
        (device for device in every if what in (device.resource, device.id, *device.physical)),
        devices_of(every, what, namespace),
        (device for device in every if by_index and device.index == what),
        (device for device in every if whole.match(device.id)),
        (device for device in every if device.id.startswith(what)),
    )
    return next((found for found in map(list, meanings) if found), [])


def devices_of(devices: Iterable[FleetDevice], user: str, namespace: str = "") -> Iterator[FleetDevice]:
    """The devices that a pod or claim holds, each with only those holders."""
    wanted_namespace, _, name = user.rpartition("/")
    for device in devices:
        own = tuple(
            holder
            for holder in device.holders
            if name and name in (holder.pod, holder.claim) and (wanted_namespace or namespace) in ("", holder.namespace)
        )
        if own:
            yield replace(device, holders=own)


def wants_devices(pod: ApiObject) -> bool:
    """Whether a pod requests extended resources or claims."""
    spec = pod.get("spec") or {}
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    limits = [resource for entry in containers for resource in (entry.get("resources") or {}).get("limits") or ()]
    return bool(spec.get("resourceClaims")) or any(map(is_device_resource, limits))
