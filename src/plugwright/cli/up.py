"""`plugwright up` and `plugwright down`: starts a cluster on this machine, controls it, and ends it."""

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from plugwright.apiserver.extra import check_installed
from plugwright.apiserver.kubeconfig_file import check_not_foreign
from plugwright.cli import logs
from plugwright.cli.completing import complete_node_of_up
from plugwright.cli.control import ask
from plugwright.cli.counting_line import CountingLine
from plugwright.cli.options import duration
from plugwright.cli.output import document_printed, output_option
from plugwright.cluster.up.daemonize import daemonize
from plugwright.cluster.up.state_directory import ClusterInfo, StateDirectory, UpOptions, state_directory
from plugwright.system.program_name import program_name

__all__ = ["down", "first_line_of", "state_option", "up"]

_PATH = click.Path(path_type=Path)
_DOWN_LIMIT = 30.0  # seconds
_EXAMPLE = """\b
Examples:
  plugwright up                               ten mock GPUs on one node
  plugwright up --nodes 3 -c plugwright.yaml  with the resources of the file
  plugwright up --detach --state ./lab        in the background, until `down`
  plugwright up --bare                        no devices, for your own plugins
"""


state_option = click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="PLUGWRIGHT_STATE",
    show_envvar=True,
    help="The cluster's state directory.  [default: a temporary, private one]",
)


def _time_option(flag: str, default: str, text: str) -> Callable[[Any], Any]:
    return click.option(flag, type=duration, default=default, metavar="TIME", show_default=True, help=text)


def _entrypoint(text: str) -> tuple[str, tuple[str, ...]]:
    """`npu=plugwright` or `web='python3 -m http.server'`; for `type=` of an option."""
    image, _, command = text.partition("=")
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise click.BadParameter(f"a command must be as in a shell: {error}, got {command!r}") from error
    if not image or not words:
        raise click.BadParameter(f"an entrypoint must look like IMAGE=COMMAND, got {text!r}")
    own = (sys.executable, "-m", "plugwright") if words[0] == "plugwright" else (words[0],)
    return image, (*own, *words[1:])


@click.group(invoke_without_command=True, epilog=_EXAMPLE)
@click.option(
    "--nodes",
    type=click.IntRange(1, 1000),
    metavar="COUNT",
    default=1,
    show_default=True,
    help="Number of nodes: node-1, node-2, …",
)
@click.option("-c", "--config", type=_PATH, help="The resources of every node, as for `run`.  [default: 10 mock/gpu]")
@click.option("--bare", is_flag=True, help="Serve no resources: plugins of other programs register with the nodes.")
@state_option
@click.option("--kubeconfig", type=_PATH, help="The kubeconfig to write, mode 0600.  [default: in the state directory]")
@click.option("--force", is_flag=True, help="Replace a file at --kubeconfig that plugwright did not write.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Port of the API server, on 127.0.0.1.  [default: the previous one, or any]",
)
@click.option("--run", "processes", is_flag=True, help="Run the containers' commands as processes of this machine.")
@click.option(
    "--entrypoint",
    "entrypoints",
    multiple=True,
    type=_entrypoint,
    metavar="IMAGE=COMMAND",
    help="With --run, the entrypoint of an image: npu=plugwright. May be repeated.",
)
@click.option("--no-page", is_flag=True, help="Do not serve the page for a browser, on 127.0.0.1.")
@click.option("--timeout", type=duration, metavar="TIME", help="Stop after this time, such as 90s, 10m or 2h.")
@click.option("--detach", is_flag=True, help="Return when the cluster is ready; `plugwright down` ends it.")
@click.option(
    "--version",
    type=click.Choice(["1.36", "1.37"]),
    default="1.36",
    show_default=True,
    help="Kubernetes version to emulate; 1.37 serves DeviceTaintRules.",
)
@_time_option("--heartbeat", "10s", "Time between a node's status rounds.")
@_time_option("--silence", "50s", "Time without a heartbeat until a node is NotReady.")
@_time_option("--plugin-grace", "5m", "Time that a resource stays on a node after its plugin stopped.")
@output_option()
@click.pass_context
def up(context: click.Context, /, state: Path | None, output: str, no_page: bool, **values: Any) -> None:
    """Start a cluster on this machine: API server, scheduler and nodes in one process, in about a second.

    Writes a kubeconfig for kubectl. Listens only on 127.0.0.1, over TLS and with its own token. Without --state,
    nothing remains when it stops; with --state, it keeps objects, checkpoints, token and port in that directory.
    """
    if context.invoked_subcommand is not None:
        return
    if values["bare"] and values["config"]:
        raise click.UsageError("--bare and --config exclude each other")
    _start(UpOptions(**values), state_directory(state, os.environ), output, has_page=not no_page)


