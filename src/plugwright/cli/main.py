"""The command line: loads only the called command, and prints errors as one line.

`plugwright.__main__` runs first, handles early signals, and serves a file without this module.
"""

import os
import sys
from importlib import import_module
from io import StringIO
from keyword import iskeyword

import click

from plugwright.cli.color import color_choice
from plugwright.cli.failures import fail, failing_in_one_line, wrapped_on_terminal
from plugwright.system.early_signals import raise_on_interrupt
from plugwright.version import __version__

__all__ = ["cli", "main"]

# By heading of `--help`: each command's module and its line there, so that the list loads none of them.
_COMMANDS = {
    "Serve devices": {
        "run": ("run", "Serve configured resources, or a plugin of your own."),
        "check": ("check", "Check a configuration file and print every mistake."),
        "nvidia": ("nvidia", "Recover GPUs, simulate failures, remove leftover CDI specs."),
        "mps": ("mps", "Run the MPS control daemons of GPUs shared by MPS."),
        "node-events": ("node_events", "Write Events and Node conditions for kubectl."),
        "mock": ("mock", "Make mock devices fail, recover, appear and disappear."),
        "manifest": ("manifest", "Print the manifests to run plugwright on every node."),
        "import": ("import_", "Convert another plugin's configuration to plugwright's."),
    },
    "Write a plugin": {
        "new": ("new", "Make a project for a plugin: tests, CI, image, chart."),
        "dev": ("dev", "Run a plugin beside an emulated kubelet; reload when saved."),
    },
    "Test without hardware": {
        "up": ("up", "Start a cluster on this machine, with mock devices, for kubectl."),
        "down": ("up", "Stop the cluster that `up` started."),
        "join": ("join", "Add emulated nodes to an existing Kubernetes cluster."),
        "kubelet": ("kubelet", "Run an emulated kubelet for a plugin under development."),
        "verify": ("verify", "Verify that a plugin or DRA driver keeps the kubelet's contract."),
    },
    "See and explain a cluster": {
        "devices": ("devices", "Show every device of a cluster or a node, with its holder."),
        "page": ("page", "Serve a page with every device of a cluster, for a browser."),
        "who": ("who", "Show who holds a device, or which devices a pod has."),
        "free": ("free", "Count free, held and unhealthy devices of a cluster."),
        "history": ("history", "Show what happened to devices: pods, health, cordons."),
        "why": ("why", "Explain what keeps a pod waiting, and what would let it run."),
        "fit": ("would_fit", "Predict whether the pods of a file would run, and where."),
        "lint": ("lint", "Check claims and classes against the devices of a cluster."),
    },
    "Look and repair": {
        "doctor": ("doctor", "Diagnose a node, and print the commands to fix problems."),
        "status": ("status", "Show resources, their registration, and each device's health."),
        "checkpoint": ("checkpoint", "Show, verify and compare the kubelet's device checkpoint."),
        "node": ("node", "Show and clean up extended resources of nodes."),
        "handover": ("handover", "Move a node's devices between the device plugin API and DRA."),
        "dra": ("dra", "Show ResourceSlices and ResourceClaims of any cluster."),
        "cordon": ("cordon", "Take a device out of service; list cordons."),
        "uncordon": ("cordon", "Put a cordoned device back into service."),
        "log-level": ("log_level", "Change the daemon's log level temporarily."),
        "command": ("plugin_command", "Send a plugin one of its own commands."),
    },
    "Shell": {
        "docs": ("docs", "Show a page of the documentation, offline."),
        "completion": ("completion", "Print the completion script for bash, zsh or fish."),
    },
}
_HIDDEN = {"request": "request"}  # called by commands on other machines
_MODULES = {name: module for commands in _COMMANDS.values() for name, (module, _) in commands.items()}


class _LazyGroup(click.Group):
    """Loads a command's module when the command is called, so that `run` loads only itself."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES and cmd_name not in _HIDDEN:
            return None
        name = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name.replace("-", "_")
        command = getattr(import_module(f"plugwright.cli.{(_MODULES | _HIDDEN)[cmd_name]}"), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in (_MODULES | _HIDDEN) and not args[0].startswith("-"):
            from difflib import get_close_matches

            hint = "".join(
                f" Did you mean {close!r}?" for close in get_close_matches(args[0], _MODULES, n=1, cutoff=0.5)
            )
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, _MODULES))
        for heading, commands in _COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), line) for name, (_, line) in commands.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """The toolkit for devices on Kubernetes: device plugins and DRA drivers.

    \b
    plugwright run -c plugwright.yaml   serve the configured resources here
    plugwright status                   the served resources and their devices
    plugwright up                       a cluster for kubectl, with ten mock GPUs
    plugwright dev tape.py              run your plugin; reload it when you save
    plugwright COMMAND --help           more about a command, with an example
    """


def _show(error: click.UsageError) -> None:
    """Prints the usage and the message, wrapped as other errors are."""
    shown = StringIO()
    error.show(shown)
    for line in shown.getvalue().splitlines():
        sys.stderr.write(f"{wrapped_on_terminal(line)}\n")


def main() -> None:
    if "_PLUGWRIGHT_COMPLETE" not in os.environ:  # Ctrl-C in a shell ends a completion without a word
        raise_on_interrupt()
    with failing_in_one_line():
        try:
            code = cli.main(
                standalone_mode=False, color=color_choice()
            )  # the argument of `ctx.exit`; a command itself returns None
            sys.exit(code if isinstance(code, int) else 0)
        except click.UsageError as error:
            _show(error)
            sys.exit(2)
        except click.Abort:
            sys.exit(130)
        except click.ClickException as error:
            fail(error.format_message())
