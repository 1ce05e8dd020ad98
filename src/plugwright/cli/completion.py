"""`plugwright completion`: scripts for the completion of our commands in a shell, and the program for kubectl."""

import sys

import click
from click.shell_completion import ShellComplete, get_completion_class

from plugwright.system.early_signals import end_on_interrupt

__all__ = ["completion", "kubectl_complete"]

_FILES, _NO_FILES = 0, 4  # directives of cobra, which kubectl reads after the names


@click.command(epilog='Example:  eval "$(plugwright completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "fish", "zsh"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    It completes commands, flags, and the cluster's pods, claims, nodes, namespaces, resources and devices. `kubectl
    plugwright` is completed by kubectl's own script, which runs `kubectl_complete-plugwright` from the PATH.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "plugwright", "_PLUGWRIGHT_COMPLETE").source())


def kubectl_complete() -> None:
    """The program `kubectl_complete-plugwright`: prints the completions of its last argument, one per line."""
    from plugwright.cli.main import cli

    end_on_interrupt()
    *words, begin = sys.argv[1:] or [""]
    found = ShellComplete(cli, {}, "plugwright", "").get_completions(words, begin)
    for item in found:
        if item.type == "plain":
            click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(f":{_FILES if any(item.type in ('file', 'dir') for item in found) else _NO_FILES}")
