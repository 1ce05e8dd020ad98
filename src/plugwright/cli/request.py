"""`plugwright request`: passes one request to the daemon's control socket, for commands on other machines."""

import json
import sys

import click

from plugwright.cli.control import ChosenDaemon, daemon_options
from plugwright.errors import PeerRefused

__all__ = ["request"]


@click.command(hidden=True, epilog="""Example:  plugwright request '{"do": "status"}'""")
@click.argument("text", metavar="JSON")
@click.option("--follow", is_flag=True, help="Print every answer until the caller disconnects.")
@daemon_options()
def request(text: str, follow: bool, daemon: ChosenDaemon) -> None:
    """Send JSON to the daemon's control socket, and print its answers as JSON, one per line."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"a request must be JSON: {error}") from error
    try:
        answers = daemon.follow(content) if follow else iter([daemon.ask(content)])
        for answer in answers:
            sys.stdout.write(json.dumps({"ok": answer}) + "\n")
            sys.stdout.flush()
    except PeerRefused as error:
        sys.stdout.write(json.dumps({"error": str(error)}) + "\n")
