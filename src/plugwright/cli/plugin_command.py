"""`plugwright command`: a plugin's own commands, as its `command()` defines them."""

from pathlib import Path

import click

from plugwright.cli.control import control_socket, plugin_command

__all__ = ["command"]


@click.command(epilog="Example:  plugwright command example.com/tape eject drive=st0")
@click.argument("resource")
@click.argument("name")
@click.argument("arguments", metavar="[KEY=VALUE]...", nargs=-1)
@control_socket
def command(resource: str, name: str, arguments: tuple[str, ...], control_socket: Path) -> None:
    """Have the plugin of RESOURCE carry out one of its own commands, and print its answer."""
    pairs = [argument.partition("=") for argument in arguments]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise click.UsageError(f"an argument must look like KEY=VALUE, got {key + equals!r}")
    plugin_command(control_socket, name, resource, {key: value for key, _, value in pairs})
