"""The table of `plugwright devices`."""

from collections.abc import Sequence
from datetime import datetime

from plugwright.cli.fitting_table import fitting_lines
from plugwright.cli.output import Cell, age, table_lines
from plugwright.fleet.fleet_devices import Fleet, FleetDevice
from plugwright.text import clean

__all__ = ["STATE_COLOURS", "age_of", "device_lines", "spare_columns"]

STATE_COLOURS = {
    "free": "green", "held": "blue", "shared": "cyan", "unhealthy": "red", "cordoned": "yellow", "tainted": "red",
    "unknown": "magenta",
}  # fmt: skip
_COLUMNS = ["NODE", "RESOURCE", "ID", "INDEX", "MODEL", "STATE", "HEALTH", "NUMA", "HOLDER", "API", "SINCE", "REASON"]
_WIDE = ["HELD SINCE", "SHARE", "TAINTS", "PHYSICAL", "KNOWN BY"]
_SPARE = ["HEALTH", "API", "NUMA", "MODEL", "INDEX", "SINCE", "RESOURCE"]  # the state tells the health
_OPTIONAL = {"INDEX", "MODEL", "NUMA", "SHARE", "TAINTS", "PHYSICAL", "HELD SINCE"}


def device_lines(fleet: Fleet, now: float, is_wide: bool = False) -> list[str]:
    """A table of the devices, and a line for unnamed ones."""
    columns = [*_COLUMNS, *(_WIDE if is_wide else [])]
    rows = [dict(zip([*_COLUMNS, *_WIDE], _cells(device, now), strict=True)) for device in fleet.devices]
    kept = [name for name in columns if name not in _OPTIONAL or any(row[name] != "-" for row in rows)]
    cells = [[row[name] for name in kept] for row in rows]
    spare = spare_columns(_SPARE, fleet.devices)
    lines = (table_lines(kept, cells) if is_wide else fitting_lines(kept, cells, "ID", spare)) if rows else []
    for unnamed in fleet.unnamed:
        held = "an unknown number" if unnamed.requested is None else str(unnamed.requested)
        counts = f"{unnamed.capacity} devices, {unnamed.allocatable} allocatable, {held} requested by pods"
        lines.append(f"{clean(unnamed.node)}  {clean(unnamed.resource)}: {counts}; their ids are not known")
    return lines or ["no devices"]


def spare_columns(columns: Sequence[str], devices: Sequence[FleetDevice]) -> list[str]:
    """The columns that a narrow terminal can do without; NODE is one of them if all devices are of one node."""
    is_one = len({device.node for device in devices}) == 1
    return [*columns[:-1], *(["NODE"] if is_one else []), columns[-1]]


def _cells(device: FleetDevice, now: float) -> Sequence[Cell]:
    health = (device.health, "green" if device.health == "Healthy" else "red")
    cordon = f" (by {device.cordoned_by})" if device.cordoned_by else ""
    until = f", until {device.cordoned_until}" if device.cordoned_until else ""
    return [
        device.node, device.resource, device.id, device.index or "-", device.model or "-",
        (device.state, STATE_COLOURS.get(device.state, "")), health if device.health != "Unknown" else "-",
        ",".join(map(str, device.numa)) or "-",
        " ".join(holder.name + (" (monitors)" if holder.admin_access else "") for holder in device.holders) or "-",
        device.api or "moving", age_of(device.since, now), device.reason + cordon + until,
        " ".join(age_of(holder.since, now) for holder in device.holders) or "-", device.share or "-",
        " ".join(device.taints) or "-", " ".join(device.physical) or "-", device.source,
    ]  # fmt: skip


def age_of(moment: str, now: float) -> str:
    """The age of a time in RFC 3339."""
    try:
        return age(now - datetime.fromisoformat(moment).timestamp())
    except ValueError:
        return "-"
