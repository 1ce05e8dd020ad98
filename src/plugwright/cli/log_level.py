"""`plugwright log-level`: see more of what a daemon does, or less, without a restart."""

from pathlib import Path

import click

from plugwright.cli.control import ask, control_socket
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
    help="The level that the daemon was started with comes back after this.",
)
@click.option("--by", metavar="NAME", envvar="SUDO_USER", show_envvar=True, help="Who asks, for the log.")
@control_socket
def log_level(level: str | None, seconds: float, by: str | None, control_socket: Path) -> None:
    """Change the log level of the running daemon for a while; without LEVEL, show it."""
    request: dict[str, object] = {"do": "log level"}
    if level is not None:
        request |= {"level": level, "for": seconds, **({"by": by} if by else {})}
    click.echo(clean(ask(control_socket, request)))
