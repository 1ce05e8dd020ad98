"""The common part of `devices`, `who` and `free`: the flags for the cluster, and the facts that they could not see."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from plugwright.cli.completing import complete_namespace
from plugwright.cli.output import wrapped
from plugwright.fleet.daemons import SELECTOR, DaemonChoice
from plugwright.fleet.fleet_devices import Fleet
from plugwright.text import clean

__all__ = ["cluster_options", "echo_unseen", "pod_namespace"]

F = TypeVar("F", bound=Callable[..., Any])
_NAMESPACE = click.option(
    "-n", "--namespace", default="", help="Namespace of POD.  [default: any]", shell_complete=complete_namespace
)
_ALL_NAMESPACES = click.option(
    "-A", "--all-namespaces", is_flag=True, help="Search POD in all namespaces, which is the default."
)
_OPTIONS = (
    click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),
        help="Kubeconfig of the cluster.  [default: the running `plugwright up`, else as kubectl]",
    ),
    click.option("--context", help="Context of the kubeconfig.  [default: the current one]"),
    click.option(
        "--selector", metavar="LABELS", default=SELECTOR, show_default=True, help="Labels of the daemons' pods."
    ),
    click.option("--daemon-namespace", metavar="NAME", help="Namespace of the daemons' pods.  [default: any]"),
)


def cluster_options(command: F) -> F:
    """Passes the flags that choose a cluster to the command as `cluster`, including its NODE, if it has one."""

    @wraps(command)
    def call(
        *arguments: Any, kubeconfig: Path | None, context: str | None, selector: str, daemon_namespace: str | None,
        node: str = "", **values: Any,
    ) -> Any:  # fmt: skip
        choice = DaemonChoice(None, node, kubeconfig, context, selector, daemon_namespace)
        return command(*arguments, cluster=choice, **values)

    decorated: Any = call
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def pod_namespace(command: F) -> F:
    """Passes the namespace of the command's pod, which is empty for any."""

    @wraps(command)
    def call(*arguments: Any, namespace: str, all_namespaces: bool, **values: Any) -> Any:
        if namespace and all_namespaces:
            raise click.UsageError("give --namespace or --all-namespaces, not both")
        return command(*arguments, namespace=namespace, **values)

    return _NAMESPACE(_ALL_NAMESPACES(call))  # type: ignore[return-value]


def echo_unseen(fleet: Fleet) -> None:
    """Prints the facts that the answer could not take into account."""
    for entry in fleet.unseen:
        click.echo(wrapped(f"not seen: {clean(entry)}", 2))
