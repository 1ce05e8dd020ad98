"""`plugwright join`: emulated nodes in any API server reachable by a kubeconfig."""

import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import yaml

from plugwright.apiserver.extra import check_installed
from plugwright.cli import logs
from plugwright.cli.completing import complete_joined_node
from plugwright.cli.control import ask
from plugwright.cli.counting_line import CountingLine
from plugwright.cli.options import duration
from plugwright.cli.output import document_printed, output_option
from plugwright.cluster.joined.join_state import JoinFlags, JoinInfo, JoinState
from plugwright.fleet.daemons import DaemonChoice

__all__ = ["explained", "join"]

_PATH = click.Path(path_type=Path)
_STATE = click.Path(path_type=Path, file_okay=False)
_EXAMPLE = """\b
Examples:
  plugwright join --context kind-lab                     one node
  plugwright join --context kind-lab -f nodes.yaml       the nodes of the file
  plugwright join --context lab --state ./nodes --run    keep the nodes
  plugwright join --context lab --state ./nodes --leave  remove them again
  plugwright join -f nodes.yaml --print-rbac | kubectl apply -f -

\b
nodes.yaml:
  nodes:
    - name: gpu              # gpu-1, gpu-2
      count: 2
      cpu: 64
      memory: 512Gi
      numa: 2
      labels: {pool: gpu}
      taints: [{key: pool, value: gpu, effect: NoSchedule}]
      kubelet: {version: "1.36", policy: single-numa-node, scope: pod}
      resources:             # as in plugwright.yaml; may be left out
        - name: mock/gpu
          mock: {count: 8, numa: 2}
"""


@click.group(invoke_without_command=True, epilog=_EXAMPLE)
@click.option("--context", help="Context of the kubeconfig; required, so that you join no other cluster by mistake.")
@click.option("--kubeconfig", type=_PATH, help="Kubeconfig of the cluster.  [default: KUBECONFIG, or ~/.kube/config]")
@click.option(
    "--nodes",
    type=click.IntRange(1, 1000),
    metavar="COUNT",
    help="Number of nodes: plugwright-1, …; ten mock GPUs each.  [default: 1]",
)
@click.option("-f", "--file", type=_PATH, help="The nodes: groups with a shape, labels, taints, kubelet and resources.")
@click.option("--state", type=_STATE, help="Keep the nodes' files here; the nodes stay registered and are found again.")
@click.option("--leave", is_flag=True, help="Remove the nodes of --state, and their pods, from the cluster.")
@click.option("--run", "processes", is_flag=True, help="Run the containers' commands as processes of this machine.")
@click.option(
    "--no-taint", is_flag=True, help="Add no taint plugwright.dev/emulated:NoSchedule, so that any pod can run there."
)
@click.option(
    "--kubelet-address",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address of this machine at which the API server reaches the kubelet API, for `kubectl logs` and `top`.",
)
@click.option(
    "--heartbeat", type=duration, default="10s", metavar="TIME", show_default=True, help="Time between lease renewals."
)
@click.option("--no-page", is_flag=True, help="Do not serve the page for a browser, on 127.0.0.1.")
@click.option("--timeout", type=duration, metavar="TIME", help="Stop after this time, such as 90s, 10m or 2h.")
@click.option("--print-rbac", is_flag=True, help="Only print the roles that these nodes need, and their bindings.")
@click.option(
    "--service-account",
    metavar="NAMESPACE/NAME",
    default="default/plugwright-join",
    show_default=True,
    help="With --print-rbac: service account to which the roles are bound.",
)
@output_option()
@click.pass_context
def join(
    context: click.Context,
    /,
    output: str,
    leave: bool,
    print_rbac: bool,
    service_account: str,
    no_page: bool,
    **flags: Any,
) -> None:
    """Add emulated nodes to any Kubernetes, each with a kubelet, devices, leases, status, pods, events and logs.

    The scheduler, the controllers and everything else are the cluster's own. Nodes have a NoSchedule taint, so only
    pods that tolerate it are scheduled there. Ctrl-C deletes them with their leases and pods; with --state they
    stay registered. `join` never changes other nodes. With --run, anyone who can create pods in the cluster can run
    commands on this machine.
    """
    if context.invoked_subcommand is not None:
        return
    flags["taint"], flags["context"] = not flags.pop("no_taint"), flags["context"] or ""
    options = JoinFlags(**flags)
    if options.file and options.nodes:
        raise click.UsageError("--nodes and --file exclude each other")
    check_installed("plugwright join")
    from plugwright.cluster.joined import program  # the emulated nodes

    if print_rbac:
        roles = program.rbac(_plans(options), _subject(service_account), processes=options.processes)
        click.echo(yaml.safe_dump_all(roles, sort_keys=False), nl=False)
    elif not options.context:
        raise click.UsageError("--context is needed: the cluster to join must be named")
    elif leave:
        _leave(program, options)
    else:
        _run(program, options, output, has_page=not no_page)


