"""`plugwright who`: shows the holder of a device, of a resource's devices, or of a pod's."""

import time
from collections.abc import Iterator, Sequence

import click
from msgspec.structs import replace

from plugwright.cli.completing import complete_held, complete_node, complete_resource
from plugwright.cli.devices_table import STATE_COLOURS, age_of, spare_columns
from plugwright.cli.fitting_table import fitting_lines
from plugwright.cli.fleet_options import cluster_options, echo_unseen, pod_namespace
from plugwright.cli.output import Cell, document_printed, output_option, table_lines, wrapped
from plugwright.errors import ConfigError, PlugwrightError
from plugwright.fleet.cluster_view import read_fleet
from plugwright.fleet.daemons import DaemonChoice, find_daemon
from plugwright.fleet.device_events import event_text, seconds_of
from plugwright.fleet.device_names import close_names
from plugwright.fleet.fleet_devices import FleetDevice
from plugwright.fleet.sums import select_devices
from plugwright.text import clean, escaped

__all__ = ["who"]

_SPARE = ["API", "CLAIM", "INDEX", "STATE", "RESOURCE"]
_DAY, _MOST_EVENTS, _MOST_DEVICES = 86_400.0, 20, 8
_COLUMNS = ["NODE", "RESOURCE", "DEVICE", "INDEX", "STATE", "HOLDER", "CLAIM", "API", "SINCE", "REASON"]
_OPTIONAL = ("INDEX", "CLAIM", "REASON")


@click.command(
    epilog="""\b
Examples:
  plugwright who mock/gpu                     every holder of its devices
  kubectl plugwright who GPU-8f3c
  kubectl plugwright who 3 --node worker-7    GPU 3, and its last 24 hours
  kubectl plugwright who team-a/train-7       the devices of a pod
"""
)
@click.argument("what", metavar="RESOURCE|DEVICE|POD|CLAIM", shell_complete=complete_held)
@pod_namespace
@click.option("--node", default="", metavar="NODE", help="Only devices of this node.", shell_complete=complete_node)
@click.option(
    "--resource", default="", metavar="RESOURCE", help="Only devices of this resource or driver.",
    shell_complete=complete_resource,
)  # fmt: skip
@output_option()
@cluster_options
def who(what: str, namespace: str, resource: str, cluster: DaemonChoice, output: str) -> None:
    """Show which pods, containers and claims hold RESOURCE or DEVICE, or which devices POD or CLAIM holds.

    DEVICE is an id, an id prefix, an index (with --node), or a hardware name. For DEVICE, the events of the last 24
    hours follow, if the daemon of its node keeps a history.
    """
    fleet, _ = read_fleet(cluster)
    known = [device for device in fleet.devices if resource in ("", device.resource)]
    found = select_devices(known, what, namespace, by_index=bool(cluster.node))
    unnamed = tuple(count for count in fleet.unnamed if count.resource == what)
    fleet = replace(fleet, devices=tuple(found), unnamed=unnamed)
    if document_printed(fleet, output):
        return
    if not fleet.devices and not fleet.unnamed:
        echo_unseen(fleet)
        raise ConfigError(f"no resource, device, holding pod or claim is named {what!r}{_hint(what, known)}")
    now = time.time()
    if fleet.devices:
        click.echo("\n".join(_table(fleet.devices, now, is_wide=output == "wide")))
    for count in fleet.unnamed:
        held = "an unknown number" if count.requested is None else count.requested
        click.echo(clean(f"{count.node}: pods request {held} of {count.capacity}; who holds the others is not known"))
    if len(fleet.devices) <= _MOST_DEVICES and all(_is_device(what, device) for device in fleet.devices):
        for device in fleet.devices:
            for line in _past(device, cluster, now, is_only=len(fleet.devices) == 1):
                click.echo(line)
    echo_unseen(fleet)


def _hint(what: str, known: Sequence[FleetDevice]) -> str:
    """A suggestion for a name that matches nothing."""
    if any(device.index == what for device in known):
        return "; with --node NODE it is the index of a device"
    names = {device.resource for device in known}
    names |= {holder.pod for device in known for holder in device.holders if holder.pod}
    return close_names(what, {device.id for device in known}, names)


def _is_device(what: str, found: FleetDevice) -> bool:
    """Whether `what` names the device rather than its resource, its pod or its claim."""
    users = {name for holder in found.holders for name in (holder.pod, holder.claim)}
    return what != found.resource and what.rpartition("/")[2] not in users


def _past(device: FleetDevice, cluster: DaemonChoice, now: float, *, is_only: bool) -> Iterator[str]:
    """The last day of a device that a daemon reports."""
    if device.source != "node-report":
        return
    yield ""
    name = "" if is_only else f"{clean(f'{device.resource} {device.id}')}: "
    try:
        events = find_daemon(replace(cluster, node=device.node)).ask({"do": "history", "since": now - _DAY})
    except PlugwrightError as error:
        yield clean(f"{name}the last 24 hours are unknown: {error}")
        return
    own = [event for event in events if (event["resource"], event["device"]) == (device.resource, device.id)]
    yield f"{name}last 24 hours:" if own else f"{name}no event in the last 24 hours"
    for event in own[-_MOST_EVENTS:]:
        yield wrapped(f"  {seconds_of(clean(event['time']))}  {escaped(event_text(event))}", 4)


def _table(devices: Sequence[FleetDevice], now: float, *, is_wide: bool) -> list[str]:
    rows = [dict(zip(_COLUMNS, row, strict=True)) for device in devices for row in _rows(device, now)]
    columns = [name for name in _COLUMNS if name not in _OPTIONAL or any(row[name] not in ("", "-") for row in rows)]
    cells = [[row[name] for name in columns] for row in rows]
    if is_wide:
        return table_lines(columns, cells)
    return fitting_lines(columns, cells, "DEVICE", spare_columns(_SPARE, devices))


def _rows(device: FleetDevice, now: float) -> list[list[Cell]]:
    state = device.state, STATE_COLOURS.get(device.state, "")
    named: list[Cell] = [device.node, device.resource, device.id, device.index or "-", state]
    return [
        [
            *named,
            "/".join(part for part in (holder.namespace, holder.pod, holder.container) if part) if holder.pod else "-",
            holder.claim or "-",
            holder.api,
            age_of(holder.since, now),
            device.reason,
        ]
        for holder in device.holders
    ] or [[*named, "-", "-", device.api or "-", "-", device.reason]]
