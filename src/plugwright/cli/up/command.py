"""`plugwright up`: a cluster on this machine, for kubectl and everyone else; and its control while it runs.

`plugwright down`: end the cluster that `plugwright up` has started.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from plugwright.cli import logs
from plugwright.cli.control import ask
from plugwright.cli.options import duration
from plugwright.cli.up import view
from plugwright.cli.up.daemonize import detached
from plugwright.cli.up.directory import Facts, Place, check_foreign, place
from plugwright.cli.up.options import Wish
from plugwright.errors import ConfigError

__all__ = ["down", "state_option", "up"]

_PATH = click.Path(path_type=Path)
_EXTRA = ("starlette", "uvicorn", "cryptography")
_EXAMPLE = """\b
Examples:
  plugwright up                                 ten mock GPUs on one node, until Ctrl-C
  plugwright up --nodes 3 -c plugwright.yaml    three nodes, each with the resources of the file
  plugwright up --detach --state ./lab          in the background; `plugwright down --state ./lab` ends it
  plugwright up --bare                          no devices: run a plugin of your own with --kubelet-dir
"""

state_option = click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="PLUGWRIGHT_STATE",
    show_envvar=True,
    help="The cluster's directory.  [default: a temporary one, yours alone]",
)
_output = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)


def _seconds(flag: str, default: str, text: str) -> Callable[[Any], Any]:
    return click.option(flag, type=duration, default=default, metavar="TIME", show_default=True, help=text)


@click.group(invoke_without_command=True, epilog=_EXAMPLE)
@click.option("--nodes", type=click.IntRange(1, 1000), default=1, show_default=True, help="How many: node-1, node-2, …")
@click.option("-c", "--config", type=_PATH, help="The resources of every node, as for `run`.  [default: 10 mock/gpu]")
@click.option("--bare", is_flag=True, help="No resources at all: plugins of other programs register at the nodes.")
@state_option
@click.option("--kubeconfig", type=_PATH, help="The file to write, mode 0600.  [default: in the cluster's directory]")
@click.option("--force", is_flag=True, help="Replace a file at --kubeconfig that is not of plugwright.")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Of the API server, on 127.0.0.1.  [default: as before, or any]"
)
@click.option("--run", "starts", is_flag=True, help="Start the containers' commands as processes of this machine.")
@click.option("--timeout", type=duration, metavar="TIME", help="End by itself after 90s, 10m, 2h.")
@click.option("--detach", is_flag=True, help="Return as soon as it is ready; `plugwright down` ends it.")
@_seconds("--heartbeat", "10s", "Between a node's status rounds.")
@_seconds("--silence", "50s", "How long a node may be silent before it is NotReady.")
@_seconds("--plugin-grace", "5m", "How long a resource outlives its plugin.")
@_output
@click.pass_context
def up(context: click.Context, /, state: Path | None, output: str, **values: Any) -> None:
    """Start a cluster on this machine: API server, scheduler and nodes in one process, in about a second.

    kubectl works on it, with the kubeconfig that it writes. It listens on 127.0.0.1 alone, over TLS and with a token of
    its own. Without --state nothing is left when it ends; with it, objects, checkpoints, token and port are kept there.
    """
    if context.invoked_subcommand is not None:
        return
    if values["bare"] and values["config"]:
        raise click.UsageError("--bare and --config exclude each other")
    _start(Wish(**values), place(state, os.environ), output)


def _start(wish: Wish, where: Place, output: str) -> None:
    began = time.monotonic()
    logs.configure("human", "warning")
    run = _loaded()
    if wish.kubeconfig is not None and not wish.force:
        check_foreign(wish.kubeconfig)

    def show(facts: Facts) -> None:
        _show(facts, where, output, time.monotonic() - began)

    if not wish.detach:
        run(wish, where, show)
        return
    where.make()
    if not where.is_free():
        raise where.occupied()
    told = detached(lambda tell: run(wish, where, lambda facts: tell(facts.document())), where.log)
    assert isinstance(told, dict)
    show(Facts(**told))


def _show(facts: Facts, where: Place, output: str, took: float) -> None:
    if output == "json":
        click.echo(json.dumps(facts.document()))
    else:
        click.echo("\n".join(view.ready_lines(facts, where, took)))
    sys.stdout.flush()


def _loaded() -> Callable[[Wish, Place, Callable[[Facts], None]], None]:
    """Only now, and all of it before there is anything to clean up."""
    try:
        run: Callable[[Wish, Place, Callable[[Facts], None]], None] = import_module("plugwright.cli.up.program").run
        for each in _EXTRA:
            import_module(each)
    except ModuleNotFoundError as missing:
        name = (missing.name or "").partition(".")[0]
        if name not in _EXTRA:
            raise
        raise ConfigError(f"plugwright up needs {name}: pip install 'plugwright[cluster]'") from missing
    return run


@up.command("stop-node", epilog="Example:  plugwright up stop-node node-2")
@click.argument("node")
@state_option
def stop_node(node: str, state: Path | None) -> None:
    """The node's kubelet ends as if killed; after --silence the node is NotReady."""
    _asked(state, {"do": "stop-node", "node": node})
    click.echo(f"{node} is stopped")


@up.command("start-node", epilog="Example:  plugwright up start-node node-2")
@click.argument("node")
@state_option
def start_node(node: str, state: Path | None) -> None:
    """The node's kubelet starts again: its plugins register anew, its pods keep their devices."""
    _asked(state, {"do": "start-node", "node": node})
    click.echo(f"{node} is started")


@up.command(epilog="Example:  plugwright up status --output json | jq '.nodes[] | select(.ready | not)'")
@state_option
@_output
def status(state: Path | None, output: str) -> None:
    """How the running cluster stands: where it is, its nodes and what they offer, its pods."""
    facts = place(state, os.environ).running()
    found = ask(Path(facts["control"]), {"do": "status"})
    if output == "json":
        click.echo(json.dumps({**facts, **found}))
    else:
        click.echo("\n".join(view.status_lines(found, facts)))


def _asked(state: Path | None, request: dict[str, str]) -> None:
    ask(Path(place(state, os.environ).running()["control"]), request)


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
