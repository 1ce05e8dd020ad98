"""`plugwright down`: end the cluster that `plugwright up` has started."""

import os
from pathlib import Path

import click

from plugwright.cli.cluster_place import place
from plugwright.cli.control import ask
from plugwright.cli.up import state_option

__all__ = ["down"]

_LIMIT = 30.0


@click.command(epilog="Example:  plugwright down --state ./lab")
@state_option
def down(state: Path | None) -> None:
    """End the running cluster, and return when it has ended.

    One that was started with --state DIR is named by it; its objects stay there. Any other leaves nothing.
    """
    where = place(state, os.environ)
    facts = where.running()
    ask(Path(facts["control"]), {"do": "end"})
    where.wait_until_free(_LIMIT)
    kept = f"; its state is in {where.directory}" if where.kept else ""
    click.echo(f"process {facts['pid']} has ended{kept}")