def _start(options: UpOptions, directory: StateDirectory, output: str, *, has_page: bool) -> None:
    began = time.monotonic()
    logs.configure("human", "warning")
    check_installed("plugwright up")
    from plugwright.cluster.up.program import UpCalls, run  # loads the whole cluster
    from plugwright.config.node_plugins import NodePlugins
    from plugwright.web.page_program import page_of_cluster

    if options.kubeconfig is not None and not options.force:
        check_not_foreign(options.kubeconfig)

    line = CountingLine("nodes started", options.nodes)

    def show(info: ClusterInfo) -> None:
        line.erase()
        if not document_printed(info.document(), output):
            click.echo("\n".join(_ready_lines(info, directory, time.monotonic() - began, options.processes)))
        sys.stdout.flush()

    plugins = NodePlugins(options.config, bare=options.bare)
    page = page_of_cluster if has_page else None
    if not options.detach:
        calls = UpCalls(show, first_line_of, page, lambda count, _: line.show(count))
        with line:
            run(options, directory, plugins, calls)
        return
    directory.create()
    if not directory.is_free():
        raise directory.in_use_error()
    document = daemonize(
        lambda ready: run(
            options, directory, plugins, UpCalls(lambda info: ready(info.document()), first_line_of, page)
        ),
        directory.log,
    )
    assert isinstance(document, dict)
    show(ClusterInfo(**document))


def first_line_of(objects: Mapping[str, Sequence[Any]], pod: Mapping[str, Any]) -> str:
    """Why a pod waits, for its event; loaded for the first waiting pod."""
    from plugwright.explain.explanation import first_line
    from plugwright.explain.world import World

    of = {name.partition(".")[0]: tuple(found) for name, found in objects.items()}
    world = World(
        nodes=of["nodes"], pods=of["pods"], namespaces=of["namespaces"], slices=of["resourceslices"],
        classes=of["deviceclasses"], claims=of["resourceclaims"], templates=of["resourceclaimtemplates"],
        taint_rules=of["devicetaintrules"],
    )  # fmt: skip
    return first_line(world, pod)


def _ready_lines(info: ClusterInfo, directory: StateDirectory, seconds: float, processes: bool) -> Iterator[str]:
    count, program = len(info.nodes), program_name()
    nodes = "1 node" if count == 1 else f"{count} nodes"
    resources = ", ".join(f"{name}: {number}" for name, number in info.resources.items()) or "no devices yet"
    yield f"ready after {seconds:.1f} s: {nodes} with {resources}; {info.server}"
    yield ""
    yield f"    export KUBECONFIG={shlex.quote(info.kubeconfig)}"
    yield from (f"    {line}" for line in _suggested_commands(info, program, processes))
    yield f"    {program} up stop-node node-1{directory.flag}     # and start it again with start-node"
    yield ""
    if info.page:
        yield f"In a browser:  {info.page}"
    if info.log:
        yield f"To end it:  {program} down{directory.flag}    (process {info.pid}, its log is {info.log})"
    else:
        yield "Ctrl-C ends it."