def _plans(options: JoinFlags) -> Any:
    from plugwright.config.nodes_file import plans_of

    return plans_of(options.file, options.nodes, taint=options.taint)


def _subject(service_account: str) -> dict[str, str]:
    namespace, slash, name = service_account.partition("/")
    if not (namespace and slash and name):
        raise click.UsageError(f"--service-account must be NAMESPACE/NAME, got {service_account!r}")
    return {"kind": "ServiceAccount", "name": name, "namespace": namespace}


def _leave(program: ModuleType, options: JoinFlags) -> None:
    if options.state is None:
        raise click.UsageError("--leave needs --state: the directory of the nodes that are to leave")
    logs.configure("human", "warning")
    gone = program.leave(options)
    click.echo(f"{', '.join(gone)}: removed" if gone else "no nodes of this directory are registered")


def _run(program: ModuleType, options: JoinFlags, output: str, *, has_page: bool) -> None:
    from plugwright.web.page_program import page_of_nodes

    page = partial(page_of_nodes, DaemonChoice(kubeconfig=options.kubeconfig, context=options.context))
    began = time.monotonic()

    plans = _plans(options)
    line = CountingLine("nodes started", len(plans.plans))

    def show(info: JoinInfo) -> None:
        line.erase()
        if not document_printed(info.document(), output):
            click.echo("\n".join(_ready_lines(info, options, time.monotonic() - began)))
        sys.stdout.flush()

    logs.configure("human", "warning")
    calls = program.JoinCalls(
        show, partial(explained, options), page if has_page else None, lambda count, _: line.show(count)
    )
    with line:
        program.run(options, plans, calls)


def explained(options: JoinFlags, pods: Sequence[Mapping[str, Any]]) -> Mapping[str, str]:
    """The reasons why pods wait, by uid, for their events; loaded for the first waiting pod."""
    from plugwright.explain.reading import read_world
    from plugwright.explain.waiting import first_lines
    from plugwright.kube.access import ClusterAccess
    from plugwright.kube.api_client import BlockingClient

    with BlockingClient(ClusterAccess.choose(options.kubeconfig, options.context)) as client:
        return first_lines(read_world(client, ""), pods)


def _ready_lines(info: JoinInfo, options: JoinFlags, seconds: float) -> Iterator[str]:
    names = list(info.nodes)
    shown = f"node {names[0]}" if len(names) == 1 else f"{len(names)} nodes, {names[0]} … {names[-1]}"
    yield f"joined {info.server} ({info.version}) after {seconds:.1f} s: {shown}"
    yield ""
    yield f"    kubectl --context {shlex.quote(options.context)} get nodes -l plugwright.dev/joined-by={info.owner}"
    yield f"    plugwright run -c plugwright.yaml --kubelet-dir {info.nodes[names[0]]['kubelet_dir']}"
    yield ""
    if options.taint:
        yield "Pods need the toleration {key: plugwright.dev/emulated, operator: Exists}."
    kept = f"; the nodes stay registered, `--leave` removes them (--state {options.state})" if options.state else ""
    if info.page:
        yield f"In a browser:  {info.page}"
    yield f"Ctrl-C ends it{kept}."


_state_argument = click.option("--state", type=_STATE, required=True, help="The nodes' state directory.")


@join.command("stop-node", epilog="Example:  plugwright join stop-node gpu-2 --state ./nodes")
@click.argument("node", shell_complete=complete_joined_node)
@_state_argument
def stop_joined_node(node: str, state: Path) -> None:
    """Stop a node's kubelet, as if killed. The cluster's controllers find the node NotReady."""
    ask(Path(JoinState(state).running()["control"]), {"do": "stop-node", "node": node})
    click.echo(f"{node} is stopped")


@join.command("start-node", epilog="Example:  plugwright join start-node gpu-2 --state ./nodes")
@click.argument("node", shell_complete=complete_joined_node)
@_state_argument
def start_joined_node(node: str, state: Path) -> None:
    """Start a node's kubelet again. Its plugins register again, and its pods keep their devices."""
    ask(Path(JoinState(state).running()["control"]), {"do": "start-node", "node": node})
    click.echo(f"{node} is started")
