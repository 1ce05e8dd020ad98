"""`plugwright completion`: scripts that make a shell complete our commands."""

import click
from click.shell_completion import get_completion_class

__all__ = ["completion"]


@click.command(epilog='Example:  eval "$(plugwright completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "fish", "zsh"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for a shell."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "plugwright", "_PLUGWRIGHT_COMPLETE").source())
