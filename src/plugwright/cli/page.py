"""`plugwright page`: the devices of a cluster in a browser."""

import os
import sys

import click

from plugwright.apiserver.extra import check_installed
from plugwright.cli import logs
from plugwright.cli.fleet_options import cluster_options
from plugwright.cli.options import duration
from plugwright.cli.output import document_printed, output_option
from plugwright.fleet.daemons import DaemonChoice

__all__ = ["page"]

_LIBRARIES = ("starlette", "uvicorn")


@click.command(
    epilog="""\b
Examples:
  plugwright page               of the running `up`, else of kubectl's cluster
  kubectl plugwright page --context lab --port 8675
"""
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    default=0,
    help="Port of the page, on 127.0.0.1.  [default: any]",
)
@click.option("--timeout", type=duration, metavar="TIME", help="Stop after this time, such as 90s, 10m or 2h.")
@output_option()
@cluster_options
def page(cluster: DaemonChoice, port: int, timeout: float | None, output: str) -> None:
    """Serve a live page with every device of the cluster: its holder, its health, and the pods that wait for it.

    Listens only on 127.0.0.1. The printed address contains a token: anyone who has it sees everything that your
    kubeconfig can read, and can make mock devices fail. Ctrl-C stops it.
    """
    check_installed("plugwright page", _LIBRARIES, "web")
    logs.configure("human", "warning")
    from plugwright.web.page_program import run  # loads the server and the views

    def show(address: str, server: str) -> None:
        if not document_printed({"page": address, "server": server, "pid": os.getpid()}, output):
            click.echo(f"the page of {server}:  {address}\nCtrl-C ends it.")
        sys.stdout.flush()

    run(cluster, os.environ, show, port, timeout)
