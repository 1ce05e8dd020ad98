"""Requests to a running daemon: the flags that choose it, and errors that an operator can act on."""

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from plugwright.cli.completing import complete_node
from plugwright.errors import ConfigError, PeerGone
from plugwright.fleet.daemons import (
    CONTROL_SOCKET,
    SELECTOR,
    DaemonChoice,
    LocalDaemon,
    ReachableDaemon,
    ask_all,
    find_all,
    find_daemon,
)
from plugwright.fleet.device_names import complete_device, devices_in_status
from plugwright.model import some
from plugwright.text import clean

__all__ = ["ChosenDaemon", "ask", "control_socket", "daemon_options", "device_id", "plugin_command", "print_of_all"]

F = TypeVar("F", bound=Callable[..., Any])
_PATH = click.Path(path_type=Path)

control_socket = click.option(
    "--control-socket",
    type=_PATH,
    envvar="PLUGWRIGHT_CONTROL_SOCKET",
    show_envvar=True,
    help=f"Control socket of the daemon.  [default: {CONTROL_SOCKET}, or that of the running `plugwright up`]",
)
_OPTIONS = (
    control_socket,
    click.option(
        "--node", metavar="NODE", default="", help="The daemon of this node of a cluster.", shell_complete=complete_node
    ),
    click.option("--kubeconfig", type=_PATH, help="Kubeconfig of the cluster, with --node.  [default: as kubectl]"),
    click.option("--context", help="Context of the kubeconfig.  [default: the current one]"),
    click.option(
        "--selector", metavar="LABELS", default=SELECTOR, show_default=True, help="Labels of the daemons' pods."
    ),
    click.option("--daemon-namespace", metavar="NAME", help="Namespace of the daemons' pods.  [default: any]"),
)
_ALL_NODES = click.option("--all-nodes", is_flag=True, help="The daemons of all nodes of the cluster.")


class ChosenDaemon:
    """The daemon chosen by the flags; the first request searches for it."""

    def __init__(self, choice: DaemonChoice, *, is_all: bool = False) -> None:
        self.choice, self.is_all = choice, is_all
        self._found: ReachableDaemon | None = None

    @property
    def reached(self) -> ReachableDaemon:
        if self._found is None:
            self._found = find_daemon(self.choice)
        return self._found

    def ask(self, request: Mapping[str, object]) -> Any:
        """The daemon's single answer."""
        return self.reached.ask(request)

    def follow(self, request: Mapping[str, object]) -> Iterator[Any]:
        """Yields answers for as long as the daemon runs."""
        return self.reached.follow(request)

    def ask_all(self, request: Mapping[str, object]) -> Iterator[tuple[str, Any, str]]:
        """For each node with a daemon: its name and the answer, or the reason why there is none."""
        found = find_all(self.choice)
        if not found:
            raise ConfigError(f"no daemon runs in the cluster: no running pod has the labels {self.choice.selector}")
        for daemon, answer, reason in ask_all(found, request):
            yield daemon.node, answer, reason


def daemon_options(*, all_nodes: bool = False) -> Callable[[F], F]:
    """Adds the flags that choose a daemon, which is passed to the command as `daemon`."""

    def decorated(command: F) -> F:
        @wraps(command)
        def call(
            *arguments: Any, control_socket: Path | None, node: str, kubeconfig: Path | None, context: str | None,
            selector: str, daemon_namespace: str | None, all_nodes: bool = False, **values: Any,
        ) -> Any:  # fmt: skip
            if node and all_nodes:
                raise click.UsageError("give --node or --all-nodes, not both")
            choice = DaemonChoice(control_socket, node, kubeconfig, context, selector, daemon_namespace)
            return command(*arguments, daemon=ChosenDaemon(choice, is_all=all_nodes), **values)

        decorating: Any = call
        for option in reversed((*_OPTIONS, *([_ALL_NODES] if all_nodes else []))):
            decorating = option(decorating)
        return decorating  # type: ignore[no-any-return]

    return decorated


def ask(path: Path, request: Mapping[str, object]) -> Any:
    """The single answer of the process that listens on a control socket."""
    return LocalDaemon(path).ask(request)


def device_id(daemon: ChosenDaemon, text: str, resource: str = "") -> str:
    """The id of the device that `text` identifies by id, id prefix or index; otherwise the text itself."""
    found = complete_device(text, devices_in_status(daemon.ask({"do": "status"}), resource))
    return found[0].id if found else text


def plugin_command(daemon: ChosenDaemon, name: str, resource: str, arguments: Mapping[str, str]) -> None:
    """Runs a command of the plugin of `resource`, and prints its answer."""
    request = {"do": "plugin", "resource": resource, "name": name, "arguments": arguments}
    click.echo(clean(daemon.ask(request)))


def print_of_all(daemon: ChosenDaemon, request: Mapping[str, object]) -> None:
    """Prints each daemon's answer, one line per node. Fails if one of them did not answer."""
    failed = []
    for node, answer, reason in daemon.ask_all(request):
        click.echo(f"{clean(node)}: {clean(reason or answer)}")
        failed += [node] if reason else []
    if failed:
        raise PeerGone(f"no answer of the daemons of {some(failed)}")
