"""`plugwright who`: shows the holder of a device, of a resource's devices, or of a pod's."""

import time
from collections.abc import Iterator

import click
from msgspec.structs import replace

from plugwright.cli.completing import complete_held, complete_node
from plugwright.cli.devices_table import age_of
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

_SPARE = ["API", "CLAIM", "STATE", "RESOURCE"]
_DAY, _MOST_EVENTS = 86_400.0, 20
_COLUMNS = ["NODE", "RESOURCE", "DEVICE", "STATE", "HOLDER", "CLAIM", "API", "SINCE"]


@click.command(
    epilog="""\b
Examples:
  plugwright who mock/gpu                     every holder of its devices
  kubectl plugwright who GPU-8f3c --node worker-7
  kubectl plugwright who team-a/train-7       the devices of a pod
"""
)
@click.argument("what", metavar="RESOURCE|DEVICE|POD", shell_complete=complete_held)
@pod_namespace
@click.option("--node", default="", metavar="NODE", help="Only devices of this node.", shell_complete=complete_node)
@output_option()
@cluster_options
def who(what: str, namespace: str, cluster: DaemonChoice, output: str) -> None:
    """Show which pod, container and claim holds RESOURCE's devices, one DEVICE, or what POD holds.

    A device is named by its id, the beginning of it, its index (with --node), or the name of its hardware. For a single
    device, its events of the last 24 hours follow, if the daemon of its node keeps them.
    """
    fleet, _ = read_fleet(cluster)
    found = select_devices(fleet.devices, what, namespace)
    if not found and cluster.node:
        found = [device for device in fleet.devices if device.index and device.index == what]
    ids = {device.id for device in fleet.devices}
    others = {device.resource for device in fleet.devices}
    others |= {holder.pod for device in fleet.devices for holder in device.holders if holder.pod}
    unnamed = tuple(count for count in fleet.unnamed if count.resource == what)
    fleet = replace(fleet, devices=tuple(found), unnamed=unnamed)
    if document_printed(fleet, output):
        return
    if not fleet.devices and not fleet.unnamed:
        echo_unseen(fleet)
        raise ConfigError(f"no resource, device or holding pod is named {what!r}{close_names(what, ids, others)}")
    now = time.time()
    rows = [row for device in fleet.devices for row in _rows(device, now)]
    if rows:
        lines = table_lines(_COLUMNS, rows) if output == "wide" else fitting_lines(_COLUMNS, rows, "DEVICE", _SPARE)
        click.echo("\n".join(lines))
    for count in fleet.unnamed:
        held = "an unknown number" if count.requested is None else count.requested
        click.echo(clean(f"{count.node}: pods request {held} of {count.capacity}; who holds the others is not known"))
    if len(fleet.devices) == 1 and _is_device(what, fleet.devices[0]):
        for line in _past(fleet.devices[0], cluster, now):
            click.echo(line)
    echo_unseen(fleet)


def _is_device(what: str, found: FleetDevice) -> bool:
    """Whether `what` names the device rather than its resource or its pod."""
    return what != found.resource and what.rpartition("/")[2] not in {holder.pod for holder in found.holders}


def _past(device: FleetDevice, cluster: DaemonChoice, now: float) -> Iterator[str]:
    """The last day of a device that a daemon reports."""
    if device.source != "node-report":
        return
    yield ""
    try:
        events = find_daemon(replace(cluster, node=device.node)).ask({"do": "history", "since": now - _DAY})
    except PlugwrightError as error:
        yield clean(f"the last 24 hours are unknown: {error}")
        return
    own = [event for event in events if (event["resource"], event["device"]) == (device.resource, device.id)]
    yield "last 24 hours:" if own else "no event in the last 24 hours"
    for event in own[-_MOST_EVENTS:]:
        yield wrapped(f"  {seconds_of(clean(event['time']))}  {escaped(event_text(event))}", 4)


def _rows(device: FleetDevice, now: float) -> list[list[Cell]]:
    named: list[Cell] = [device.node, device.resource, device.id, device.state]
    return [
        [
            *named,
            "/".join(part for part in (holder.namespace, holder.pod, holder.container) if part) if holder.pod else "-",
            holder.claim or "-",
            holder.api,
            age_of(holder.since, now),
        ]
        for holder in device.holders
    ] or [[*named, "-", "-", device.api or "-", "-"]]
