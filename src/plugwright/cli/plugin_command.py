"""`plugwright command`: a plugin's own commands, defined by its `command()`."""

import click

from plugwright.cli.completing import complete_resource
from plugwright.cli.control import ChosenDaemon, daemon_options, plugin_command

__all__ = ["command"]


@click.command(epilog="Example:  plugwright command example.com/tape eject drive=st0")
@click.argument("resource", shell_complete=complete_resource)
@click.argument("name")
@click.argument("arguments", metavar="[KEY=VALUE]...", nargs=-1)
@daemon_options()
def command(resource: str, name: str, arguments: tuple[str, ...], daemon: ChosenDaemon) -> None:
    """Run a command of RESOURCE's plugin, and print its answer."""
    pairs = [argument.partition("=") for argument in arguments]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise click.UsageError(f"an argument must look like KEY=VALUE, got {key + equals!r}")
    plugin_command(daemon, name, resource, {key: value for key, _, value in pairs})
