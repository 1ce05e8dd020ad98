"""`plugwright free`: how many devices of each resource are free, held and unhealthy."""

from typing import get_args

import click

from plugwright.cli.completing import complete_node
from plugwright.cli.fleet_options import cluster_options, echo_unseen
from plugwright.cli.output import Cell, document_printed, output_option, table_lines
from plugwright.fleet.cluster_view import read_fleet
from plugwright.fleet.daemons import DaemonChoice
from plugwright.fleet.sums import Grouping, count_free

__all__ = ["free"]

_NUMBERS = ("total", "free", "held", "unhealthy", "unknown")


@click.command(epilog="Example:  kubectl plugwright free --by node")
@click.argument("node", default="", metavar="[NODE]", shell_complete=complete_node)
@click.option(
    "--by",
    type=click.Choice(get_args(Grouping)),
    default="resource",
    show_default=True,
    help="Group the counts by this.",
)
@output_option()
@cluster_options
def free(by: Grouping, cluster: DaemonChoice, output: str) -> None:
    """Count the devices of the cluster or of NODE: free, held, unhealthy or cordoned, and unknown.

    A device whose holders cannot be seen is unknown, never free.
    """
    fleet, _ = read_fleet(cluster)
    counts = count_free(fleet, by)
    if document_printed({"counts": counts, "unseen": fleet.unseen}, output):
        return
    columns = ["RESOURCE", *([by.upper()] if by != "resource" else []), *map(str.upper, _NUMBERS)]
    rows: list[list[Cell]] = [
        [count.resource, *([count.by] if by != "resource" else []), *(str(getattr(count, name)) for name in _NUMBERS)]
        for count in counts
    ]
    for line in table_lines(columns, rows) if rows else ["no devices"]:
        click.echo(line)
    echo_unseen(fleet)
