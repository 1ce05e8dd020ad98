"""The live view of a cluster: a cell for each device, holders, the last events, and waiting pods with a reason each."""

import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from plugwright.cli.devices_table import STATE_COLOURS, age_of
from plugwright.cli.fitting_table import fitting_lines
from plugwright.cli.output import Cell
from plugwright.explain.explanation import explain_pod
from plugwright.explain.world import World, identity, is_finished
from plugwright.fleet.device_events import event_text
from plugwright.fleet.fleet_devices import STATE_LETTERS, Fleet, FleetDevice
from plugwright.fleet.sums import wants_devices
from plugwright.text import clean

__all__ = ["fleet_key", "fleet_view"]

_FIT = ("free", "held", "shared")
_MOST_EVENTS, _MOST_PODS, _MOST_HOLDERS = 5, 5, 20
_LEAST_CELLS, _LEAST_HOLDERS = 5, 4


def fleet_key(fleet: Fleet, world: World) -> object:
    """A value that differs if anything but an age has changed."""
    waiting = [identity(pod) for pod in world.pods if _waits(pod)]
    return fleet.devices, fleet.unnamed, fleet.unseen, waiting


def fleet_view(fleet: Fleet, world: World) -> list[str]:
    """On a terminal that is too small, events and waiting pods stay; holders and cells are left out, and counted."""
    last = [*_events(fleet.events), *_waiting(world), *_unseen(fleet)]
    cells, rows = list(_cells(fleet)), _holder_rows(fleet)
    room = shutil.get_terminal_size().lines - 1 if sys.stdout.isatty() else None  # a line is the time
    if room is None:
        return [*cells, *_holders(rows, _MOST_HOLDERS), *last]
    held = min(len(rows) + 2, _LEAST_HOLDERS + 3) if rows else 0
    most = max(_LEAST_CELLS, room - len(last) - held)
    if len(cells) > most:
        cells = [*cells[: most - 1], f"{len(cells) - most + 1} more rows: plugwright devices"]
    left = room - len(last) - len(cells) - 3  # the gap, the header, and the number of others
    return [*cells, *_holders(rows, min(_MOST_HOLDERS, max(_LEAST_HOLDERS, left))), *last]


def _cells(fleet: Fleet) -> Iterator[str]:
    yield "  ".join(
        click.style(f"{letter} {state}", fg=STATE_COLOURS[state]) for state, letter in STATE_LETTERS.items()
    )
    groups: dict[tuple[str, str], list[FleetDevice]] = {}
    for device in fleet.devices:
        groups.setdefault((device.node, device.resource), []).append(device)
    width = max((len(clean(node)) + len(clean(resource)) + 2 for node, resource in groups), default=0)
    for (node, resource), devices in groups.items():
        cells = "".join(
            click.style(STATE_LETTERS[device.state], fg=STATE_COLOURS[device.state], bold=device.state != "free")
            for device in devices
        )
        yield f"{f'{clean(node)}  {clean(resource)}'.ljust(width)}  {cells}"
    for count in fleet.unnamed:
        held = "?" if count.requested is None else count.requested
        yield f"{clean(count.node)}  {clean(count.resource)}  {held} of {count.allocatable} requested"


def _holder_rows(fleet: Fleet) -> list[list[Cell]]:
    now = time.time()
    rows: list[list[Cell]] = []
    for device in sorted(fleet.devices, key=lambda device: device.state in _FIT):  # those with a problem first
        names = [holder.name for holder in device.holders] or ["-"]
        if device.holders or device.state not in ("free", "held"):
            since = age_of(device.holders[0].since if device.holders else device.since, now)
            state = device.state, STATE_COLOURS[device.state]
            rows.append([device.node, device.resource, device.id, state, " ".join(names), since, device.reason])
    return rows


def _holders(rows: Sequence[Sequence[Cell]], most: int) -> Iterator[str]:
    if rows:
        yield ""
        columns = ["NODE", "RESOURCE", "ID", "STATE", "HOLDER", "SINCE", "REASON"]
        yield from fitting_lines(columns, rows[:most], "ID", ["RESOURCE"], is_live=True)
    if len(rows) > most:
        yield f"{len(rows) - most} more: plugwright devices"


def _events(events: tuple[Mapping[str, Any], ...]) -> Iterator[str]:
    if not events:
        return
    yield ""
    rows: list[list[Cell]] = [
        [age_of(str(event["time"]), time.time()), str(event["node"]), str(event["device"]), event_text(event)]
        for event in events[-_MOST_EVENTS:]
    ]
    yield from fitting_lines(["AGO", "NODE", "DEVICE", "EVENT"], rows, "DEVICE", [], is_live=True)


def _waiting(world: World) -> Iterator[str]:
    waiting = [pod for pod in world.pods if _waits(pod)]
    if waiting:
        yield ""
        yield f"{len(waiting)} waiting for devices:"
    for pod in waiting[:_MOST_PODS]:
        namespace, name = identity(pod)
        yield clean(f"  {namespace}/{name} {explain_pod(world, pod).answer}", limit=300)


def _waits(pod: Mapping[str, Any]) -> bool:
    is_bound = bool((pod.get("spec") or {}).get("nodeName"))
    return not is_bound and not is_finished(pod) and wants_devices(pod)


def _unseen(fleet: Fleet) -> Iterator[str]:
    if fleet.unseen:
        yield ""
        yield from (f"not seen: {clean(entry)}" for entry in fleet.unseen)
