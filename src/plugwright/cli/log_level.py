"""`plugwright log-level`: changes how much a daemon logs, without a restart."""

import click

from plugwright.cli.control import ChosenDaemon, daemon_options, print_of_all
from plugwright.cli.logs import LEVELS
from plugwright.cli.options import duration
from plugwright.text import clean

__all__ = ["log_level"]


@click.command("log-level", epilog="Example:  plugwright log-level debug --for 30m")
@click.argument("level", type=click.Choice(LEVELS), required=False)
@click.option(
    "--for",
    "seconds",
    type=duration,
    default="10m",
    show_default=True,
    metavar="TIME",
    help="Time after which the level at the daemon's start is restored.",
)
@click.option("--by", metavar="NAME", envvar="SUDO_USER", show_envvar=True, help="Author, for the log.")
@daemon_options(all_nodes=True)
def log_level(level: str | None, seconds: float, by: str | None, daemon: ChosenDaemon) -> None:
    """Change the log level of the running daemon for a limited time; without LEVEL, show it."""
    request: dict[str, object] = {"do": "log level"}
    if level is not None:
        request |= {"level": level, "for": seconds, **({"by": by} if by else {})}
    if daemon.is_all:
        print_of_all(daemon, request)
        return
    click.echo(clean(daemon.ask(request)))