def _suggested_commands(info: ClusterInfo, program: str, processes: bool) -> Iterator[str]:
    offered = {name: count for name, count in info.resources.items() if count}
    if not offered:
        kubelet_dir = info.nodes["node-1"]["kubelet_dir"]
        yield f"{program} run -c plugwright.yaml --kubelet-dir {shlex.quote(kubelet_dir)}"
        yield f"PLUGWRIGHT_KUBELET_DIR={shlex.quote(kubelet_dir)} python tape.py      # a plugin of your own"
        yield "kubectl describe node node-1"
        yield "kubectl get events --watch"
        return
    resource, count = next(iter(offered.items()))
    limits = {resource: str(min(2, count))}
    container: dict[str, object] = {"name": "two", "image": "demo", "resources": {"limits": limits}}
    if processes:  # the container's process runs on this machine
        container["command"] = ["sh", "-c", "env; exec sleep 3600"]
    overrides = shlex.quote(json.dumps({"spec": {"containers": [container]}}, separators=(",", ":")))
    yield f"kubectl describe node node-1    # {resource} in Capacity and Allocatable"
    yield f"kubectl run two --image=demo --overrides={overrides}"
    yield "kubectl wait --for=condition=Ready pod/two"
    yield "kubectl logs two                # its variables, mounts and device nodes"
    node = "" if len(info.nodes) == 1 else " --node node-1"
    yield f"{program} status{node}"


@up.command("stop-node", epilog="Example:  plugwright up stop-node node-2")
@click.argument("node", shell_complete=complete_node_of_up)
@state_option
def stop_node(node: str, state: Path | None) -> None:
    """Stop a node's kubelet, as if killed. After --silence the node is NotReady."""
    _ask_cluster(state, {"do": "stop-node", "node": node})
    click.echo(f"{node} is stopped")


@up.command("start-node", epilog="Example:  plugwright up start-node node-2")
@click.argument("node", shell_complete=complete_node_of_up)
@state_option
def start_node(node: str, state: Path | None) -> None:
    """Start a node's kubelet again. Its plugins register again, and its pods keep their devices."""
    _ask_cluster(state, {"do": "start-node", "node": node})
    click.echo(f"{node} is started")


@up.command(epilog="Example:  plugwright up status -o json | jq '.nodes[] | select(.ready | not)'")
@state_option
@output_option()
def status(state: Path | None, output: str) -> None:
    """Show the running cluster: server, nodes, resources, pods."""
    info = state_directory(state, os.environ).running_cluster()
    answer = ask(Path(info["control"]), {"do": "status"})
    if not document_printed({**info, **answer}, output):
        click.echo("\n".join(_status_lines(answer, info)))


def _status_lines(status: Mapping[str, Any], info: Mapping[str, Any]) -> Iterator[str]:
    yield f"{info['server']}, process {info['pid']}, kubeconfig {info['kubeconfig']}"
    if info.get("page"):
        yield f"in a browser: {info['page']}"
    for node in status["nodes"].values():
        ready = "Ready" if node["ready"] else "NotReady"
        stopped = "" if node["running"] else ", stopped"
        resources = ", ".join(f"{name}: {count}" for name, count in node["allocatable"].items())
        yield f"{node['name']}  {ready}{stopped}  {resources}".rstrip()
    yield "pods: " + (", ".join(f"{count} {phase}" for phase, count in status["pods"].items()) or "none")


@click.command(epilog="Example:  plugwright down --state ./lab")
@state_option
def down(state: Path | None) -> None:
    """End the running cluster, and return when it has ended.

    Name a cluster started with --state DIR by that option; its objects stay there. Others leave nothing behind.
    """
    directory = state_directory(state, os.environ)
    info = directory.running_cluster()
    ask(Path(info["control"]), {"do": "end"})
    directory.wait_until_free(_DOWN_LIMIT)
    kept = f"; its state is in {directory.path}" if directory.kept else ""
    click.echo(f"process {info['pid']} has ended{kept}")


def _ask_cluster(state: Path | None, request: dict[str, str]) -> None:
    ask(Path(state_directory(state, os.environ).running_cluster()["control"]), request)
