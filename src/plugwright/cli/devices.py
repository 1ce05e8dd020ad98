"""`plugwright devices`: every device of a cluster or a node, its health and its holder."""

import time
from collections.abc import Sequence

import click
from msgspec.structs import replace

from plugwright.cli.completing import complete_node, complete_resource
from plugwright.cli.devices_table import device_lines
from plugwright.cli.fleet_options import cluster_options, echo_unseen
from plugwright.cli.output import document_printed, output_option
from plugwright.errors import PeerGone
from plugwright.explain.world import World
from plugwright.fleet.cluster_view import read_fleet
from plugwright.fleet.daemons import DaemonChoice
from plugwright.fleet.fleet_devices import Fleet, reading_text
from plugwright.text import clean

__all__ = ["devices"]

_MOST_SOURCES = 16
_PAUSE = 1.0  # seconds between two looks


@click.command(
    epilog="""\b
Examples:
  plugwright devices                          every device of the cluster
  kubectl plugwright devices worker-7 -o wide
"""
)
@click.argument("node", default="", metavar="[NODE]", shell_complete=complete_node)
@click.option(
    "--resource", default="", metavar="RESOURCE", help="Only devices of this resource or driver.",
    shell_complete=complete_resource,
)  # fmt: skip
@click.option("--unhealthy", is_flag=True, help="Only devices that are unhealthy, cordoned, tainted or unknown.")
@click.option("-w", "--watch", is_flag=True, help="Keep running, and redraw when something changes.")
@output_option()
@cluster_options
def devices(cluster: DaemonChoice, resource: str, unhealthy: bool, watch: bool, output: str) -> None:
    """Show each device of the cluster or of NODE: model, health, reason, NUMA node and holder.

    The holders come from the NodeReport of each node's daemon, or from the API server if a node has none. Facts that
    cannot be seen are listed below the table.
    """
    if watch:
        if output not in ("text", "wide"):
            raise click.UsageError("--watch is for people: use --output text")
        _watch(cluster, resource, unhealthy)
        return
    fleet = _selected(read_fleet(cluster)[0], resource, unhealthy)
    if document_printed(fleet, output):
        return
    for line in device_lines(fleet, time.time(), is_wide=output == "wide"):
        click.echo(line)
    if output == "wide":
        _echo_sources(fleet)
    echo_unseen(fleet)


def _selected(fleet: Fleet, resource: str, unhealthy: bool) -> Fleet:
    fit = ("free", "held", "shared") if unhealthy else ()
    shown = [device for device in fleet.devices if resource in ("", device.resource) and device.state not in fit]
    return replace(
        fleet,
        devices=tuple(shown),
        unnamed=tuple(entry for entry in fleet.unnamed if resource in ("", entry.resource)),
    )


def _echo_sources(fleet: Fleet) -> None:
    """How each NodeReport was read."""
    for node, via in list(fleet.sources.items())[:_MOST_SOURCES]:
        click.echo(clean(f"NodeReport of {node}: {reading_text(via)}"))
    if len(fleet.sources) > _MOST_SOURCES:
        click.echo(f"and {len(fleet.sources) - _MOST_SOURCES} more NodeReports: -o json lists them")


def _watch(cluster: DaemonChoice, resource: str, unhealthy: bool) -> None:
    from plugwright.cli.devices_view import fleet_key, fleet_view  # loads the explanations of waiting pods
    from plugwright.cli.live import show_live

    last: tuple[Fleet, World] | None = None

    def view() -> tuple[object, Sequence[str]]:
        nonlocal last
        problem: list[str] = []
        try:
            fleet, world = read_fleet(cluster)
            last = _selected(fleet, resource, unhealthy), world
        except PeerGone as error:
            if last is None:
                raise
            problem = [click.style(f"not up to date: {clean(error)}", fg="red")]
        return (fleet_key(*last), problem), [*problem, *fleet_view(*last)]

    show_live(view, _PAUSE)
