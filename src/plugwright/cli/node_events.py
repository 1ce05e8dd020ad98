"""`plugwright node-events`: Events and Node conditions about the devices of a node."""

import logging
from pathlib import Path

import click

from plugwright.cli import logs
from plugwright.kube.access import ClusterAccess
from plugwright.model import some
from plugwright.node_events.program import NodeEventsSettings, clear_conditions, run_node_events

__all__ = ["node_events"]

logger = logging.getLogger(__name__)

_EXAMPLES = """\b
Examples:
  plugwright node-events --node-name worker-1 --release plugwright/plugwright
  plugwright node-events --clear --all-nodes --release plugwright/plugwright
"""


@click.command(epilog=_EXAMPLES)
@click.option("--node-name", metavar="NODE", default="", envvar="NODE_NAME", show_envvar=True,
              help="The node of the daemon, whose Node gets the conditions.")  # fmt: skip
@click.option("--release", metavar="NAMESPACE/NAME", default="", envvar="PLUGWRIGHT_RELEASE", show_envvar=True,
              help="Helm release of the daemon; it tells apart the conditions of several releases.")  # fmt: skip
@click.option("--control-socket", type=click.Path(path_type=Path), envvar="PLUGWRIGHT_CONTROL_SOCKET",
              default="/run/plugwright/control.sock", show_default=True, show_envvar=True,
              help="Control socket of the daemon.")  # fmt: skip
@click.option("--kubeconfig", type=click.Path(path_type=Path),
              help="Kubeconfig of the cluster.  [default: this pod's service account, or as kubectl]")  # fmt: skip
@click.option("--clear", is_flag=True, help="Remove the release's conditions from the Node, and exit.")
@click.option("--all-nodes", is_flag=True, help="With --clear: from every Node.")
@click.option("--log-format", type=click.Choice(logs.FORMATS), default="human", show_default=True, help="Log format.")
@click.option("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True, help="Log level.")
def node_events(
    node_name: str, release: str, control_socket: Path, kubeconfig: Path | None, clear: bool, all_nodes: bool,
    log_format: str, log_level: str,
) -> None:  # fmt: skip
    """Write Events and Node conditions when devices fail, recover, vanish or are cordoned.

    Follows the daemon of this node on its control socket until SIGTERM or SIGINT. Each change becomes an Event on the
    Node and on the pods that hold the devices; each resource has one condition, such as plugwright.dev/nvidia.com_gpu,
    which is True while devices have failed or are missing. The chart runs it with `events.enabled`.
    """
    if all_nodes and not clear:
        raise click.UsageError("--all-nodes is for --clear")
    if not node_name and not all_nodes:
        raise click.UsageError("give --node-name, the name of the node")
    if clear:
        cleared = clear_conditions(ClusterAccess.choose(kubeconfig), release, "" if all_nodes else node_name)
        click.echo(f"conditions removed from {some(cleared)}" if cleared else "no node has conditions of this release")
        return
    logs.configure(log_format, log_level)
    with logs.failure_in_log():
        settings = NodeEventsSettings(node=node_name, socket=control_socket, release=release)
        run_node_events(settings, kubeconfig)
        logger.info("stopped")
